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
from fractions import Fraction
from typing import NamedTuple

import numpy as np

from go_opt.env.copies.parts import Held, Part, SplitGraph
from go_opt.env.copies.pieces import Cut, Piece
from go_opt.env.copies.splits import split_levels
from go_opt.model.graph import (
    DATA_MOVEMENT,
    INPUT,
    MATRIX,
    NO_PRODUCER,
    STATE,
    VECTOR,
    WEIGHT,
    Graph,
    OpRule,
    State,
)
from go_opt.model.plan import CollectiveOp, Split
from go_opt.model.rule import NO_FACTOR, Access, Affine, Rule, factors_in, multiplicands
from go_opt.solver.verify.rewrites import ops_of, tensors_of

_SUMS = {"ReduceMax": "Max", "ReduceMin": "Min"}  # of partial results; others are added


class _Kind(NamedTuple):
    """What an op is, and where it may run."""

    op_type: str
    op_class: int
    dtype: int
    on_chips: tuple[tuple[str, float, bool], ...] = ()  # by kind: measured seconds, or -1; whether excluded


class _Op(NamedTuple):
    """An op in words that do not depend on the numbers of a graph."""

    kind: _Kind
    flops: float
    reads: Counter[tuple[str, int]]  # tensor, elements touched
    writes: tuple[tuple[str, int, int], ...]  # tensor, elements, dtype


def broken_splits(whole: Graph, split: Graph, splits: Sequence[Split]) -> Iterator[str]:
    """Yields the errors of ``split``, which must be ``whole`` with the ops of ``splits`` in parts."""
    levels = split_levels(whole, tuple(splits))
    for i, (own, claimed) in enumerate(levels):
        made = split if i == len(levels) - 1 else claimed.graph
        yield from _Check(whole, made, own, claimed).errors()
        whole = made


class _Check:
    def __init__(self, whole: Graph, split: Graph, splits: Sequence[Split], claims: SplitGraph) -> None:
        self._whole, self._split = whole, split
        self._parts, self._held = claims.parts, claims.held
        self._before, self._after = _ops(whole), _ops(split)
        self._terms: dict[str, frozenset[Part]] = {}  # of partial results: the parts that are added in it
        self._groups = Counter[tuple[str, ...]]()  # what a collective exchanges: how many chips take part
        self._makers = {tensor: op.kind.op_type for op in self._after.values() for tensor, _, _ in op.writes}
        self._number: dict[str, int] = defaultdict(lambda: 1)  # of parts of each op
        for one in splits:
            self._number[one.op] *= one.parts
        self._copied = {one.op for one in splits if not one.factor}
        names = Counter(self._known(split.tensor_names[state.read]).tensor for state in split.states)
        whole_states = {self._known(split.tensor_names[state.read]) for state in split.states}
        self._copied_states = {k for k, n in names.items() if n > 1 and Held(k, ()) in whole_states}
        self._divided = {whole.op_index[name] for name in self._number if name in whole.op_index}

    def errors(self) -> Iterator[str]:
        whole = self._whole
        of_op: dict[int, list[Part]] = defaultdict(list)
        for name in self._after:
            if self._before.get(name) != self._after[name]:
                yield from self._wrong_touch(name)
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
        yield from self._wrong_groups()
        yield from self._wrong_sources()
        yield from self._wrong_outputs()
        yield from self._wrong_states()

    def _content(self, tensor: str) -> Held | None:
        if tensor in self._held:
            return self._held[tensor]
        return Held(self._whole.tensor_index[tensor], ()) if tensor in self._whole.tensor_index else None

    def _wrong_part(self, name: str) -> Iterator[str]:
        """A part reads what its points need, and writes their results."""
        part, op = self._parts[name], self._after[name]
        of = self._before[self._whole.op_names[part.op]]
        where = f"op {name!r}"
        if self._whole.op_names[part.op] in self._copied:
            if not self._is_copy(part.op, op, of):
                yield f"{where} does not compute what the op does."
            return
        row = self._whole.known_rule_of(part.op)
        reduced = [one for one in part.ranges if row.rule.factors[one.factor].kind == "reduction"]
        if op.kind != of.kind:
            yield f"{where} is of another type than the op."
        needed = Counter[tuple[Held | None, int]](self._needs(row, part))
        reads = (one for one in op.reads.elements() if one[1] > 0)  # others only touch a state
        found = Counter((self._content(tensor), touched) for tensor, touched in reads)
        rest = needed - found
        # What is needed of a copy of a state may be read where it lies.
        in_place = Counter(
            {
                (held._replace(piece=()), n): rest[held, n]
                for held, n in rest
                if held is not None and self._is_copied(held)
            }
        )
        if found - needed != in_place or len(in_place) < len(rest):
            yield f"{where} does not read what its part needs."
        results = Counter[tuple[Held | None, int, int]]()
        for k, access in zip(row.results, row.rule.results, strict=True):
            cuts = _cuts(row.rule, access, part)
            results[Held(k, cuts, bool(reduced)), self._elements(k, cuts), self._dtype(k)] += 1
        if (
            Counter(
                (self._content(tensor), elements, dtype) for tensor, elements, dtype in op.writes if elements
            )
            != results
        ):
            yield f"{where} does not write the results of its part."
        if abs(op.flops - self._flops(row, part)) > 1e-9 * max(of.flops, 1.0):
            yield f"{where} does not have the flops of its part."
        if reduced:
            self._terms |= {tensor: frozenset([part]) for tensor, _, _ in op.writes}

    def _is_copied(self, held: Held) -> bool:
        """Whether it is a piece of a state of which there are copies."""
        return bool(held.piece) and held.tensor in self._copied_states

    def _is_copy(self, copied: int, op: _Op, of: _Op) -> bool:
        """Whether an op reads and writes, in whole tensors, what the op of the model does."""
        whole = self._whole
        reads = Counter((self._content(tensor), size) for tensor, size in op.reads.elements() if size)
        needed = Counter((Held(k, ()), size) for k, size in whole.reads_of(copied) if size)
        writes = Counter((self._content(tensor), *rest) for tensor, *rest in op.writes if rest[0])
        made = [(Held(whole.tensor_index[tensor], ()), *rest) for tensor, *rest in of.writes if rest[0]]
        return reads == needed and writes == Counter(made) and (op.kind, op.flops) == (of.kind, of.flops)

    def _wrong_touch(self, name: str) -> Iterator[str]:
        """An op touches, without reading it, nothing but states, and what puts it behind others."""
        split = self._split
        touched = (
            split.tensor_index[tensor] for tensor, elements in self._after[name].reads if elements == 0
        )
        if any(split.tensor_kind[k] != STATE and split.tensor_elements[k] > 0 for k in touched):
            yield f"op {name!r} reads nothing of a tensor."

    def _needs(self, row: OpRule, part: Part) -> Iterator[tuple[Held, int]]:
        """What a part must read, with the elements that it touches."""
        reduced = [one for one in part.ranges if row.rule.factors[one.factor].kind == "reduction"]
        is_first = all(one.start == 0 for one in reduced)
        for k, touched in self._whole.reads_of(part.op):
            accesses = row.accesses_of(k)
            # What no divided sum goes over, such as a bias, is added once.
            needed = [
                one for one in accesses if is_first or factors_in(one) & {each.factor for each in reduced}
            ]
            found = dict.fromkeys(_cuts(row.rule, access, part) for access in needed)
            if not accesses:
                found[()] = None
            for cuts in found if accesses or touched else ():
                elements = int(self._whole.tensor_elements[k])
                share = math.prod(
                    Fraction(one.stop - one.start, row.rule.factors[one.factor].size) for one in part.ranges
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
            seen = set().union(*(factors_in(rule.operands[i]) for i in multiplicands(rule)))
            once = max(0.0, flops - 2.0 * rule.points(seen))
        return share * ((flops - once) * of_sum + (once if is_first else 0.0))

    def _wrong_move(self, name: str) -> Iterator[str]:
        """What takes a piece of one tensor, joins pieces that lie side by side, or adds partial results."""
        op, where = self._after[name], f"op {name!r}"
        op = op._replace(reads=Counter({one: n for one, n in op.reads.items() if one[1] > 0}))
        written = [self._content(tensor) for tensor, _, _ in op.writes]
        read = [self._content(tensor) for tensor, _ in op.reads.elements()]
        is_exchange = CollectiveOp.of(op.kind.op_type) is not None
        if (len(written) != 1 and not is_exchange) or None in written or None in read or not read:
            yield f"{where} is not in the model, nor of a split."
            return
        if is_exchange:
            if not self._is_exchanged(op):
                yield f"{where} does not exchange what it writes."
            return
        result, sources = written[0], [one for one in read if one is not None]
        assert result is not None
        elements, dtype = self._elements(result.tensor, result.piece), self._dtype(result.tensor)
        touched = [(size, self._elements(one.tensor, one.piece))
                   for (_, size), one in zip(op.reads.elements(), sources, strict=True)]  # fmt: skip
        if any(one.tensor != result.tensor for one in sources) or op.writes[0][1:] != (elements, dtype):
            yield f"{where} does not write what it reads."
        elif op.kind.op_type == CollectiveOp.SEND:
            is_free = op.flops == 0.0 and op.kind == _Kind(op.kind.op_type, DATA_MOVEMENT, dtype)
            if not is_free or any(a != b for a, b in touched) or sources != [result]:
                yield f"{where} does not hand over what it reads."
            self._terms |= {op.writes[0][0]: self._terms.get(next(iter(op.reads))[0], frozenset())}
        elif any(one.is_partial for one in sources):
            yield from self._wrong_sum(name, result)
        elif op.flops or result.is_partial or op.kind not in (
            _Kind("Slice", DATA_MOVEMENT, dtype), _Kind("Concat", DATA_MOVEMENT, dtype)
        ):  # fmt: skip
            yield f"{where} does not write what it reads."
        elif op.kind.op_type == "Slice":
            is_read = [size for size, _ in touched] == [elements]
            if not is_read or not _holds(sources[0].piece, result.piece):
                yield f"{where} does not take what it writes."
        elif not _tile([one.piece for one in sources], result.piece) or any(a != b for a, b in touched):
            yield f"{where} does not join what it writes."

    def _is_exchanged(self, op: _Op) -> bool:
        """Whether an op has, of each tensor that it reads, all that is handed over, or the sum of it."""
        read: dict[int, list[tuple[str, int]]] = defaultdict(list)
        for tensor, touched in op.reads.elements():
            read[self._known(tensor).tensor].append((tensor, touched))
        results = [self._known(tensor) for tensor, _, _ in op.writes]
        dtype = self._dtype(results[0].tensor)
        is_free = op.flops == 0.0 and op.kind == _Kind(op.kind.op_type, DATA_MOVEMENT, dtype)
        self._groups[tuple(sorted(tensor for tensor, _ in op.reads.elements()))] += 1
        return (
            is_free
            and sorted(read) == sorted(one.tensor for one in results)
            and len({len(group) for group in read.values()}) == 1
            and all(
                self._is_result(op.kind.op_type, written, read[result.tensor])
                for result, written in zip(results, op.writes, strict=True)
            )
        )

    def _known(self, tensor: str) -> Held:
        content = self._content(tensor)
        assert content is not None
        return content

    def _is_result(
        self, op_type: str, written: tuple[str, int, int], group: Sequence[tuple[str, int]]
    ) -> bool:
        """Whether a tensor is all that is handed over of it, each term of its sum once, or a slice of it."""
        name, elements, dtype = written
        result, sources = self._known(name), [self._known(tensor) for tensor, _ in group]
        terms = [self._terms.get(tensor, frozenset()) for tensor, _ in group]
        is_whole = all(size == self._elements(one.tensor, one.piece)
                       for (_, size), one in zip(group, sources, strict=True))  # fmt: skip
        is_whole &= (elements, dtype) == (
            self._elements(result.tensor, result.piece),
            self._dtype(result.tensor),
        )
        sent = all(self._makers.get(tensor) == CollectiveOp.SEND for tensor, _ in group)
        if not sent or not is_whole or result.is_partial or len(group) < 2:
            return False
        if all(one.is_partial for one in sources):
            added = frozenset().union(*terms)
            expected = CollectiveOp.ALL_REDUCE if result.piece == () else CollectiveOp.REDUCE_SCATTER
            is_complete = sum(map(len, terms)) == len(added) == self._number_of_terms(added)
            return op_type == expected and is_complete and {one.piece for one in sources} == {()}
        expected = CollectiveOp.ALL_GATHER if result.piece == () else CollectiveOp.ALL_TO_ALL
        return op_type == expected and _tile([one.piece for one in sources], ())

    def _number_of_terms(self, added: frozenset[Part]) -> int:
        """How many partial results are a whole one, of the op that has these."""
        one = next(iter(added))
        row = self._whole.known_rule_of(one.op)
        return math.prod(
            len({other.ranges[i] for other in self._parts.values() if other.op == one.op})
            for i, each in enumerate(one.ranges)
            if row.rule.factors[each.factor].kind == "reduction"
        )

    def _wrong_groups(self) -> Iterator[str]:
        """Every chip that hands over takes part in the collective."""
        for group, number in self._groups.items():
            tensors = {self._known(tensor).tensor for tensor in group}
            if len(group) != number * len(tensors):
                yield f"a collective of {group[0]!r} has {number} chips for {len(group)} that hand over."

    def _wrong_sum(self, name: str, result: Held) -> Iterator[str]:
        op = self._after[name]
        read = list(op.reads.elements())
        terms = [self._terms.get(tensor, frozenset()) for tensor, _ in read]
        added = frozenset().union(*terms)
        one = next(iter(added), None)
        if one is None or sum(map(len, terms)) != len(added):
            yield f"op {name!r} does not add partial results once."
            return
        contents = {self._content(tensor) for tensor, _ in read}
        of = self._before[self._whole.op_names[one.op]].kind
        kind = of._replace(op_type=_SUMS.get(of.op_type, "Add"), op_class=VECTOR)
        if (
            {held.piece for held in contents if held is not None} != {result.piece}
            or op.kind != kind
            or {op.flops, *(size for _, size in read)} != {op.writes[0][1]}
            or result.is_partial != (len(added) < self._number_of_terms(added))
        ):
            yield f"op {name!r} does not add all partial results."
        self._terms[op.writes[0][0]] = added

    def _wrong_cover(self, op: int, parts: Sequence[Part]) -> Iterator[str]:
        """The parts of an op are all combinations of ranges that tile its divided factors, or its copies."""
        name = self._whole.op_names[op]
        if name in self._copied:
            if sorted(part.copy for part in parts) != [*range(self._number[name])]:
                yield f"op {name!r} does not have the {self._number[name]} copies that the plan says."
            return
        row = self._whole.known_rule_of(op)
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

    def _wrong_sources(self) -> Iterator[str]:
        """Inputs and weights are those of the model; of weights and batches, there may be pieces."""
        whole, split = self._whole, self._split
        in_pieces = (WEIGHT, STATE, INPUT) if whole.has_scope("model") else (WEIGHT, STATE)
        for k in np.flatnonzero(split.tensor_producer == NO_PRODUCER).tolist():
            name, held = split.tensor_names[k], self._content(split.tensor_names[k])
            kind, elements = int(split.tensor_kind[k]), int(split.tensor_elements[k])
            if (
                held is None
                or whole.tensor_producer[held.tensor] != NO_PRODUCER
                or kind != whole.tensor_kind[held.tensor]
                or split.tensor_dtype[k] != whole.tensor_dtype[held.tensor]
                or elements != self._elements(held.tensor, held.piece)
                or (held.piece and kind not in in_pieces)
            ):
                yield f"tensor {name!r} is no input or weight of the model."

    def _wrong_outputs(self) -> Iterator[str]:
        """The host reads each output of the model, or pieces that make it up."""
        whole, split = self._whole, self._split
        pieces: dict[int, list[Piece]] = defaultdict(list)
        for k in np.flatnonzero(split.tensor_is_output).tolist():
            held = self._content(split.tensor_names[k])
            if held is None or held.is_partial:
                yield f"tensor {split.tensor_names[k]!r} is no output of the model."
            else:
                pieces[held.tensor].append(held.piece)
        outputs = set(np.flatnonzero(whole.tensor_is_output).tolist())
        if set(pieces) != outputs or not all(_tile(found, ()) for found in pieces.values()):
            yield "the outputs of the model are not as they were."

    def _wrong_states(self) -> Iterator[str]:
        """The parts of each state make up its old value and its next one, and lie where their ops run.

        Of a state of the model there may be copies: each is whole, and so is its next value.
        """
        whole, split = self._whole, self._split
        of_whole = {state.read: state for state in whole.states}
        pairs: dict[int, list[tuple[Piece, Piece]]] = defaultdict(list)
        for state in split.states:
            name = split.tensor_names[state.read]
            old, new = self._content(name), self._content(split.tensor_names[state.next])
            of = None if old is None else of_whole.get(old.tensor)
            if of is None or old is None or new is None or new.is_partial or of.next != new.tensor:
                yield f"state {name!r} is no part of a state of the model."
                continue
            pairs[of.read].append((old.piece, new.piece))
            if state.scope != of.scope or state.in_place > of.in_place or state.buffers < of.buffers:
                yield f"state {name!r} has another scope, or is written in another way, than in the model."
            if not _are_alike(old.piece, new.piece, self._elements(of.read, ()), self._elements(of.next, ())):
                yield f"state {name!r} and its next value are different pieces."
            yield from self._wrong_place(state)
        for k, of in of_whole.items():
            are_copies = of.scope == "model" and set(pairs[k]) == {((), ())}
            if not pairs[k] or not (
                are_copies or all(_tile(list(one), ()) for one in zip(*pairs[k], strict=True))
            ):
                yield f"the parts of state {whole.tensor_names[k]!r} do not make it up."

    def _wrong_place(self, state: State) -> Iterator[str]:
        """Ops that need a part touch it; those that need its old value are done before it is overwritten."""
        split, name = self._split, self._split.tensor_names[state.read]
        touching, readers = set(split.readers_of(state.read)), split.reader_ptr[state.read : state.read + 2]
        needing = set(split.reader_op[slice(*readers)][split.reader_elements[slice(*readers)] > 0].tolist())
        writer = int(split.tensor_producer[state.next])
        after = set() if state.next == state.read else {writer}
        after |= set(split.readers_of(state.next)) if after and state.in_place else set()
        if touching != needing | after:
            yield f"not just the ops that need state {name!r} touch it."
        if state.in_place and after and not touching - after <= self._done_before(writer):
            yield f"state {name!r} is overwritten before all ops have read it."

    def _done_before(self, op: int) -> set[int]:
        """The ops from which a path leads to an op."""
        ptr, sources = self._split.predecessors
        found, waiting = set[int](), [op]
        while waiting:
            at = waiting.pop()
            new = set(sources[ptr[at] : ptr[at + 1]].tolist()) - found
            found |= new
            waiting += new
        return found

    def _dtype(self, k: int) -> int:
        return int(self._whole.tensor_dtype[k])

    def _elements(self, k: int, cuts: Piece) -> int:
        elements = int(self._whole.tensor_elements[k])
        for period, start, stop in cuts:
            elements = elements * (stop - start) // period
        return elements


def _cuts(rule: Rule, access: Access, part: Part) -> Piece:
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
            found.append(Cut(size * behind, start * behind, stop * behind))
        behind *= size
    return tuple(sorted(found, reverse=True))


def _are_alike(old: Piece, new: Piece, old_elements: int, new_elements: int) -> bool:
    """Whether two pieces are the same shares of a state and its next value, of which one may be longer."""
    return len(old) == len(new) and all(
        Fraction(a.start, a.period) == Fraction(b.start, b.period)
        and Fraction(a.stop, a.period) == Fraction(b.stop, b.period)
        and (a.period == b.period or old_elements * b.period == new_elements * a.period)
        for a, b in zip(old, new, strict=True)
    )


def _holds(piece: Piece, part: Piece) -> bool:
    """Whether a piece, which may be the whole tensor, holds a part of it."""
    if not piece:
        return True
    held = {period: (start, stop) for period, start, stop in piece}
    inside = {period: (start, stop) for period, start, stop in part}
    return all(
        period in inside and start <= inside[period][0] and inside[period][1] <= stop
        for period, (start, stop) in held.items()
    )


def _tile(pieces: Sequence[Piece], whole: Piece) -> bool:
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
    tensors, found = tensors_of(graph), {}
    for name, op in ops_of(graph).items():
        kind = _Kind(op.op_type, op.op_class, op.dtype, op.on_chips)
        writes = tuple((k, tensors[k].elements, tensors[k].dtype) for k in op.writes)
        found[name] = _Op(kind, op.flops, Counter(op.reads), writes)
    return found
