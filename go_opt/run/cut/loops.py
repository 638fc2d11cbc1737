"""Loops over the values of a model: which elements of a tensor lie along each axis of a view of it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

import onnx_ir as ir

from go_opt.env.copies.pieces import Cut, Piece
from go_opt.errors import ModelError
from go_opt.model.rules.views import row_major
from go_opt.run.cut.attributes import sizes_of

Loops = list[list[tuple[int, int]]]  # of each axis, major to minor: sizes, and steps in the tensor; 0: copies


class Frame(NamedTuple):
    """A shape of a tensor in which each cut lies along an axis."""

    sizes: Sequence[int]
    axes: Mapping[int, tuple[int, int]]  # period -> axis, elements of one step

    def shape(self, piece: Piece) -> list[int]:
        sizes = list(self.sizes)
        for cut in piece:
            axis, step = self.axes[cut.period]
            sizes[axis] = (cut.stop - cut.start) // step
        return sizes


def loops_of(value: ir.Value) -> Loops:
    """The loops over a value, in the order of its axes."""
    sizes = sizes_of(value)
    steps = value.meta.get("steps") or [[one] for one in zip(sizes, row_major(tuple(sizes)), strict=True)]
    return [list(axis) for axis in steps]


def flat_sizes(loops: Loops) -> list[int]:
    """The sizes of all loops."""
    return [size for axis in loops for size, _ in axis]


def compact(loops: Loops) -> Loops:
    """The loops over a tensor that holds nothing else."""
    steps, behind = {0: 0}, 1
    for step, size in sorted((step, size) for axis in loops for size, step in axis if step):
        steps[step], behind = behind, behind * size
    return [[(size, steps[step]) for size, step in axis] for axis in loops]


def axis_sizes(loops: Loops) -> list[int]:
    """The sizes of the axes."""
    return [math.prod(size for size, _ in axis) for axis in loops]


def leave(loops: Loops, cut: Cut, node: ir.Node) -> tuple[int, range, int]:
    """Leave of the loops what lies in a cut.

    Returns:
      the place of the loop among all; the steps that stay, and of how many in a period.
    """
    before = 0
    for axis in loops:
        for i, (size, step) in enumerate(axis):
            count = cut.period // step if step else 1
            if count > 1 and not any((cut.period % step, size % count, cut.start % step, cut.stop % step)):
                steps = range(cut.start // step, cut.stop // step)
                outer = [(size // count, cut.period)] if size > count else []
                axis[i : i + 1] = [*outer, (len(steps), step)]
                return before + i, steps, count
        before += len(axis)
    problem = f"elements {cut.start} to {cut.stop} of {cut.period} lie along no axis that it sees"
    raise ModelError(f"op {node.name!r} cannot be split: {problem}.")


def with_copies(loops: Loops, sizes: Sequence[int], whole: Sequence[int], part: Sequence[int]) -> Loops:
    """The loops of an operand, with as many copies along each axis as the part of a result has there."""
    found = []
    for behind, axis in enumerate(reversed(loops), 1):
        is_shared = behind <= len(whole) and whole[-behind] == sizes[-behind]
        copies = part[-behind] // math.prod(size for size, step in axis if step) if is_shared else 0
        found.append([(copies or size, step) if step == 0 else (size, step) for size, step in axis])
    return found[::-1]


def frame_of(whole: ir.Value, piece: Piece) -> Frame:
    """The shape of a tensor, if the cuts of a piece lie along its axes; else one that has such axes."""
    sizes = sizes_of(whole)
    ends = [math.prod(sizes), *(cut.period for cut in piece), 1]
    for one in (sizes, [before // after for before, after in pairwise(ends)]):
        steps = row_major(tuple(one))
        axes = {
            cut.period: (axis, step)
            for cut in piece
            for axis, (size, step) in enumerate(zip(one, steps, strict=True))
            if size > 1 and size * step == cut.period and cut.start % step == cut.stop % step == 0
        }
        if len(axes) == len(piece):
            return Frame(one, axes)
    raise ModelError(f"tensor {whole.name!r} cannot be split: its parts lie along no axes.")
