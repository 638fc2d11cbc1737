"""The parts of split ops: which points each computes, what it reads of its operands, and its sharding rule.

With a rule, what is divided once can be divided again. A part has the rule of its op, with fewer steps. What
hands over, exchanges, takes or joins pieces of a tensor runs over the loops of that tensor: those that lie
alike in all it reads and writes are parallel.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from fractions import Fraction
from functools import lru_cache
from typing import NamedTuple

from go_opt.env.copies.divisions import COPIES, Division
from go_opt.env.copies.pieces import Cut, Piece, Range, elements_of, piece_of
from go_opt.model.graph import MATRIX, NO_PRODUCER, Graph, OpRule
from go_opt.model.rule import Access, Affine, Factor, Rule, factors_in, multiplicands, places


class Part(NamedTuple):
    """An op of a split graph that computes a part of an op of the whole graph."""

    op: int  # of the whole graph
    ranges: tuple[Range, ...]
    copy: int = 0  # of parts that each compute all of the op


class Held(NamedTuple):
    """What a tensor of a split graph holds of a tensor of the whole graph, maybe a state."""

    tensor: int
    piece: Piece
    is_partial: bool = False  # a term of a sum


class SplitGraph(NamedTuple):
    """A graph with ops in parts. Ops that are neither parts nor in the whole graph take, join or add."""

    graph: Graph
    parts: Mapping[str, Part]  # by name of the op
    held: Mapping[str, Held]  # by name of the tensor; others are those of the whole graph


class Cell(NamedTuple):
    """Parts that write the same piece of each result, each a term of it."""

    ranges: tuple[Range, ...]  # of factors that results have
    terms: tuple[tuple[Range, ...], ...]  # of reductions; one, empty, if there is none
    copy: int = 0


def overlap(piece: Piece, wanted: Piece) -> Piece:
    """What ``wanted`` has of a piece, which has cuts of the same periods and maybe others."""
    limits = {cut.period: cut for cut in wanted}
    return tuple(
        Cut(cut.period, max(cut.start, limits[cut.period].start), min(cut.stop, limits[cut.period].stop))
        if cut.period in limits
        else cut
        for cut in piece
    )


def pieces_of(row: OpRule, k: int, ranges: tuple[Range, ...]) -> Iterator[Piece]:
    """What the operands of a part that are tensor ``k`` need of it; all of it if its rule says nothing.

    What no divided sum goes over, such as a bias, belongs to the first term.
    """
    reduced = {one.factor for one in ranges if row.rule.factors[one.factor].kind == "reduction"}
    is_first = all(one.start == 0 for one in ranges if one.factor in reduced)
    found = row.accesses_of(k)
    yield from (
        piece_of(row.rule, access, ranges) for access in found if is_first or factors_in(access) & reduced
    )
    if not found:
        yield ()


def share(row: OpRule, ranges: tuple[Range, ...]) -> Fraction:
    """The points of an op that lie within ranges, of all."""
    shares = (Fraction(one.stop - one.start, row.rule.factors[one.factor].size) for one in ranges)
    return math.prod(shares, start=Fraction(1))


def touched_by_part(
    graph: Graph, row: OpRule, read: tuple[int, int], piece: Piece, ranges: tuple[Range, ...]
) -> int:
    """The elements that a part touches: of a tensor that the op reads in part, its share.

    Args:
      read: the tensor, and the elements that the op touches.
    """
    k, touched = read
    elements = int(graph.tensor_elements[k])
    if touched == elements:
        return elements_of(piece, elements)
    return max(1, math.ceil(touched * share(row, ranges)))


def flops_of_part(graph: Graph, op: int, ranges: tuple[Range, ...], *, is_first: bool) -> float:
    """The share of a part; of a bias, which the first term adds, all."""
    row, flops = graph.known_rule_of(op), float(graph.op_flops[op])
    reduced = tuple(one for one in ranges if row.rule.factors[one.factor].kind == "reduction")
    rest = tuple(one for one in ranges if one not in reduced)
    once = 0.0
    if reduced and graph.op_class[op] == MATRIX:
        multiplied = (row.rule.operands[i] for i in multiplicands(row.rule))
        factors = set[int]().union(*map(factors_in, multiplied))
        once = max(0.0, flops - 2.0 * row.rule.points(factors))
    terms = Fraction(flops - once) * share(row, reduced) + Fraction(once * is_first)
    return float(terms * share(row, rest))


def can_be_gathered(pieces: Sequence[Piece], wanted: Piece) -> bool:
    """Whether a piece is one of those given, or their cuts say where it lies in each of them."""
    periods = {cut.period for cut in pieces[0]}
    return wanted in pieces or (bool(wanted) and {cut.period for cut in wanted} <= periods)


def results_of(graph: Graph, op: int) -> tuple[int, ...]:
    """What an op computes; without what only puts ops in order."""
    row = graph.rule_of(op)
    made = (k for k in graph.outputs_of(op) if graph.tensor_elements[k])
    return tuple(made) if row is None else row.results


def cells_of(graph: Graph, divisions: Sequence[Division], stops: Mapping[Division, list[int]]) -> list[Cell]:
    if divisions[0].factor == COPIES:
        return [Cell((), ((),), copy) for copy in range(divisions[0].parts)]
    row = graph.known_rule_of(divisions[0].op)

    def ranges(of: Sequence[Division]) -> list[tuple[Range, ...]]:
        each = [[Range(one.factor, *pair) for pair in itertools.pairwise([0, *stops[one]])] for one in of]
        return list(itertools.product(*each))

    is_reduced = {one: row.rule.factors[one.factor].kind == "reduction" for one in divisions}
    terms = tuple(ranges([one for one in divisions if is_reduced[one]]))
    return [Cell(cell, terms) for cell in ranges([one for one in divisions if not is_reduced[one]])]


class Ruled(NamedTuple):
    """A rule, and the tensors of its operands."""

    rule: Rule
    operands: tuple[str, ...]


class _Loop(NamedTuple):
    """Steps over a tensor, each of ``behind`` elements."""

    size: int
    behind: int

    @property
    def period(self) -> int:
        return self.size * self.behind


def rule_of_part(
    graph: Graph,
    op: int,
    ranges: tuple[Range, ...],
    read: Mapping[tuple[int, Piece], str],
    copied: Collection[int],
) -> Ruled | None:
    """The rule of the points of an op within ``ranges``; None if one of them goes through windows.

    Args:
      read: the names of the pieces of tensors that the part reads; operands that it lacks others add.
      copied: states of which pieces are read where they lie, in a larger copy; such a part has no rule.
    """
    row, sizes = graph.rule_of(op), {one.factor: one.stop - one.start for one in ranges}
    if row is None:
        return None
    operands = [
        (k, piece_of(row.rule, access, ranges))
        for k, access in zip(row.operands, row.rule.operands, strict=True)
    ]
    kept = [i for i, one in enumerate(operands) if one in read]
    through = {
        factor
        for access in row.rule.operands
        for dimension in access
        for piece in dimension
        if isinstance(piece, Affine)
        for factor in (piece.factor, piece.window)
    }
    if through & sizes.keys() or any(piece and k in copied for k, piece in operands):
        return None
    rule = row.rule if len(kept) == len(operands) else row.rule.of_operands(kept)
    return Ruled(_resized(rule, tuple(sizes.items())), tuple(read[operands[i]] for i in kept))


@lru_cache(maxsize=4096)
def _resized(rule: Rule, sizes: tuple[tuple[int, int], ...]) -> Rule:
    """The rule with so many steps of some factors; those with one step go."""
    steps = dict(sizes)
    factors = [one._replace(size=steps.get(i, one.size)) for i, one in enumerate(rule.factors)]
    kept = [i for i, one in enumerate(factors) if one.size > 1]
    place = {old: new for new, old in enumerate(kept)} | {-1: -1}

    def moved(piece: int | Affine) -> int | Affine:
        if isinstance(piece, Affine):
            return piece._replace(factor=place[piece.factor], window=place[piece.window])
        return place[piece]

    def changed(access: Access) -> Access:
        return tuple(
            tuple(moved(piece) for piece in dimension if isinstance(piece, Affine) or piece in place)
            for dimension in access
        )

    of_operands, of_results = (tuple(map(changed, of)) for of in (rule.operands, rule.results))
    return Rule(tuple(factors[i] for i in kept), of_operands, of_results)


def rule_of_move(
    graph: Graph, k: int, sources: Sequence[str], held: Mapping[str, Held], result: Piece
) -> Ruled | None:
    """The rule of an op that only moves or adds pieces of tensor ``k``; None if they lie along no loops."""
    read = [held[source].piece if source in held else () for source in sources]
    rule = _rule_of_pieces(_loops_of(graph, k), [*read, result])
    return None if rule is None else Ruled(rule, tuple(sources))


def _rule_of_pieces(loops: Sequence[_Loop] | None, moved: Sequence[Piece]) -> Rule | None:
    """The rule of an op that reads pieces of a tensor, and writes the last one."""
    for cut in {cut for piece in moved for cut in piece}:
        loops = _refined(loops, cut) if loops is not None else None
    if loops is None:
        return None
    factors: list[Factor] = []
    of_loops: list[dict[tuple[int, int], int]] = []  # of each loop: extent -> factor
    pieces = [{cut.period: cut for cut in piece} for piece in moved]
    for loop in loops:
        extents = list(dict.fromkeys(_extent(loop, piece) for piece in pieces))
        found: dict[tuple[int, int], int] = {}
        by_size: dict[int, int] = {}
        for start, stop in extents:
            if stop - start < 2:
                continue
            if stop - start not in by_size:
                by_size[stop - start] = len(factors)
                kind = "parallel" if len(extents) == 1 else "whole"
                factors.append(Factor(f"e{len(factors)}", kind, stop - start))  # type: ignore[arg-type]
            found[start, stop] = by_size[stop - start]
        of_loops.append(found)

    def access(piece: Mapping[int, Cut]) -> Access:
        own = ((found, _extent(loop, piece)) for loop, found in zip(loops, of_loops, strict=True))
        return (tuple(found[extent] for found, extent in own if extent in found),)

    *operands, result = map(access, pieces)
    return Rule(tuple(factors), tuple(operands), (result,))


def _extent(loop: _Loop, piece: Mapping[int, Cut]) -> tuple[int, int]:
    """The steps of a loop that lie in a piece."""
    cut = piece.get(loop.period)
    return (0, loop.size) if cut is None else (cut.start // loop.behind, cut.stop // loop.behind)


def _loops_of(graph: Graph, k: int) -> list[_Loop]:
    """The loops over a tensor, major to minor, of the op that writes it, or of one that reads it."""
    producer = int(graph.tensor_producer[k])
    for op in (*([] if producer == NO_PRODUCER else [producer]), *graph.readers_of(k)):
        row = graph.rule_of(op)
        if row is None:
            continue
        accesses = (*row.rule.results, *row.rule.operands)
        for one, access in zip((*row.results, *row.operands), accesses, strict=True):
            found = [_Loop(place.size, place.behind) for place in places(row.rule, access)]
            if one == k and math.prod(loop.size for loop in found) == graph.tensor_elements[k]:
                return found
    return [_Loop(int(graph.tensor_elements[k]), 1)]


def _refined(loops: Sequence[_Loop], cut: Cut) -> list[_Loop] | None:
    """The loops with one whose period is that of a cut, and whose steps end where it does."""
    found: list[_Loop] = []
    is_met = False
    for loop in loops:
        if loop.behind < cut.period < loop.period and not (
            loop.period % cut.period or cut.period % loop.behind
        ):
            found += [
                _Loop(loop.period // cut.period, cut.period),
                _Loop(cut.period // loop.behind, loop.behind),
            ]
        else:
            found.append(loop)
    for loop in found:
        if loop.period == cut.period and loop.size > 1:
            is_met = not (cut.start % loop.behind or cut.stop % loop.behind)
    return found if is_met else None
