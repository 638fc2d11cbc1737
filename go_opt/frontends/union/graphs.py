"""Several models as one graph, each as often as its share of the rate says; copies share their weights."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import repeat
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from go_opt.common.arrays import IntArray, LongArray, frozen, row_pointers
from go_opt.errors import ModelError
from go_opt.frontends.union.names import SHARED, UNION_PREFIX, prefix_of, shares_of
from go_opt.frontends.union.shared_weights import contents_of, matched_by_content, matched_by_order
from go_opt.model.bindings import Bindings
from go_opt.model.graph import NO_PRODUCER, WEIGHT, Graph, OpRule, State, UnknownOp, with_op_rules


def load_union(name: str, load: Callable[[str], Graph], bindings: Bindings) -> Graph:
    """The union of a name; ``load`` reads each model.

    In ``union:shared:…`` the second model has the weights that are those of the first.
    """
    shares = shares_of(name)
    graphs, copies = [load(model) for _, model in shares], [copies for copies, _ in shares]
    shared: Mapping[int, int] = {}
    if name.startswith(UNION_PREFIX + SHARED):
        if copies != [1, 1]:
            raise ModelError(f"{name[:100]!r} must be of a prompt and a step, once each.", field="model")
        shared = shared_weights(graphs[0], graphs[1], *(model for _, model in shares))
    return union(graphs, copies, name, bindings, shared)


def shared_weights(prompt: Graph, step: Graph, prompt_name: str, step_name: str) -> dict[int, int]:
    """By weight of the step the same of the prompt; by content if both are ONNX files, else by order."""
    if prompt_name.endswith(".onnx") and step_name.endswith(".onnx"):
        contents = [contents_of(Path(name)) for name in (prompt_name, step_name)]
        return matched_by_content(prompt, step, *contents)
    return matched_by_order(prompt, step)


def union(
    graphs: Sequence[Graph],
    copies: Sequence[int],
    name: str,
    bindings: Bindings,
    shared: Mapping[int, int] = MappingProxyType({}),
) -> Graph:
    """The ops of all graphs, each ``copies`` times; names begin with the number of model and copy.

    Args:
      shared: weights of the last graph, each with the weight of the first graph that it is.

    Raises:
      ModelError: a graph has states of the model, or on the host.
    """
    parts = [
        _Part(graph, prefix_of(model, copy), is_first=copy == 0)
        for model, (graph, number) in enumerate(zip(graphs, copies, strict=True), 1)
        for copy in range(number)
    ]
    num_ops = num_tensors = 0
    first = parts[0].tensors
    for part in parts:
        if part.graph.has_scope("model") or part.graph.host_states:
            problem = "has states that are not of sequences, so that it shares a package with no other"
            raise ModelError(f"model {part.graph.name[:100]!r} {problem}.", field="model")
        first = part.tensors if part.is_first else first
        if part.is_first and part.graph is graphs[-1]:
            first = part.share(shared, parts[0].tensors)
        part.number(num_ops, num_tensors, first)
        num_ops += part.graph.num_ops
        num_tensors += int(part.is_new.sum())
    read = np.concatenate([part.reads() for part in parts])
    read = read[np.lexsort((read[:, 1], read[:, 0]))]
    made = Graph(
        name=name,
        op_names=tuple(part.prefix + op for part in parts for op in part.graph.op_names),
        op_types=tuple(kind for part in parts for kind in part.graph.op_types),
        op_class=frozen(np.concatenate([part.graph.op_class for part in parts])),
        op_flops=frozen(np.concatenate([part.graph.op_flops for part in parts])),
        op_dtype=frozen(np.concatenate([part.graph.op_dtype for part in parts])),
        tensor_names=tuple(
            part.prefix + tensor
            for part in parts
            for tensor, is_new in zip(part.graph.tensor_names, part.is_new, strict=True)
            if is_new
        ),
        tensor_elements=frozen(np.concatenate([part.new(part.graph.tensor_elements) for part in parts])),
        tensor_dtype=frozen(np.concatenate([part.new(part.graph.tensor_dtype) for part in parts])),
        tensor_kind=frozen(np.concatenate([part.new(part.graph.tensor_kind) for part in parts])),
        tensor_producer=frozen(np.concatenate([part.producers() for part in parts])),
        tensor_is_output=frozen(np.concatenate([part.new(part.graph.tensor_is_output) for part in parts])),
        reader_ptr=frozen(row_pointers(read[:, 0], num_tensors)),
        reader_op=frozen(read[:, 1], np.int32),
        reader_elements=frozen(read[:, 2]),
        measured_s=_columns([(part.graph.measured_s, part.graph.num_ops) for part in parts], np.nan),
        excluded=_columns([(part.graph.excluded, part.graph.num_ops) for part in parts], False),
        bindings=bindings,
        precision=parts[0].graph.precision,
        unknown_ops=tuple(op for part in parts if part.is_first for op in part.unknown_ops()),
        states=tuple(state for part in parts for state in part.states()),
        unpaired_states=tuple(
            part.prefix + name for part in parts if part.is_first for name in part.graph.unpaired_states
        ),
    )
    return with_op_rules(made, [rule for part in parts for rule in part.rules()])


def _columns(
    parts: Sequence[tuple[Mapping[str, NDArray[Any]], int]], missing: float | bool
) -> Mapping[str, NDArray[Any]]:
    """By kind of chip a column over all ops, from those of parts and their numbers of ops."""
    kinds = sorted({kind for columns, _ in parts for kind in columns})
    return MappingProxyType(
        {
            kind: frozen(np.concatenate([columns.get(kind, np.full(ops, missing)) for columns, ops in parts]))
            for kind in kinds
        }
    )


class _Part:
    """A graph within the union. Axes: ``N`` its ops, ``K`` its tensors."""

    def __init__(self, graph: Graph, prefix: str, *, is_first: bool) -> None:
        self.graph, self.prefix, self.is_first = graph, prefix, is_first
        self.is_new = np.full(graph.num_tensors, is_first) | (graph.tensor_kind != WEIGHT)  # [K]
        self.tensors: LongArray = np.zeros(graph.num_tensors, np.int64)  # [K] in the union
        self.first_op = 0

    def number(self, first_op: int, first_tensor: int, shared: LongArray) -> None:
        """``shared``: the tensors of the graph's first copy, whose weights are these."""
        self.first_op = first_op
        self.tensors[:] = np.where(self.is_new, first_tensor + np.cumsum(self.is_new) - 1, shared)

    def share(self, shared: Mapping[int, int], first: LongArray) -> LongArray:
        """``[K]``: the tensors of the union, where weights are those of the first graph."""
        own = np.fromiter(shared, np.int64)
        self.is_new[own] = False
        self.tensors[own] = first[np.fromiter(shared.values(), np.int64)]
        return self.tensors

    def new(self, values: NDArray[Any]) -> NDArray[Any]:
        chosen: NDArray[Any] = values[self.is_new]
        return chosen

    def producers(self) -> IntArray:
        made = self.new(self.graph.tensor_producer)
        moved: IntArray = np.where(made == NO_PRODUCER, NO_PRODUCER, made + self.first_op).astype(np.int32)
        return moved

    def reads(self) -> LongArray:
        """``[reads, 3]``: tensor and op in the union, elements."""
        graph = self.graph
        tensors = self.tensors[graph.reader_tensor]
        reads: LongArray = np.stack([tensors, graph.reader_op + self.first_op, graph.reader_elements], axis=1)
        return reads

    def rules(self) -> list[OpRule | None]:
        rows = self.graph.op_rules or repeat(None, self.graph.num_ops)
        return [
            row and row._replace(operands=self._moved(row.operands), results=self._moved(row.results))
            for row in rows
        ]

    def states(self) -> list[State]:
        return [
            state._replace(read=int(self.tensors[state.read]), next=int(self.tensors[state.next]))
            for state in self.graph.states
        ]

    def _moved(self, tensors: tuple[int, ...]) -> tuple[int, ...]:
        return tuple(self.tensors[list(tensors)].tolist())

    def unknown_ops(self) -> list[UnknownOp]:
        return [op._replace(name=self.prefix + op.name) for op in self.graph.unknown_ops]
