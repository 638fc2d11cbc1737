"""The parts of split ops as cells: which points each computes, and what it reads of its operands."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from fractions import Fraction
from typing import NamedTuple

from go_opt.env.copies.divisions import COPIES, Division
from go_opt.env.copies.pieces import Cut, Piece, Range, elements_of, piece_of
from go_opt.model.graph import MATRIX, Graph, OpRule
from go_opt.model.rule import factors_in, multiplicands


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
