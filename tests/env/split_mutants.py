"""Split graphs with one fault, which a recheck must find."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any, Final

import numpy as np

from go_opt.env.copies.parts import SplitGraph
from go_opt.errors import GraphError
from go_opt.model.builder import GraphBuilder
from go_opt.model.dtypes import DTYPES
from go_opt.model.graph import NO_PRODUCER, OP_CLASSES, TENSOR_KINDS, WEIGHT, Graph

Op = dict[str, Any]  # arguments of GraphBuilder.add_op


class Editable:
    """A graph whose ops, sources and outputs can be changed."""

    def __init__(self, split: SplitGraph) -> None:
        graph = split.graph
        self.split, self.graph = split, graph
        self.ops: list[Op] = [
            {
                "name": name,
                "op_type": graph.op_types[op],
                "op_class": OP_CLASSES[graph.op_class[op]],
                "flops": float(graph.op_flops[op]),
                "dtype": DTYPES[graph.op_dtype[op]],
                "reads": [(graph.tensor_names[k], touched) for k, touched in graph.reads_of(op)],
                "writes": [
                    (graph.tensor_names[k], int(graph.tensor_elements[k]), DTYPES[graph.tensor_dtype[k]])
                    for k in graph.outputs_of(op)
                ],
            }
            for op, name in enumerate(graph.op_names)
        ]
        self.sources = {
            graph.tensor_names[k]: (
                int(graph.tensor_elements[k]),
                DTYPES[graph.tensor_dtype[k]],
                TENSOR_KINDS[graph.tensor_kind[k]],
            )
            for k in np.flatnonzero(graph.tensor_producer == NO_PRODUCER).tolist()
        }
        self.outputs = [graph.tensor_names[k] for k in np.flatnonzero(graph.tensor_is_output).tolist()]
        # They only put ops in order; with one more, fewer plans are possible, and those are right.
        self.orders = {
            name for name, size in zip(graph.tensor_names, graph.tensor_elements, strict=True) if size == 0
        }
        self.states = [
            (graph.tensor_names[state.read], graph.tensor_names[state.next], state.scope)
            for state in graph.states
        ]

    def built(self) -> Graph | None:
        """The graph; None if it is none, for example with a tensor that nothing writes."""
        builder = GraphBuilder(self.graph.name, precision=self.graph.precision)
        try:
            for name, (elements, dtype, kind) in self.sources.items():
                builder.add_tensor(name, elements, dtype, kind)
            for op in self.ops:
                builder.add_op(**op)
            for name in self.outputs:
                builder.mark_output(name)
            for state in self.states:
                builder.add_state(*state)
            return builder.build()
        except GraphError:
            return None


Change = Callable[[np.random.Generator, Editable], bool]  # whether anything was changed


def _any(rng: np.random.Generator, found: list[Any]) -> Any:
    return found[int(rng.integers(len(found)))] if found else None


def another_read(rng: np.random.Generator, graph: Editable) -> bool:
    """An op reads another tensor with as many elements, which is no other copy."""
    op = _any(rng, [op for op in graph.ops if op["reads"]])
    place = int(rng.integers(len(op["reads"])))
    name, touched = op["reads"][place]
    if name in graph.orders:
        return False
    elements = graph.graph.tensor_elements[graph.graph.tensor_index[name]]

    def content(tensor: str) -> object:
        held = graph.split.held.get(tensor)
        return held if held is not None and held.piece else original(tensor)

    same = [
        other
        for other, size in zip(graph.graph.tensor_names, graph.graph.tensor_elements, strict=True)
        if content(other) != content(name)
        and size == elements
        and other not in {written for written, *_ in op["writes"]}
    ]
    if same:
        op["reads"][place] = _any(rng, same), touched
    return bool(same)


def a_read_less(rng: np.random.Generator, graph: Editable) -> bool:
    """What joins, adds or computes leaves a tensor out."""
    op = _any(rng, [op for op in graph.ops if len(op["reads"]) > 1])
    if op:
        op["reads"].pop(int(rng.integers(len(op["reads"]))))
    return op is not None


def a_read_more(rng: np.random.Generator, graph: Editable) -> bool:
    """What joins, adds or computes has one more tensor, such as a bias or a term that was added before."""
    op = _any(rng, graph.ops)
    name = _any(rng, list(graph.graph.tensor_names))
    if name in graph.orders | {read for read, _ in op["reads"]} or name in {
        written for written, *_ in op["writes"]
    }:
        return False
    op["reads"].append((name, None))
    return True


def an_op_less(rng: np.random.Generator, graph: Editable) -> bool:
    """An op is left out with all that reads what it writes."""
    op = _any(rng, graph.ops)
    graph.ops.remove(op)
    for other in graph.ops:
        other["reads"] = [one for one in other["reads"] if one[0] not in {name for name, *_ in op["writes"]}]
    graph.outputs = [one for one in graph.outputs if one not in {name for name, *_ in op["writes"]}]
    return True


def given_instead(rng: np.random.Generator, graph: Editable) -> bool:
    """A tensor that an op computes is given by the host, or is a weight."""
    op = _any(rng, [op for op in graph.ops if op["writes"]])
    graph.ops.remove(op)
    kind = str(rng.choice(["input", "weight"]))
    graph.sources |= {name: (elements, dtype, kind) for name, elements, dtype in op["writes"]}
    return True


def another_field(rng: np.random.Generator, graph: Editable) -> bool:
    op = _any(rng, graph.ops)
    field, values = _any(rng, [
        ("op_type", ["Mul", "Slice", "Concat", "Add"]), ("op_class", list(OP_CLASSES)),
        ("flops", [op["flops"] * 2 + 1, op["flops"] + 1]), ("dtype", ["int8"]),
        ("excluded_kinds", [("chip",)]), ("measured_s", [{"chip": 1e-6}]),
    ])  # fmt: skip
    value = _any(rng, values)
    changed = value != op.get(field)
    op[field] = value
    return bool(changed)


def another_size(rng: np.random.Generator, graph: Editable) -> bool:
    """An op touches, or writes, one element more or less."""
    op = _any(rng, graph.ops)
    step = int(rng.choice([-1, 1]))
    if rng.random() < 0.5 and op["reads"]:
        place = int(rng.integers(len(op["reads"])))
        name, touched = op["reads"][place]
        op["reads"][place] = name, touched + step
        return bool(touched + step <= graph.graph.tensor_elements[graph.graph.tensor_index[name]])
    place = int(rng.integers(len(op["writes"])))
    name, elements, dtype = op["writes"][place]
    op["writes"][place] = name, elements + step, dtype
    return True


def another_source(rng: np.random.Generator, graph: Editable) -> bool:
    """An input or weight has another kind, size or type."""
    name = _any(rng, list(graph.sources))
    elements, dtype, kind = graph.sources[name]
    other = "input" if kind == TENSOR_KINDS[WEIGHT] else TENSOR_KINDS[WEIGHT]
    graph.sources[name] = _any(
        rng, [(elements, dtype, other), (elements + 1, dtype, kind), (elements, "int8", kind)]
    )
    return True


def other_outputs(rng: np.random.Generator, graph: Editable) -> bool:
    if rng.random() < 0.5:
        graph.outputs.remove(_any(rng, graph.outputs))
        return True
    name = _any(rng, list(graph.graph.tensor_names))
    is_new = name not in graph.outputs
    graph.outputs.append(name)
    return is_new


def original(name: str) -> str:
    """The tensor of which this is a copy, of the last level."""
    return re.split("/(?:replica )?copy ", name)[0]


def another_pair(rng: np.random.Generator, graph: Editable) -> bool:
    """Two parts of states get each other's next value."""
    if len(graph.states) < 2:
        return False
    one, other = rng.choice(len(graph.states), 2, replace=False).tolist()
    (read, following, scope), (other_read, other_following, other_scope) = (
        graph.states[one],
        graph.states[other],
    )
    are_copies = original(read) == original(other_read)
    if are_copies or graph.sources[read][1:] != graph.sources[other_read][1:]:
        return False
    graph.states[one] = read, other_following, scope
    graph.states[other] = other_read, following, other_scope
    return True


def another_state(rng: np.random.Generator, graph: Editable) -> bool:
    """A state is an input of each inference, or has another scope, or another next value."""
    if not graph.states:
        return False
    read, following, scope = graph.states.pop(int(rng.integers(len(graph.states))))
    kind = int(rng.integers(3))
    if kind == 0:
        elements, dtype, _ = graph.sources[read]
        graph.sources[read] = elements, dtype, "input"
        return True
    if kind == 1:
        graph.states.append((read, following, "model" if scope == "sequence" else "sequence"))
        return True
    other = _any(
        rng, [name for op in graph.ops for name, *_ in op["writes"] if original(name) != original(following)]
    )
    graph.states.append((read, other, scope))
    return other is not None


CHANGES: Final[tuple[Change, ...]] = (
    another_read, a_read_less, a_read_more, an_op_less, given_instead, another_field, another_size,
    another_source, other_outputs, another_pair, another_state,
)  # fmt: skip


def mutants(rng: np.random.Generator, split: SplitGraph) -> Iterator[tuple[str, Graph]]:
    """Graphs with one fault each, with what it is."""
    rebuilt = Editable(split).built()
    assert rebuilt is not None
    for change in CHANGES:
        changed = Editable(split)
        if change(rng, changed):
            graph = changed.built()
            if graph is not None and graph.fingerprint != rebuilt.fingerprint:
                yield change.__name__, graph
