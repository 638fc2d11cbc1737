"""The input and the result of slicing along an order."""

from __future__ import annotations

from typing import Unpack

import numpy as np

from go_opt.common.arrays import BoolArray, IntArray, LongArray
from go_opt.env.cost import CostTables
from go_opt.model.plan import Candidate
from go_opt.solver.problem.forwarding_mode import ForwardingMode
from go_opt.solver.problem.segment_rules import SegmentRules
from go_opt.solver.problem.sequence import KernelSequence, kernel_sequence
from go_opt.solver.slicing.segments.problem import SliceProblem, slice_problem


def problem_along(
    tables: CostTables,
    order: IntArray,
    fusion_group: IntArray,
    passing: ForwardingMode,
    **rules: Unpack[SegmentRules],
) -> tuple[KernelSequence, SliceProblem]:
    """Returns the kernel sequence of ``order`` and the problem of cutting it into segments.

    Args:
      order: [N] a topological order; the ops of each group are adjacent in it.
      fusion_group: [N]; cuts fall between groups only.
      passing: how tensors that pass a chip are treated.
      rules: the user's rules for segments (``allowed``, ``colocated``, ``rising``); an op must be
        allowed on every chip of its stage.
    """
    sequence = kernel_sequence(tables, order, fusion_group, adjacent=passing == "adjacent")
    return sequence, slice_problem(tables, sequence, relayed=passing == "relayed", **rules)


def slicing_of(
    sequence: KernelSequence,
    cuts: LongArray,
    interval_s: float,
    sizes: LongArray | None = None,
    forwards: BoolArray | None = None,
) -> Candidate:
    """Returns the plan whose kernels between two ``cuts`` [S + 1] share a chip, or the chips of a stage.

    Args:
      interval_s: includes streamed weights only where the slicing method counts them.
      sizes: [S] chips of each stage; by default one chip each, without replicated stages.
      forwards: [S] whether the stage forwards streamed weights.
    """
    chips = np.ones(len(cuts) - 1, np.int64) if sizes is None else sizes
    lengths, first_chip = np.diff(cuts), np.cumsum(chips) - chips
    return Candidate(
        "slice",
        np.repeat(first_chip, lengths)[sequence.kernel_of].astype(np.int32),
        sequence.order,
        sequence.fusion_group,
        None if sizes is None else np.repeat(sizes, lengths)[sequence.kernel_of].astype(np.int32),
        () if forwards is None else tuple(first_chip[forwards].tolist()),
        interval_s,
    )
