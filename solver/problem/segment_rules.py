"""What the user's constraints ask of the segments of a kernel sequence.

Pins and forbids say what a chip may hold, colocation where no cut falls, cut points where one
does. Limits of chips are not among them: a slicing is filtered by those afterwards.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypedDict

import numpy as np

from go_opt.common.arrays import BoolArray, IntArray, LongArray
from go_opt.solver.problem.op_constraints import OpConstraints

Numbers = IntArray | LongArray  # of ops


class SegmentRules(TypedDict, total=False):
    """Everything is open that is not given. Axes: ``N`` ops, ``D`` chips."""

    allowed: BoolArray | None  # [D, N] ops each chip may hold
    colocated: Sequence[Numbers]  # sets of ops that share a chip
    rising: Numbers | None  # [2, ...] edges whose reader lies on a later chip than their source


def segment_rules(asked: OpConstraints) -> SegmentRules:
    """The rules of ``asked``, limits left out."""
    rises = asked.rise > 0
    return SegmentRules(
        allowed=np.ascontiguousarray(asked.allowed.T),
        colocated=asked.colocated,
        rising=np.stack([asked.graph.edge_src[rises], asked.graph.edge_dst[rises]]),
    )


def latest_ends(kernel_of: IntArray, num_kernels: int, rising: Numbers | None) -> LongArray:
    """[M + 1] a segment that starts at a cut may end up to here."""
    latest = np.full(num_kernels + 1, num_kernels, dtype=np.int64)
    if rising is not None:
        np.minimum.at(latest, kernel_of[rising[0]], kernel_of[rising[1]])
        latest = np.minimum.accumulate(latest[::-1])[::-1].copy()
    return latest


def may_be_cut(kernel_of: IntArray, num_kernels: int, colocated: Sequence[Numbers]) -> BoolArray:
    """[M + 1] whether a cut may fall before each kernel, or behind the last."""
    open_cuts = np.ones(num_kernels + 1, dtype=np.bool_)
    for ops in colocated:
        open_cuts[kernel_of[ops].min() + 1 : kernel_of[ops].max() + 1] = False
    return open_cuts
