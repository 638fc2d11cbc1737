"""A graph while rewrites are rechecked: its ops and tensors in words that do not depend on numbers."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from go_opt.model.dtypes import IS_FLOATING
from go_opt.model.graph import DATA_MOVEMENT, WEIGHT, Graph
from go_opt.model.rule import Access, Dimension, Rule, places


class Tensor(NamedTuple):
    elements: int
    dtype: int
    kind: int
    is_output: bool = False


class Op(NamedTuple):
    """An op in words that do not depend on the numbers of a graph."""

    op_type: str
    op_class: int
    flops: float
    dtype: int
    on_chips: tuple[tuple[str, float, bool], ...]  # by kind: measured seconds, or -1; whether excluded
    reads: tuple[tuple[str, int], ...]  # sorted: tensor, elements touched
    writes: tuple[str, ...]
    rule: Rule | None = None
    operands: tuple[str, ...] = ()
    results: tuple[str, ...] = ()


class WrongRewriteError(Exception):
    """What does not hold of a rewrite."""


class RewriteState:
    """A graph as sent, and what becomes of it."""

    def __init__(self, sent: Graph) -> None:
        self.sent = sent
        self.tensors, self.ops = tensors_of(sent), ops_of(sent)
        self.readers: dict[str, list[str]] = defaultdict(list)
        for name, op in self.ops.items():
            self.note(name, op)
        self.touched = {sent.tensor_names[k] for state in sent.states for k in (state.read, state.next)}
        self.touched |= {name for name, tensor in self.tensors.items() if tensor.elements == 0}

    def note(self, name: str, op: Op) -> None:
        for tensor, _ in op.reads:
            self.readers[tensor].append(name)

    def split(self, last: Op, writes: Sequence[str]) -> Op:
        reads = ((last.writes[0], self.tensors[last.writes[0]].elements),)
        return Op("Split", DATA_MOVEMENT, 0.0, last.dtype, last.on_chips, reads, tuple(writes))

    def with_operands(self, op: Op, operands: Sequence[str], rule: Rule, flops: float, writes: str) -> Op:
        touched = dict(op.reads)
        reads = sorted((one, touched.get(one, self.tensors[one].elements)) for one in {*operands})
        made = op._replace(flops=flops, reads=tuple(reads), writes=(writes,), results=(writes,))
        return made._replace(rule=rule, operands=tuple(operands))

    def follows(self, before: Op, op: Op, name: str) -> int:
        """Which operand of ``op`` is what ``before`` writes, which nothing else reads."""
        tensor = before.writes[0]
        if self.readers[tensor] != [name] or self.tensors[tensor].is_output or op.operands.count(tensor) != 1:
            raise WrongRewriteError(f"op {name!r} does not alone read what the op before it writes")
        if self.tensors[tensor].dtype != self.tensors[op.writes[0]].dtype:
            raise WrongRewriteError(f"op {name!r} writes another type")
        return op.operands.index(tensor)

    def is_constant(self, name: str) -> bool:
        return self.tensors[name].kind == WEIGHT and bool(IS_FLOATING[self.tensors[name].dtype])

    def add(self, name: str, tensor: Tensor) -> None:
        if name in self.tensors:
            raise WrongRewriteError(f"tensor {name!r} is there already")
        self.tensors[name] = tensor

    def add_sum(self, name: str, of: Sequence[str]) -> None:
        elements = sum(self.tensors[one].elements for one in of)
        self.add(name, self.tensors[of[0]]._replace(elements=elements, is_output=False))

    def replace(self, names: Sequence[str], made: Mapping[str, Op]) -> None:
        for name in names:
            for tensor, _ in self.ops.pop(name).reads:
                self.readers[tensor].remove(name)
        for name, op in made.items():
            self.note(name, op)
        if taken := self.ops.keys() & made.keys():
            raise WrongRewriteError(f"op {min(taken)!r} is there already")
        self.ops |= made

    def differences(self, rewritten: Graph) -> Iterator[str]:
        """Where the rewritten graph is not what it must be."""
        ops, tensors = ops_of(rewritten), tensors_of(rewritten)
        for name in sorted(self.ops.keys() ^ ops.keys()):
            yield f"op {name!r} is {'missing' if name in self.ops else 'not of a rewrite'}."
        for name in self.ops.keys() & ops.keys():
            want, found = self.ops[name], ops[name]
            if want.op_type in ("Concat", "Split") and want.rule is None:  # its rule follows from its shapes
                found = found._replace(rule=None, operands=(), results=())
            if abs(want.flops - found.flops) > 1e-9 * want.flops or want._replace(flops=found.flops) != found:
                yield f"op {name!r} is not what the rewrites make of it."
        used = {tensor for op in self.ops.values() for tensor in (*op.writes, *(one for one, _ in op.reads))}
        used |= {name for name in self.touched if self.tensors[name].elements}
        wanted = {name: self.tensors[name] for name in used}
        for name in sorted(wanted.keys() ^ tensors.keys()):
            yield f"tensor {name!r} is {'missing' if name in wanted else 'not of a rewrite'}."
        for name in sorted(wanted.keys() & tensors.keys()):
            if wanted[name] != tensors[name]:
                yield f"tensor {name!r} is not what the rewrites make of it."
        if Counter(_states(self.sent)) != Counter(_states(rewritten)):
            yield "the states are not as they were."
        if rewritten.fingerprint != self.sent.fingerprint or rewritten.bindings != self.sent.bindings:
            yield "the rewritten graph is not of the graph as sent."


class Extent(NamedTuple):
    """Where factors that lie side by side are in a tensor."""

    blocks: int  # before them
    size: int
    behind: int  # elements


def extent_of(rule: Rule, access: Access, factors: Dimension) -> Extent | None:
    """Where some factors lie, in this order; None if they do not lie side by side."""
    found = [one for one in places(rule, access) if one.piece in factors]
    if tuple(one.piece for one in found) != factors or not found:
        return None
    if any(a.blocks * a.size != b.blocks for a, b in pairwise(found)):
        return None
    size = found[-1].blocks * found[-1].size // found[0].blocks
    return Extent(found[0].blocks, size, found[-1].behind)


def known_rule(op: Op) -> Rule:
    if op.rule is None:
        raise WrongRewriteError("an op has no rule")
    return op.rule


def _states(graph: Graph) -> Iterator[tuple]:
    names = graph.tensor_names
    return ((names[one.read], names[one.next], *one[2:]) for one in graph.states)


def tensors_of(graph: Graph) -> dict[str, Tensor]:
    columns = (graph.tensor_elements, graph.tensor_dtype, graph.tensor_kind, graph.tensor_is_output)
    rows = zip(graph.tensor_names, *(one.tolist() for one in columns), strict=True)
    return {name: Tensor(*rest) for name, *rest in rows}


def ops_of(graph: Graph) -> dict[str, Op]:
    names, found = graph.tensor_names, {}
    for op, name in enumerate(graph.op_names):
        row = graph.rule_of(op)
        seconds = {kind: -1.0 if np.isnan(s[op]) else float(s[op]) for kind, s in graph.measured_s.items()}
        excluded = {kind: bool(one[op]) for kind, one in graph.excluded.items()}
        chips = (
            (kind, seconds.get(kind, -1.0), excluded.get(kind, False))
            for kind in sorted({*seconds, *excluded})
        )
        found[name] = Op(
            graph.op_types[op],
            int(graph.op_class[op]),
            float(graph.op_flops[op]),
            int(graph.op_dtype[op]),
            tuple(one for one in chips if one[1:] != (-1.0, False)),
            tuple(sorted((names[k], touched) for k, touched in graph.reads_of(op))),
            tuple(names[k] for k in graph.outputs_of(op)),
            None if row is None else row.rule,
            () if row is None else tuple(names[k] for k in row.operands),
            () if row is None else tuple(names[k] for k in row.results),
        )
    return found
