"""Several models as one graph, each as often as its share of the rate says; copies share their weights.

Two graphs of one network, such as that of a prompt and that of a step, have weights in common. Names differ,
as exporters number what they transpose or fold. So weights of ONNX files are matched by their content: the
same elements in any order, which a transposed weight has too. Graphs without values of weights are matched by
the order of what reads weights: the same type of op, elements and type of numbers, in the same succession.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import replace
from difflib import SequenceMatcher
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from go_opt.errors import ModelError
from go_opt.model.bindings import Bindings
from go_opt.model.builder import GraphBuilder
from go_opt.model.dtypes import DTYPES
from go_opt.model.graph import NO_PRODUCER, OP_CLASSES, TENSOR_KINDS, WEIGHT, Graph, UnknownOp

UNION_PREFIX: Final = "union:"
SHARED: Final = "shared:"  # after the prefix: the second model has the weights that are those of the first
MAX_COPIES: Final = 32  # of all models together
Share = tuple[int, str]  # copies, and the model as load() takes it
Contents = Mapping[str, Hashable]  # by name of a weight
_BITS: Final = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}


def union_name(models: Sequence[str], rates: str | None = None, *, is_shared: bool = False) -> str:
    """The name by which the union of models is loaded: ``union:2*a.onnx+1*b.onnx``.

    Args:
      rates: such as ``2:1``; None: all are alike.
      is_shared: whether the second model has weights of the first.
    """
    copies_of = zip(parse_rates(rates, models), models, strict=True)
    return UNION_PREFIX + SHARED * is_shared + "+".join(f"{copies}*{model}" for copies, model in copies_of)


def prefix_of(number: int, copy: int) -> str:
    """What the names of a model begin with in a union: the model's number from 1, its copy from 0."""
    return f"{number}.{copy + 1}/" if copy else f"{number}/"


def parse_rates(text: str | None, models: Sequence[str]) -> tuple[int, ...]:
    """The rates of ``2:1``, in lowest terms; without a text all are alike."""
    texts = ["1"] * len(models) if text is None else text.split(":")
    if not all(one.isascii() and one.isdigit() and len(one) < 6 and int(one) for one in texts):
        raise ModelError(f"--rates must be whole numbers such as 2:1, not {str(text)[:60]!r}.", field="rates")
    if len(texts) != len(models):
        raise ModelError(f"--rates has {len(texts)} numbers for {len(models)} models.", field="rates")
    rates = list(map(int, texts))
    least = tuple(rate // math.gcd(*rates) for rate in rates)
    if sum(least) > MAX_COPIES:
        raise ModelError(
            f"--rates {text} needs {sum(least)} copies, the limit is {MAX_COPIES}.", field="rates"
        )
    return least


def shares_of(name: str) -> list[Share]:
    """The models of a union's name."""
    shares: list[Share] = []
    for part in name.removeprefix(UNION_PREFIX).removeprefix(SHARED).split("+"):
        copies, times, model = part.partition("*")
        if not (
            times and model and copies.isascii() and copies.isdigit() and len(copies) < 6 and int(copies)
        ):
            raise ModelError(
                f"{name[:100]!r} must be like {UNION_PREFIX}2*a.onnx+1*b.onnx; paths without + and *.",
                field="model",
            )
        shares.append((int(copies), model))
    if sum(copies for copies, _ in shares) > MAX_COPIES:
        raise ModelError(f"{name[:100]!r} has more than {MAX_COPIES} copies, the limit.", field="model")
    return shares


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
    builder, order = GraphBuilder(name, precision=graphs[0].precision, bindings=bindings), list[str]()
    unknown, unpaired = list[UnknownOp](), list[str]()
    for model, (graph, number) in enumerate(zip(graphs, copies, strict=True), 1):
        if graph.has_scope("model") or graph.host_states:
            problem = "has states that are not of sequences, so that it shares a package with no other"
            raise ModelError(f"model {graph.name[:100]!r} {problem}.", field="model")
        first = prefix_of(model, 0)
        unknown += [op._replace(name=first + op.name) for op in graph.unknown_ops]
        unpaired += [first + tensor for tensor in graph.unpaired_states]
        known = shared if model == len(graphs) else {}
        named = {k: prefix_of(1, 0) + graphs[0].tensor_names[of] for k, of in known.items()}
        for copy in range(number):
            prefix = prefix_of(model, copy)
            names = [named.get(k, prefix + tensor) for k, tensor in enumerate(graph.tensor_names)]
            new = [k for k in range(graph.num_tensors) if k not in named]
            order += [names[k] for k in new]
            _add(builder, graph, prefix, names, new)
            named = {k: names[k] for k in np.flatnonzero(graph.tensor_kind == WEIGHT).tolist()}
    return replace(builder.build(order), unknown_ops=tuple(unknown), unpaired_states=tuple(unpaired))


def _add(builder: GraphBuilder, graph: Graph, prefix: str, names: Sequence[str], new: Sequence[int]) -> None:
    """Add a copy of a graph, whose tensors have these names; those that are not ``new`` are there already."""
    elements, dtypes = graph.tensor_elements.tolist(), [DTYPES[code] for code in graph.tensor_dtype]
    for k in new:
        if graph.tensor_producer[k] == NO_PRODUCER:
            builder.add_tensor(names[k], elements[k], dtypes[k], TENSOR_KINDS[graph.tensor_kind[k]])
        elif graph.tensor_is_output[k]:
            builder.mark_output(names[k])
    for op, op_name in enumerate(graph.op_names):
        builder.add_op(
            prefix + op_name,
            graph.op_types[op],
            OP_CLASSES[graph.op_class[op]],
            flops=float(graph.op_flops[op]),
            dtype=DTYPES[graph.op_dtype[op]],
            reads=[(names[k], touched) for k, touched in graph.reads_of(op)],
            writes=[(names[k], elements[k], dtypes[k]) for k in graph.outputs_of(op)],
            measured_s=graph.measured_of(op),
            excluded_kinds=graph.excluded_of(op),
        )
        if row := graph.rule_of(op):
            operands, results = ([names[k] for k in tensors] for tensors in (row.operands, row.results))
            builder.set_rule(prefix + op_name, row.rule, operands, results)
    for state in graph.states:
        builder.add_state(names[state.read], names[state.next], state.scope)


def matched_by_order(first: Graph, second: Graph) -> dict[int, int]:
    """The weights of ``second`` that are those of ``first`` where these are read in the same succession."""
    ours, others = _read_weights(first), _read_weights(second)
    kinds = [[_kind(graph, k) for k in row] for graph, row in ((first, ours), (second, others))]
    blocks = SequenceMatcher(None, kinds[0], kinds[1], autojunk=False).get_matching_blocks()
    return {others[b.b + i]: ours[b.a + i] for b in blocks for i in range(b.size)}


def matched_by_content(first: Graph, second: Graph, ours: Contents, others: Contents) -> dict[int, int]:
    """The weights of ``second`` that have the elements of one of ``first``; of several alike, in turn."""
    found: dict[Hashable, list[int]] = defaultdict(list)
    for k in _read_weights(first):
        if first.tensor_names[k] in ours:
            found[ours[first.tensor_names[k]]].append(k)
    matched = {}
    for k in _read_weights(second):
        alike = found.get(others.get(second.tensor_names[k]))
        if alike:
            matched[k] = alike.pop(0) if len(alike) > 1 else alike[0]
    return matched


def contents_of(path: Path) -> Contents:
    """What the initializers of an ONNX file hold, whatever the order of their elements."""
    from onnx import load, numpy_helper

    tensors = load(path).graph.initializer
    arrays = {tensor.name: numpy_helper.to_array(tensor, str(path.parent)) for tensor in tensors}
    return {name: content(array) for name, array in arrays.items() if array.dtype.itemsize in _BITS}


def content(array: NDArray[Any]) -> Hashable:
    """Equal for arrays of one type with the same elements, in any order; else equal by a chance of 2^-128."""
    bits = np.ascontiguousarray(array).reshape(-1).view(_BITS[array.dtype.itemsize]).astype(np.uint64)
    sums = []
    for seed in (0x9E3779B97F4A7C15, 0xD1B54A32D192ED03):  # splitmix64 of each element, added up
        mixed = (bits + np.uint64(1)) * np.uint64(seed)
        for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
            mixed = (mixed ^ (mixed >> np.uint64(shift))) * np.uint64(factor)
        sums.append(int((mixed ^ (mixed >> np.uint64(31))).sum(dtype=np.uint64)))
    return array.dtype.str, array.size, *sums


def _read_weights(graph: Graph) -> list[int]:
    """Weights by the first op that reads them, then by number."""
    readers = {int(k): graph.readers_of(int(k)) for k in np.flatnonzero(graph.tensor_kind == WEIGHT)}
    return sorted((k for k, ops in readers.items() if ops), key=lambda k: (min(readers[k]), k))


def _kind(graph: Graph, weight: int) -> tuple[str, int, int]:
    reader = graph.op_types[min(graph.readers_of(weight))]
    return reader, int(graph.tensor_elements[weight]), int(graph.tensor_dtype[weight])
