"""Defines relays: expands a graph and plan into ones with relays as ops (design section 8).

A *relay* of a tensor on a chip is a ``data_movement`` kernel of its own that reads and
writes the tensor once; its output shares the double buffer of its input.

An op or relay on chip c reads a tensor from its last relay before c, or else from the producer.
Graph outputs leave only from originals. This is the definition, in plain NumPy;
:mod:`go_opt.env.copies.expanded_tables` is its fast twin on cost tables.

Axes: ``N`` ops, ``K`` tensors, ``P`` relays.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from go_opt.common.arrays import IntArray, LongArray, row_pointers
from go_opt.env.copies.stages import size_by_chip
from go_opt.env.cost.tables import COPY_TYPE
from go_opt.env.kernels.numbering import number_kernels
from go_opt.env.target import Target
from go_opt.errors import PlanError
from go_opt.model.graph import DATA_MOVEMENT, NO_PRODUCER, Graph
from go_opt.model.plan import Plan

_NONE: Final = -1


class Relays(NamedTuple):
    """The relays of a plan, each pair once. Axis: ``P`` relays."""

    tensor: IntArray  # [P] ascending
    chip: IntArray  # [P] ascending for each tensor


def relay_name(tensor: str, chip: int) -> str:
    """The name of the relay of ``tensor`` on ``chip``, and of its output."""
    return f"{tensor}/relay {chip}"


def relays_of(graph: Graph, plan: Plan) -> Relays:
    """The relays of ``plan`` as arrays.

    Raises:
      PlanError: a relay's tensor is not in the graph, or no op produces it.
    """
    pairs = {(_relayed_tensor(graph, relay.tensor), chip) for relay in plan.relays for chip in relay.chips}
    rows = np.array(sorted(pairs), dtype=np.int32).reshape(-1, 2)
    return Relays(rows[:, 0].copy(), rows[:, 1].copy())


def expand_plan(graph: Graph, target: Target, plan: Plan) -> tuple[Graph, Plan]:
    """The graph with an op for every relay, and its plan.

    Relays follow the kernel that produces their tensor. A plan without relays is returned unchanged.

    Raises:
      PlanError: a relay's tensor is not in the graph, or no op produces it.
    """
    return _expanded(graph, target, plan) if plan.relays else (graph, plan)


@lru_cache(maxsize=8)
def _expanded(graph: Graph, target: Target, plan: Plan) -> tuple[Graph, Plan]:
    numbered = _Numbered(graph, plan)
    stored = numbered.storage_order()
    index = np.empty(len(stored), np.int32)
    index[stored] = np.arange(len(stored))
    expanded = numbered.graph_of(stored, index)
    alone = int(plan.fusion_group.max()) + 1 + np.arange(len(stored) - graph.num_ops)
    placement = np.concatenate([plan.placement, numbered.relays.chip])
    size = size_by_chip(plan.placement, plan.replication, target.num_chips)
    return expanded, Plan.create(
        expanded,
        target.source,
        target.fingerprint,
        placement=placement[stored],
        order=index[numbered.order()],
        fusion_group=np.concatenate([plan.fusion_group, alone])[stored],
        replication=size[placement[stored]],
        provenance="relays as ops",
        forwards=plan.forwards,
    )


class _Numbered:
    """Ops and tensors by number: those of the graph, then one for each relay."""

    def __init__(self, graph: Graph, plan: Plan) -> None:
        self.graph, self.plan, self.relays = graph, plan, relays_of(graph, plan)
        self.producer = graph.tensor_producer[self.relays.tensor]  # [P]

    def source(self, tensor: NDArray, chip: NDArray) -> LongArray:
        """The last relay of ``tensor`` before ``chip``, or the tensor itself."""
        chips = (self.plan.placement, self.relays.chip)
        wide = np.int64(1 + max(int(of.max(initial=0)) for of in chips))
        relays = self.relays.tensor * wide + self.relays.chip
        last = np.searchsorted(relays, tensor * wide + chip) - 1
        is_of_tensor = np.append(self.relays.tensor, _NONE)[last] == tensor
        return np.where(is_of_tensor, self.graph.num_tensors + last, tensor)

    def reads(self) -> tuple[NDArray, NDArray, NDArray]:
        """``(tensor, op, elements touched)`` of every read."""
        graph, (relayed, chip) = self.graph, self.relays
        of_ops = self.source(graph.reader_tensor, self.plan.placement[graph.reader_op])
        return (
            np.concatenate([of_ops, self.source(relayed, chip)]),
            np.concatenate([graph.reader_op, graph.num_ops + np.arange(len(relayed))]),
            np.concatenate([graph.reader_elements, graph.tensor_elements[relayed]]),
        )

    def storage_order(self) -> LongArray:
        """Op numbers: each op, then the relays of its outputs; a topological order."""
        return np.argsort(np.concatenate([np.arange(self.graph.num_ops), self.producer]), kind="stable")

    def order(self) -> LongArray:
        """Op numbers in the order of execution."""
        order = self.plan.order
        place = np.empty(len(order), np.int64)
        place[order] = np.arange(len(order))
        kernel = number_kernels(order, self.plan.fusion_group)
        before = np.concatenate([kernel, kernel[self.producer]])
        is_relay = np.repeat([False, True], [len(order), len(self.producer)])
        return np.lexsort((np.concatenate([place, place[self.producer]]), is_relay, before))

    def graph_of(self, stored: LongArray, index: IntArray) -> Graph:
        """The graph with ops in the order ``stored``; ``index`` is the place of each op in it."""
        graph, relayed = self.graph, self.relays.tensor
        num_relays = len(relayed)
        tensor_of = np.concatenate([np.arange(graph.num_tensors), relayed])
        has_producer = graph.tensor_producer != NO_PRODUCER
        producer = np.where(has_producer, index[graph.tensor_producer], NO_PRODUCER)
        tensor, reader, elements = self.reads()
        by_tensor = np.lexsort((index[reader], tensor))
        pairs = zip(*self.relays, strict=True)
        names = [relay_name(graph.tensor_names[k], chip) for k, chip in pairs]
        op_names, op_types = [*graph.op_names, *names], [*graph.op_types, *[COPY_TYPE] * num_relays]
        rules = [*graph.op_rules, *[None] * num_relays]

        def per_op(of_ops: NDArray, of_relays: NDArray) -> NDArray:
            return _frozen(np.concatenate([of_ops, of_relays])[stored], of_ops)

        def per_kind(by_kind: Mapping[str, NDArray], of_relays: float | bool) -> dict[str, NDArray]:
            return {kind: per_op(values, np.full(num_relays, of_relays)) for kind, values in by_kind.items()}

        return Graph(
            name=graph.name,
            op_names=tuple(op_names[op] for op in stored),
            op_types=tuple(op_types[op] for op in stored),
            op_class=per_op(graph.op_class, np.full(num_relays, DATA_MOVEMENT)),
            op_flops=per_op(graph.op_flops, np.zeros(num_relays)),
            op_dtype=per_op(graph.op_dtype, graph.tensor_dtype[relayed]),
            tensor_names=(*graph.tensor_names, *names),
            tensor_elements=_frozen(graph.tensor_elements[tensor_of], graph.tensor_elements),
            tensor_dtype=_frozen(graph.tensor_dtype[tensor_of], graph.tensor_dtype),
            tensor_kind=_frozen(graph.tensor_kind[tensor_of], graph.tensor_kind),
            tensor_producer=_frozen(
                np.concatenate([producer, index[graph.num_ops :]]), graph.tensor_producer
            ),
            tensor_is_output=_frozen(
                np.concatenate([graph.tensor_is_output, np.zeros(num_relays)]), graph.tensor_is_output
            ),
            reader_ptr=_frozen(row_pointers(tensor[by_tensor], len(tensor_of)), graph.reader_ptr),
            reader_op=_frozen(index[reader[by_tensor]], graph.reader_op),
            reader_elements=_frozen(elements[by_tensor], graph.reader_elements),
            measured_s=per_kind(graph.measured_s, np.nan),
            excluded=per_kind(graph.excluded, False),
            bindings=graph.bindings,
            precision=graph.precision,
            states=graph.states,
            sequences=graph.sequences,
            host_states=graph.host_states,
            op_rules=tuple(rules[op] for op in stored) if graph.op_rules else (),
        )


def _relayed_tensor(graph: Graph, name: str) -> int:
    tensor = graph.tensor_index.get(name)
    if tensor is None:
        raise PlanError(f"plan: relays: the graph has no tensor {name[:80]!r}.", field="relays")
    if graph.tensor_producer[tensor] == NO_PRODUCER:
        raise PlanError(
            f"plan: relays: no op produces tensor {name[:80]!r}; the host sends it to every reader.",
            field="relays",
        )
    return tensor


def _frozen(values: NDArray, like: NDArray) -> NDArray:
    array = values.astype(like.dtype)
    array.flags.writeable = False
    return array
