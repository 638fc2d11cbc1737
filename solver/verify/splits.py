"""Rechecks splits by definition: parts compute the op, what joins them joins all, other ops are unchanged.

What each tensor holds is claimed by :mod:`go_opt.env.copies.splits`. Here each claim is proven from those of
the tensors that the op reads: a part writes the points of its ranges and reads what its rule says that they
need, and what takes, joins or adds has no more and no less than what it writes.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from go_opt.env.copies.splits import Held, Part, SplitGraph, split_graph_and_parts
from go_opt.model.graph import MATRIX, WEIGHT, Graph, OpRule
from go_opt.model.plan import Split
from go_opt.model.rule import NO_FACTOR, Access, Affine, Rule, multiplicands

_SUMS = {"ReduceMax": "Max", "ReduceMin": "Min"}  # of partial results; others are added
_Cuts = tuple[tuple[int, int, int], ...]  # period, start, stop


class _Op(NamedTuple):
    """An op in words that do not depend on the numbers of a graph."""

    kind: tuple[str, int, int]  # type, class, dtype
    flops: float
    reads: Counter[tuple[str, int, bool]]  # tensor, elements touched, whether a weight
    writes: tuple[tuple[str, int, int], ...]  # tensor, elements, dtype


def broken_splits(whole: Graph, split: Graph, splits: Sequence[Split]) -> Iterator[str]:
    """Yields the errors of ``split``, which must be ``whole`` with the ops of ``splits`` in parts."""
    yield from _Check(whole, split, splits).errors()


class _Check:
    def __init__(self, whole: Graph, split: Graph, splits: Sequence[Split]) -> None:
        self._whole, self._split = whole, split
        claims: SplitGraph = split_graph_and_parts(whole, tuple(splits))
        self._parts, self._held = claims.parts, claims.held
        self._before, self._after = _ops(whole), _ops(split)
        self._terms: dict[str, frozenset[Part]] = {}  # of partial results: the parts that are added in it
        self._number: dict[str, int] = defaultdict(lambda: 1)  # of parts of each op
        for one in splits:
            self._number[one.op] *= one.parts

    def errors(self) -> Iterator[str]:
        whole = self._whole
        of_op: dict[int, list[Part]] = defaultdict(list)
        for name in self._after:
            if name in self._parts:
                of_op[self._parts[name].op].append(self._parts[name])
                yield from self._wrong_part(name)
            elif name not in self._before or whole.op_index[name] in self._divided:
                yield from self._wrong_move(name)
            elif self._after[name] != self._before[name]:
                yield f"op {name!r} was changed."
        for op in self._divided:
            yield from self._wrong_cover(op, of_op[op])
        for name in self._before.keys() - self._after.keys():
            if whole.op_index[name] not in self._divided:
                yield f"op {name!r} was changed."
        yield from self._wrong_outputs()

    @property
    def _divided(self) -> set[int]:
        return {self._whole.op_index[name] for name in self._number if name in self._whole.op_index}

    def _content(self, tensor: str) -> Held | None:
        if tensor in self._held:
            return self._held[tensor]
        return Held(self._whole.tensor_index[tensor], ()) if tensor in self._whole.tensor_index else None

    def _wrong_part(self, name: str) -> Iterator[str]:
        """A part reads what its points need, and writes their results."""
        part, op = self._parts[name], self._after[name]
        row = self._whole.rule_of(part.op)
        assert row is not None
        of = self._before[self._whole.op_names[part.op]]
        where = f"op {name!r}"
        reduced = [one for one in part.ranges if row.rule.factors[one.factor].kind == "reduction"]
        if op.kind != of.kind:
            yield f"{where} is of another type than the op."
        needed = Counter(self._needs(row, part))
        found = Counter((self._content(tensor), touched) for tensor, touched, _ in op.reads.elements())
        if found != needed:
            yield f"{where} does not read what its part needs."
        writes = {(self._content(tensor), elements, dtype) for tensor, elements, dtype in op.writes}
        results = set()
        for k, access in zip(row.results, row.rule.results, strict=True):
            cuts = _cuts(row.rule, access, part)
            dtype = int(self._whole.tensor_dtype[k])
            results.add((Held(k, cuts, bool(reduced)), self._elements(k, cuts), dtype))
        if {(held and (held.tensor, held.piece, held.is_partial), *rest) for held, *rest in writes} != {
            ((held.tensor, held.piece, held.is_partial), *rest) for held, *rest in results
        }:
            yield f"{where} does not write the results of its part."
        if abs(op.flops - self._flops(row, part)) > 1e-9 * max(of.flops, 1.0):
            yield f"{where} does not have the flops of its part."
        if reduced:
            self._terms[op.writes[0][0]] = frozenset([part])

    def _needs(self, row: OpRule, part: Part) -> Iterator[tuple[Held, int]]:
        """What a part must read, with the elements that it touches."""
        reduced = [one for one in part.ranges if row.rule.factors[one.factor].kind == "reduction"]
        is_first = all(one.start == 0 for one in reduced)
        for k, touched in self._whole.reads_of(part.op):
            accesses = [one for of, one in zip(row.operands, row.rule.operands, strict=True) if of == k]
            found = dict.fromkeys(_cuts(row.rule, access, part) for access in accesses) or {(): None}
            is_summed = any(
                _cuts(row.rule, access, part._replace(ranges=tuple(reduced))) for access in accesses
            )
            if reduced and accesses and not is_summed and not is_first:
                continue  # a bias is added once
            for cuts in found:
                elements = int(self._whole.tensor_elements[k])
                share = math.prod(
                    (one.stop - one.start) / row.rule.factors[one.factor].size for one in part.ranges
                )
                is_part = touched != elements
                yield (
                    Held(k, cuts),
                    max(1, math.ceil(touched * share)) if is_part else self._elements(k, cuts),
                )

    def _flops(self, row: OpRule, part: Part) -> float:
        """The share of the op's; what is no multiply-add of a divided sum belongs to its first part."""
        flops, rule = float(self._whole.op_flops[part.op]), row.rule
        share, of_sum, is_first, is_reduced = 1.0, 1.0, True, False
        for one in part.ranges:
            part_share = (one.stop - one.start) / rule.factors[one.factor].size
            if rule.factors[one.factor].kind == "reduction":
                of_sum, is_first, is_reduced = of_sum * part_share, is_first and one.start == 0, True
            else:
                share *= part_share
        once = 0.0
        if is_reduced and self._whole.op_class[part.op] == MATRIX:
            seen = set()
            for i in multiplicands(rule):
                for piece in (piece for dimension in rule.operands[i] for piece in dimension):
                    seen |= {piece.factor, piece.window} if isinstance(piece, Affine) else {piece}
            once = max(0.0, flops - 2.0 * rule.points(seen - {NO_FACTOR}))
        return share * ((flops - once) * of_sum + (once if is_first else 0.0))

    def _wrong_move(self, name: str) -> Iterator[str]:
        """What takes a piece of one tensor, joins pieces that lie side by side, or adds partial results."""
        op, where = self._after[name], f"op {name!r}"
        written = [self._content(tensor) for tensor, _, _ in op.writes]
        read = [self._content(tensor) for tensor, _, _ in op.reads.elements()]
        if len(written) != 1 or written[0] is None or any(one is None for one in read) or not read:
            yield f"{where} is not in the model, nor of a split."
            return
        result, sources = written[0], [one for one in read if one is not None]
        elements = self._elements(result.tensor, result.piece)
        if any(one.tensor != result.tensor for one in sources) or op.writes[0][1] != elements:
            yield f"{where} does not write what it reads."
        elif any(one.is_partial for one in sources):
            yield from self._wrong_sum(name, result)
        elif op.flops or result.is_partial or op.kind[0] not in ("Slice", "Concat"):
            yield f"{where} does not write what it reads."
        elif op.kind[0] == "Slice":
            touched = sum(size for _, size, _ in op.reads.elements())
            if len(sources) != 1 or touched != elements or not _holds(sources[0].piece, result.piece):
                yield f"{where} does not take what it writes."
        elif not _tile([one.piece for one in sources], result.piece):
            yield f"{where} does not join what it writes."

    def _wrong_sum(self, name: str, result: Held) -> Iterator[str]:
        op = self._after[name]
        read = list(op.reads.elements())
        terms = [self._terms.get(tensor, frozenset()) for tensor, _, _ in read]
        added = frozenset().union(*terms)
        one = next(iter(added), None)
        row = None if one is None else self._whole.rule_of(one.op)
        if one is None or row is None or sum(map(len, terms)) != len(added):
            yield f"op {name!r} does not add partial results once."
            return
        contents = {self._content(tensor) for tensor, _, _ in read}
        op_type = _SUMS.get(self._whole.op_types[one.op], "Add")
        all_terms = math.prod(
            len({other.ranges[i] for other in self._parts.values() if other.op == one.op})
            for i, of in enumerate(one.ranges)
            if row.rule.factors[of.factor].kind == "reduction"
        )
        if (
            {held.piece for held in contents if held is not None} != {result.piece}
            or op.kind[0] != op_type
            or op.flops != op.writes[0][1]
            or result.is_partial != (len(added) < all_terms)
        ):
            yield f"op {name!r} does not add all partial results."
        self._terms[op.writes[0][0]] = added

    def _wrong_cover(self, op: int, parts: Sequence[Part]) -> Iterator[str]:
        """The parts of an op are all combinations of ranges that tile its divided factors."""
        name = self._whole.op_names[op]
        row = self._whole.rule_of(op)
        assert row is not None
        by_factor: dict[int, set[tuple[int, int]]] = defaultdict(set)
        for part in parts:
            for one in part.ranges:
                by_factor[one.factor].add((one.start, one.stop))
        number = math.prod(map(len, by_factor.values()))
        is_tiled = all(
            _is_partition(sorted(ranges), row.rule.factors[factor].size)
            for factor, ranges in by_factor.items()
        )
        if len(set(parts)) != len(parts) or not len(parts) == number == self._number[name] or not is_tiled:
            yield f"op {name!r} does not have the {self._number[name]} parts that the plan says."

    def _wrong_outputs(self) -> Iterator[str]:
        """The host reads each output of the model, or pieces that make it up."""
        whole, split = self._whole, self._split
        pieces: dict[int, list[_Cuts]] = defaultdict(list)
        for k in np.flatnonzero(split.tensor_is_output).tolist():
            held = self._content(split.tensor_names[k])
            if held is not None and not held.is_partial:
                pieces[held.tensor].append(held.piece)
        outputs = set(np.flatnonzero(whole.tensor_is_output).tolist())
        if set(pieces) != outputs or not all(_tile(found, ()) for found in pieces.values()):
            yield "the outputs of the model are not as they were."

    def _elements(self, k: int, cuts: _Cuts) -> int:
        elements = int(self._whole.tensor_elements[k])
        for period, start, stop in cuts:
            elements = elements * (stop - start) // period
        return elements


def _cuts(rule: Rule, access: Access, part: Part) -> _Cuts:
    """What the points of a part need of an operand, or write of a result."""
    ranges = {one.factor: (one.start, one.stop) for one in part.ranges}
    found, behind = [], 1
    for piece in reversed([piece for dimension in access for piece in dimension]):
        factor, size = (piece.factor, piece.size) if isinstance(piece, Affine) else (piece, rule.size(piece))
        start, stop = ranges.get(factor, (0, size))
        if isinstance(piece, Affine) and factor in ranges:
            taps = 1 if piece.window == NO_FACTOR else rule.factors[piece.window].size
            first = start * piece.stride - piece.before
            last = (stop - 1) * piece.stride - piece.before + (taps - 1) * piece.dilation
            start, stop = max(first, 0), min(last + 1, size)
        if (start, stop) != (0, size):
            found.append((size * behind, start * behind, stop * behind))
        behind *= size
    return tuple(sorted(found, reverse=True))


def _holds(piece: _Cuts, part: _Cuts) -> bool:
    """Whether a piece, which may be the whole tensor, holds a part of it."""
    if not piece:
        return True
    held = {period: (start, stop) for period, start, stop in piece}
    inside = {period: (start, stop) for period, start, stop in part}
    return all(
        period in inside and start <= inside[period][0] and inside[period][1] <= stop
        for period, (start, stop) in held.items()
    )


def _tile(pieces: Sequence[_Cuts], whole: _Cuts) -> bool:
    """Whether pieces, none of which overlap, make up a piece or, as (), the tensor."""
    if len(set(pieces)) < len(pieces) or not pieces:
        return False
    if len(pieces) == 1:
        return pieces[0] == whole
    limits = {period: (start, stop) for period, start, stop in whole}
    periods = [period for period, _, _ in pieces[0]]
    if any([period for period, _, _ in one] != periods for one in pieces) or not limits.keys() <= set(
        periods
    ):
        return False
    by_period = [sorted({one[i][1:] for one in pieces}) for i in range(len(periods))]
    if len(pieces) != math.prod(map(len, by_period)):
        return False
    return all(
        _is_partition(ranges, *reversed(limits.get(period, (0, period))))
        for period, ranges in zip(periods, by_period, strict=True)
    )


def _is_partition(ranges: Sequence[tuple[int, ...]], stop: int, start: int = 0) -> bool:
    """Whether ranges in order follow each other from ``start`` to ``stop``, none of them empty."""
    ends = [start, *(one[1] for one in ranges)]
    return ends[-1] == stop and all(
        one[0] == end < one[1] for one, end in zip(ranges, itertools.islice(ends, len(ranges)), strict=True)
    )


def _ops(graph: Graph) -> dict[str, _Op]:
    found = {}
    for op, name in enumerate(graph.op_names):
        reads = Counter(
            (graph.tensor_names[k], touched, bool(graph.tensor_kind[k] == WEIGHT))
            for k, touched in graph.reads_of(op)
        )
        writes = tuple(
            (graph.tensor_names[k], int(graph.tensor_elements[k]), int(graph.tensor_dtype[k]))
            for k in graph.outputs_of(op)
        )
        kind = graph.op_types[op], int(graph.op_class[op]), int(graph.op_dtype[op])
        found[name] = _Op(kind, float(graph.op_flops[op]), reads, writes)
    return found
