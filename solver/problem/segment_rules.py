"""The user's constraints as rules for the segments of a kernel sequence.

Pins and forbids restrict the ops of a chip, colocation forbids cuts, and cut points require
cuts. Chip limits are not included: slicings are filtered by them afterwards.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypedDict

import numpy as np

from go_opt.common.arrays import BoolArray, IntArray, LongArray
from go_opt.solver.problem.op_constraints import OpConstraints

Numbers = IntArray | LongArray  # of ops


class SegmentRules(TypedDict, total=False):
    """Rules that are not given do not restrict. Axes: ``N`` ops, ``D`` chips."""

    allowed: BoolArray | None  # [D, N] ops each chip may run
    colocated: Sequence[Numbers]  # sets of ops that share a chip
    rising: Numbers | None  # [2, ...] edges whose reader must be on a later chip than their source


def segment_rules(requested: OpConstraints) -> SegmentRules:
    """Returns the rules of ``requested``, without chip limits."""
    rises = requested.rise > 0
    return SegmentRules(
        allowed=np.ascontiguousarray(requested.allowed.T),
        colocated=requested.colocated,
        rising=np.stack([requested.graph.edge_src[rises], requested.graph.edge_dst[rises]]),
    )


def latest_ends(kernel_of: IntArray, num_kernels: int, rising: Numbers | None) -> LongArray:
    """Returns [M + 1] the last cut where a segment that starts at each cut may end."""
    latest = np.full(num_kernels + 1, num_kernels, dtype=np.int64)
    if rising is not None:
        np.minimum.at(latest, kernel_of[rising[0]], kernel_of[rising[1]])
        latest = np.minimum.accumulate(latest[::-1])[::-1].copy()
    return latest


def may_be_cut(kernel_of: IntArray, num_kernels: int, colocated: Sequence[Numbers]) -> BoolArray:
    """Returns [M + 1] whether a cut is allowed before each kernel, and after the last."""
    open_cuts = np.ones(num_kernels + 1, dtype=np.bool_)
    for ops in colocated:
        open_cuts[kernel_of[ops].min() + 1 : kernel_of[ops].max() + 1] = False
    return open_cuts
