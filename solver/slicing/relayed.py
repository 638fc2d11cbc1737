"""SLICE with relays: every tensor that passes a chip is copied there.

With ``R(i, j)`` the seconds of the relays of what passes segment ``[i, j)``
(:mod:`go_opt.solver.slicing.relay_terms`), a segment costs ``P[j] - P[i] + R(i, j)`` where slicing
without relays pays ``P[j] - P[i]`` (:mod:`go_opt.solver.slicing.cuts`). ``R`` falls as a segment
grows, at either end, so its cost does not rise with its length: for a candidate interval every
start of the window ``P[j] - P[i] <= T`` may be the one to use. The longest segments
come first, and the search of a window ends at a start reached by as few chips as any in it:
O(M W) for windows of W kernels, close to O(M) where little passes.

Slicing at no cost for what passes is the lower end of the interval, and the answer where its
segments are relayed for nothing.
"""

from __future__ import annotations

import math
from functools import partial
from typing import Unpack

import numpy as np
from numba import njit
from numpy.typing import NDArray

from go_opt.env.cost import CostTables
from go_opt.solver.problem.segment_rules import SegmentRules
from go_opt.solver.problem.sequence import kernel_sequence
from go_opt.solver.slicing.cuts import NO_SLICING, cheapest_cuts, least_interval, walk_back
from go_opt.solver.slicing.problem import SliceProblem, slice_problem, slicing_cost_s
from go_opt.solver.slicing.relay_terms import no_relays, no_tensors_alive, relay_s, relay_terms, start_over
from go_opt.solver.slicing.segments.memory import segment_memory
from go_opt.solver.slicing.slice import Slicing, cheapest_that_fits, most_chips, sliced


def slice_order_relayed(
    tables: CostTables,
    order: NDArray[np.int32],
    fusion_group: NDArray[np.int32],
    *,
    min_chips: int = 1,
    max_chips: int | None = None,
    at_most_s: float = math.inf,
    **rules: Unpack[SegmentRules],
) -> Slicing | None:
    """The cheapest slicing of ``order`` whose activations, relays' buffers among them, fit.

    ``None`` where there is none; arguments as for :func:`~go_opt.solver.slicing.slice.slice_order`.
    """
    sequence = kernel_sequence(tables, order, fusion_group, adjacent=False)
    relays = relay_terms(tables, sequence.kernel_of, sequence.num_kernels)
    problem = slice_problem(tables, sequence, relays=relays, **rules)
    memory = partial(segment_memory, tables, sequence, weights_may_stream=True, relayed=True)
    cheapest = partial(cheapest_relayed_cuts, tables)
    chips = most_chips(tables, sequence, max_chips)
    cuts = cheapest_that_fits(problem, memory, cheapest, min_chips, chips, at_most_s)
    return None if cuts is None else sliced(sequence, problem, cuts)


def cheapest_relayed_cuts(
    tables: CostTables, problem: SliceProblem, max_chips: int, at_most_s: float
) -> NDArray[np.int64] | None:
    """Cuts of the cheapest slicing on at most ``max_chips`` chips, all alike and with memory for all.

    ``None`` where it takes more than ``at_most_s``.
    """
    without_relays = problem._replace(relays=no_relays(tables, problem.num_kernels))
    cuts = cheapest_cuts(without_relays, max_chips, at_most_s)
    if cuts is None:
        return None
    cost_s = partial(slicing_cost_s, problem)
    lower_s, upper_s = slicing_cost_s(without_relays, cuts), cost_s(cuts)
    alive, previous = no_tensors_alive(problem.relays), np.zeros(problem.num_kernels + 1, np.int64)

    def cuts_within(interval_s: float) -> tuple[NDArray[np.int64] | None, float]:
        chips, next_s = fewest_chips_relayed(problem, max_chips, interval_s, alive, previous)
        return (None if chips == NO_SLICING else walk_back(previous, chips)), next_s

    if upper_s <= at_most_s:
        return least_interval(cost_s, cuts_within, lower_s, upper_s, cuts)
    return least_interval(cost_s, cuts_within, lower_s, at_most_s)


@njit(cache=True, nogil=True)
def fewest_chips_relayed(problem, max_chips, interval_s, alive, previous):
    """Fewest chips that keep every segment within ``interval_s``, or NO_SLICING; and what comes next.

    Up to the second value, the least cost of any segment or cut that was refused, every
    candidate interval gives the same answer. ``previous[j]`` is the cut before j.
    """
    relays, overlap, kind = problem.relays, problem.overlap, problem.chip_kind[0]
    num_kernels = problem.prefix_s.shape[1] - 1
    slack_s = interval_s * (1.0 + 1e-13)
    next_s = np.inf
    most_saved_s = 0.0
    for a in range(len(problem.again_s)):
        most_saved_s += problem.again_s[a]
    chips = np.empty(num_kernels + 1, np.int64)
    start_s = np.empty(num_kernels)  # what a segment from here costs beside its end and its relays
    reached_by = np.zeros(max_chips + 2, np.int64)  # starts of the window by their number of chips
    chips[0] = 0
    fewest = np.int64(0)  # of any start of the window
    first, again = 0, 0
    passing_bytes, passing = np.int64(0), np.int64(0)  # what passes [first, j)
    start_over(relays, alive)
    for j in range(1, num_kernels + 1):
        for t in range(relays.last_ptr[j - 1], relays.last_ptr[j]):
            alive.size_bytes[relays.home[t]] -= relays.size_bytes[t]
            alive.number[relays.home[t]] -= 1
            if relays.home[t] < first:
                passing_bytes -= relays.size_bytes[t]
                passing -= 1
        in_s = 0.0 if overlap else problem.crossing_bytes[j - 1] * problem.hop_s_per_byte[0]
        start_s[j - 1] = in_s - problem.prefix_s[kind, j - 1]
        while again < len(problem.again_kernel) and problem.again_kernel[again] < j:
            for i in range(first, problem.again_before[again] + 1):
                start_s[i] -= problem.again_s[again]
            again += 1
        reached_by[chips[j - 1]] += 1
        fewest = min(fewest, chips[j - 1])
        while first < j:
            least_s = problem.prefix_s[kind, j] - problem.prefix_s[kind, first] - most_saved_s
            if least_s <= slack_s:
                break
            next_s = min(next_s, least_s)
            passing_bytes += alive.size_bytes[first]
            passing += alive.number[first]
            reached_by[chips[first]] -= 1
            first += 1
        while fewest <= max_chips and reached_by[fewest] == 0:
            fewest += 1
        chips[j] = max_chips + 1
        if not problem.may_cut[j]:
            continue
        out_s = problem.crossing_bytes[j] * problem.hop_s_per_byte[0]
        if overlap and out_s > slack_s:
            next_s = min(next_s, out_s)
            continue
        end_s = problem.prefix_s[kind, j] + (0.0 if overlap else out_s)
        size_bytes, count = passing_bytes, passing
        for i in range(first, j):
            if chips[i] + 1 < chips[j]:
                cost_s = start_s[i] + end_s + relay_s(relays, kind, size_bytes, count)
                if cost_s <= slack_s:
                    chips[j] = chips[i] + 1
                    previous[j] = i
                    if chips[i] == fewest:
                        break
                else:
                    next_s = min(next_s, cost_s)
            size_bytes += alive.size_bytes[i]
            count += alive.number[i]
    return (chips[num_kernels] if chips[num_kernels] <= max_chips else NO_SLICING), next_s
