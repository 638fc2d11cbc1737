"""The input and the result of slicing along an order."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Unpack

import numpy as np

from go_opt.common.arrays import BoolArray, IntArray, LongArray
from go_opt.env.cost import CostTables
from go_opt.solver.problem.forwarding_mode import ForwardingMode
from go_opt.solver.problem.segment_rules import SegmentRules
from go_opt.solver.problem.sequence import KernelSequence, kernel_sequence
from go_opt.solver.slicing.segments.problem import SliceProblem, slice_problem
from go_opt.solver.slicing.segments.relay_terms import relay_terms


@dataclass(frozen=True, eq=False)
class Slicing:
    """A placement that follows an order: kernels between two cuts share a chip, or the chips of a stage."""

    placement: IntArray  # [N] chip, or first chip of the op's stage
    cuts: LongArray  # [S + 1]
    sizes: LongArray  # [S] chips of each segment
    interval_s: float  # includes streamed weights only where the slicing method counts them
    replication: IntArray | None = None  # [N] chips of the op's stage; None: one each
    forwards: tuple[int, ...] = ()  # first chips of the stages that forward streamed weights


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
    relays = None
    if passing == "relayed":
        relays = relay_terms(tables, sequence)
    return sequence, slice_problem(tables, sequence, relays=relays, **rules)


def one_chip_each(sequence: KernelSequence, cuts: LongArray, interval_s: float) -> Slicing:
    """Returns the slicing with one chip for each segment between ``cuts`` [S + 1]."""
    chip_of_kernel = np.repeat(np.arange(len(cuts) - 1, dtype=np.int32), np.diff(cuts))
    sizes = np.ones(len(cuts) - 1, np.int64)
    return Slicing(chip_of_kernel[sequence.kernel_of], cuts, sizes, interval_s)


def stages(
    sequence: KernelSequence,
    cuts: LongArray,
    sizes: LongArray,
    interval_s: float,
    forwards: BoolArray | None = None,
) -> Slicing:
    """Returns the slicing with ``sizes`` [S] chips per segment; ``forwards`` [S] marks forwarding stages."""
    lengths, first_chip = np.diff(cuts), np.cumsum(sizes) - sizes
    return Slicing(
        np.repeat(first_chip, lengths)[sequence.kernel_of].astype(np.int32),
        cuts,
        sizes,
        interval_s,
        np.repeat(sizes, lengths)[sequence.kernel_of].astype(np.int32),
        () if forwards is None else tuple(first_chip[forwards].tolist()),
    )
