"""Pieces of tensors: the elements that a part of an op reads or writes.

A factor lies in a tensor with some blocks before it and some elements behind it, whatever the dimensions
are called. So a range of a factor is a *cut*: of every ``period`` elements those from ``start`` to ``stop``.
Rows, columns and heads are cuts with different periods, and two ops that see a tensor in different shapes
agree on its cuts.
"""

from __future__ import annotations

from fractions import Fraction
from typing import NamedTuple, TypeVar

from go_opt.common.arrays import LongArray
from go_opt.model.rule import NO_FACTOR, Access, Affine, Rule, places


class Cut(NamedTuple):
    """Of every ``period`` elements of a tensor, those from ``start`` to ``stop``."""

    period: int
    start: int
    stop: int


_Steps = TypeVar("_Steps", int, LongArray)
Piece = tuple[Cut, ...]  # by falling period; () is the whole tensor


class Range(NamedTuple):
    """Some of the steps of one factor of an op."""

    factor: int
    start: int
    stop: int


def piece_of(rule: Rule, access: Access, ranges: tuple[Range, ...]) -> Piece:
    """What the points of an op within ``ranges`` read or write of a tensor, with no padding.

    A cut is empty (``stop <= start``) if they read padding alone.
    """
    cuts = []
    by_factor = {one.factor: one for one in ranges}
    for place in places(rule, access):
        piece = place.piece
        one = by_factor.get(piece.factor if isinstance(piece, Affine) else piece)
        if one is None:
            continue
        start, stop = one.start, one.stop
        if isinstance(piece, Affine):
            start = max(0, start * piece.stride - piece.before)
            stop = min(piece.size, window_end(rule, piece, stop))
        if (start, stop) != (0, place.size):
            cuts.append(Cut(place.size * place.behind, start * place.behind, stop * place.behind))
    return tuple(sorted(cuts, reverse=True))


def reach_of(rule: Rule, piece: Affine) -> int:
    """The elements from the first to the last of one window."""
    size = rule.factors[piece.window].size if piece.window != NO_FACTOR else 1
    return (size - 1) * piece.dilation + 1


def window_end(rule: Rule, piece: Affine, stop: _Steps) -> _Steps:
    """The element behind the last one that the steps before ``stop`` read, which may be padding."""
    return (stop - 1) * piece.stride - piece.before + reach_of(rule, piece)


def elements_of(piece: Piece, elements: int) -> int:
    """The elements of a piece of a tensor with ``elements``."""
    for cut in piece:
        elements = int(Fraction(elements * (cut.stop - cut.start), cut.period))
    return elements


class Names(NamedTuple):
    """The names of ops and tensors in parts, which are not those of another level of splits."""

    level: int = 0

    def part(self, name: str, part: int, parts: int) -> str:
        """A part of the op ``name``, or what it writes of the tensor ``name``."""
        return f"{name}/{self.of_level}part {part + 1} of {parts}"

    def sum(self, name: str, part: int, parts: int) -> str:
        """The op, or its tensor, that adds the partial results up to that of a part."""
        return f"{name}/{self.of_level}sum {part + 1} of {parts}"

    def copy(self, name: str, copy: int, copies: int) -> str:
        """One of the copies that a collective leaves; the first has the name of the tensor."""
        return f"{name}/{self.of_level}copy {copy + 1} of {copies}" if copy else name

    def sent(self, name: str, part: int, parts: int) -> str:
        """What the chip of a part hands over in a collective, and the op that does."""
        return f"{name}/{self.of_level}sent {part + 1} of {parts}"

    def piece(self, tensor: str, piece: Piece) -> str:
        """A piece of a tensor, and the op that takes it from others."""
        cuts = " and ".join(f"{cut.start} to {cut.stop} of {cut.period}" for cut in piece)
        return f"{tensor}/{self.of_level}elements {cuts}"

    @property
    def of_level(self) -> str:
        """What tells the names of a level from those of others."""
        return "replica " if self.level else ""


part_name, sum_name = Names().part, Names().sum
