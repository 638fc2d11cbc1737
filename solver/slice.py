"""The door to slicing: an order and its kernels in, a placement out."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from go_opt.env.cost import CostTables
from go_opt.solver.greedy import greedy_cuts
from go_opt.solver.segment_memory import segment_memory, segments_fit
from go_opt.solver.sequence import KernelSequence, kernel_sequence
from go_opt.solver.slicing import (
    SliceProblem,
    cheapest_cuts,
    one_chip_s,
    slice_problem,
    slicing_cost_s,
)
from go_opt.solver.slicing_general import cheapest_cuts_general


@dataclass(frozen=True, eq=False)
class Slicing:
    """A placement that follows an order: kernels between two cuts share a chip."""

    placement: NDArray[np.int32]  # [N]
    cuts: NDArray[np.int64]  # [chips used + 1]
    interval_s: float  # its cost, streamed weights left out


def slice_order(
    tables: CostTables,
    order: NDArray[np.int32],
    fusion_group: NDArray[np.int32],
    *,
    adjacent: bool,
    min_chips: int = 1,
    max_chips: int | None = None,
    at_most_s: float = math.inf,
) -> Slicing | None:
    """The cheapest slicing of ``order`` whose activations fit; ``None`` where none does.

    Args:
      order: [N] a topological order; the ops of each group stand next to each other.
      fusion_group: [N]; cuts fall between groups only.
      adjacent: whether every edge may span at most one chip (the triangle rule holds).
      min_chips: use no fewer chips than this.
      max_chips: use no more chips than this; all by default.
      at_most_s: where memory is tight, do not look for slicings slower than this.
    """
    sequence = kernel_sequence(tables, order, fusion_group, adjacent=adjacent)
    problem = slice_problem(tables, sequence)
    chips = min(max_chips or tables.num_chips, tables.num_chips, sequence.num_kernels)
    memory = segment_memory(tables, sequence, weights_may_stream=True)
    lower_s = problem.floor_s
    if problem.chips_are_alike and min_chips == 1:
        # Leaving memory out relaxes the problem: a relaxed optimum that fits is the optimum.
        cuts = cheapest_cuts(problem, chips)
        if segments_fit(memory, cuts):
            return _slicing(sequence, problem, cuts)
        lower_s = slicing_cost_s(problem, cuts)
    upper_s = min(at_most_s, one_chip_s(problem))
    best = cheapest_cuts_general(problem, memory, chips, lower_s, upper_s, min_chips=min_chips)
    return None if best is None else _slicing(sequence, problem, best)


def slice_order_resident(
    tables: CostTables,
    order: NDArray[np.int32],
    fusion_group: NDArray[np.int32],
    *,
    adjacent: bool,
    at_least_s: float,
    at_most_s: float,
) -> Slicing | None:
    """The cheapest slicing of ``order`` that streams no weights but those no chip can hold.

    ``None`` where there is none between the cost of the slicing that may stream,
    ``at_least_s``, and ``at_most_s``; other arguments as for :func:`slice_order`.
    """
    sequence = kernel_sequence(tables, order, fusion_group, adjacent=adjacent)
    problem = slice_problem(tables, sequence)
    memory = segment_memory(tables, sequence, weights_may_stream=False)
    chips = min(tables.num_chips, sequence.num_kernels)
    best = cheapest_cuts_general(problem, memory, chips, at_least_s, at_most_s)
    return None if best is None else _slicing(sequence, problem, best)


def greedy_slicing(
    tables: CostTables, order: NDArray[np.int32], fusion_group: NDArray[np.int32], *, adjacent: bool
) -> Slicing:
    """The greedy compiler heuristic along ``order``, made valid by the adjacent rule."""
    sequence = kernel_sequence(tables, order, fusion_group, adjacent=adjacent)
    problem = slice_problem(tables, sequence)
    return _slicing(sequence, problem, greedy_cuts(problem, tables.num_chips))


def _slicing(sequence: KernelSequence, problem: SliceProblem, cuts: NDArray[np.int64]) -> Slicing:
    chip_of_kernel = np.repeat(np.arange(len(cuts) - 1, dtype=np.int32), np.diff(cuts))
    return Slicing(chip_of_kernel[sequence.kernel_of], cuts, slicing_cost_s(problem, cuts))
