"""SLICE: the cheapest valid cut sequence of a kernel sequence.

A slicing is a chain of cuts ``0 = c_0 < c_1 < … < c_n = M``; segment d runs on chip d.
It is valid under the acyclic, no-skip and adjacent rules where every segment ends at or
after the reach of its start (:mod:`go_opt.solver.sequence`). With ``P`` the prefix sums of
kernel seconds and ``x`` the seconds a cut's traffic takes, the cost of a segment is

* overlapped: ``max(P[j] - P[i], x[i], x[j])``,
* summed: ``P[j] - P[i] + x[i] + x[j]`` + its inputs (each once) and outputs,

and the interval is the largest cost of a segment, and no less than the host's traffic
where it overlaps. For a candidate interval ``T`` a dynamic program over cuts finds the
fewest chips (:func:`_fewest_chips`); bisection over ``T`` does the rest. Segments whose
activations do not fit are excluded (:mod:`go_opt.solver.slicing_general`, which also
serves chips that are not alike); streamed weights are charged afterwards.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

from go_opt.env.cost import CostTables
from go_opt.env.routes import hop_seconds_per_byte
from go_opt.solver.sequence import KernelSequence

RELATIVE_TOLERANCE: Final = 1e-10
GALLOP_STEP: Final = 0.1
ROUNDING: Final = 1e-12
NO_SLICING: Final = -1


class SliceProblem(NamedTuple):
    """A sequence on a target's chips in their order. Axes: ``M`` kernels, ``D`` chips, ``Q`` kinds."""

    prefix_s: NDArray[np.float64]  # [Q, M + 1] kernels (summed: and host traffic) before a cut
    crossing_bytes: NDArray[np.int64]  # [M + 1]
    blocked: NDArray[np.int64]  # [Q, M + 1] kernels before a cut that the kind cannot run
    reach: NDArray[np.int64]  # [M + 1]
    hop_s_per_byte: NDArray[np.float64]  # [D] from chip d to chip d + 1
    chip_kind: NDArray[np.int32]  # [D]
    pays_transfers: NDArray[np.bool_]  # [Q]
    again_kernel: NDArray[np.int64]  # [A] repeated reads of inputs, see KernelSequence
    again_before: NDArray[np.int64]  # [A]
    again_s: NDArray[np.float64]  # [A] seconds a segment with both reads saves
    floor_s: float  # no slicing is faster: the host's links where they overlap
    overlap: bool

    @property
    def num_kernels(self) -> int:
        return self.prefix_s.shape[1] - 1

    @property
    def chips_are_alike(self) -> bool:
        hops = self.hop_s_per_byte[:-1]
        one_rate = len(hops) == 0 or bool((hops == hops[0]).all())
        return one_rate and len(np.unique(self.chip_kind)) == 1 and not self.blocked.any()


def slice_problem(tables: CostTables, sequence: KernelSequence) -> SliceProblem:
    """The slicing problem of ``sequence`` on the target of ``tables``."""
    seconds = sequence.kernel_s
    host_s = (
        sequence.host_in_bytes * tables.host_in_s_per_byte
        + sequence.host_out_bytes * tables.host_out_s_per_byte
    )
    if not tables.overlap:
        seconds = seconds + host_s * tables.pays_transfers[:, None]
    zero = np.zeros((len(seconds), 1))
    # Where nothing overlaps and no kind pays, transfers cost nothing at all.
    transfers_cost = tables.overlap or bool(tables.pays_transfers.any())
    host_floor_s = max(
        sequence.input_bytes * tables.host_in_s_per_byte,
        float(sequence.host_out_bytes.sum()) * tables.host_out_s_per_byte,
    )
    saves = transfers_cost and not tables.overlap
    return SliceProblem(
        prefix_s=np.concatenate([zero, np.cumsum(seconds, axis=1)], axis=1),
        crossing_bytes=sequence.crossing_bytes,
        blocked=np.concatenate([zero, np.cumsum(~sequence.can_run, axis=1)], axis=1).astype(np.int64),
        reach=sequence.reach,
        hop_s_per_byte=hop_seconds_per_byte(tables) * transfers_cost,
        chip_kind=tables.chip_kind,
        pays_transfers=tables.pays_transfers,
        again_kernel=sequence.again_kernel,
        again_before=sequence.again_before,
        again_s=(sequence.again_bytes * tables.host_in_s_per_byte * saves).astype(np.float64),
        floor_s=host_floor_s if tables.overlap else 0.0,
        overlap=tables.overlap,
    )


def cheapest_cuts(problem: SliceProblem, max_chips: int) -> NDArray[np.int64]:
    """Cuts ``[c_0, …, c_n]`` of the cheapest slicing on at most ``max_chips`` chips, all alike.

    Activations are taken to fit.
    """
    previous = np.zeros(problem.num_kernels + 1, dtype=np.int64)

    def cuts_within(interval_s: float) -> NDArray[np.int64] | None:
        chips = _fewest_chips(problem, max_chips, interval_s, previous)
        return None if chips == NO_SLICING else _walk_back(previous, chips)

    # Segments share the work, less at most everything that inputs read again can save.
    work_s = float(problem.prefix_s[0, -1]) - float(problem.again_s.sum())
    lower_s = max(work_s * (1.0 - ROUNDING) / max_chips, problem.floor_s)
    cuts = least_interval(problem, lower_s, one_chip_s(problem), cuts_within)
    assert cuts is not None, "one segment holds everything where nothing is excluded"
    return cuts


def one_chip_s(problem: SliceProblem) -> float:
    """No segment costs more than this, on whichever chip."""
    dearest_hop = float(problem.hop_s_per_byte.max())
    cuts_s = 2.0 * float(problem.crossing_bytes.max()) * dearest_hop
    return float(problem.prefix_s[:, -1].max()) + cuts_s + problem.floor_s


def least_interval(
    problem: SliceProblem,
    lower_s: float,
    upper_s: float,
    cuts_within: Callable[[float], NDArray[np.int64] | None],
) -> NDArray[np.int64] | None:
    """The cuts of the least interval in [lower_s, upper_s] for which ``cuts_within`` finds any.

    Growing steps up from ``lower_s`` find a first slicing, bisection the least; each
    slicing found pulls the upper end down to what it really costs. Small intervals come
    first because they are cheap to try: their segments are short.
    """
    if lower_s > upper_s:
        return None
    step = GALLOP_STEP
    best = cuts_within(lower_s * (1.0 + RELATIVE_TOLERANCE))
    reached_s = lower_s
    while best is None:
        if reached_s >= upper_s:
            return None
        lower_s = reached_s
        reached_s = min(reached_s * (1.0 + step), upper_s) if reached_s > 0 else upper_s
        step *= 2.0
        best = cuts_within(reached_s)
    upper_s = slicing_cost_s(problem, best)
    while upper_s - lower_s > RELATIVE_TOLERANCE * upper_s:
        middle_s = 0.5 * (lower_s + upper_s)
        cuts = cuts_within(middle_s)
        if cuts is None:
            lower_s = middle_s
        else:
            best, upper_s = cuts, min(middle_s, slicing_cost_s(problem, cuts))
    return best


def slicing_cost_s(problem: SliceProblem, cuts: NDArray[np.int64]) -> float:
    """Interval of a slicing, streamed weights left out."""
    costs = [_segment_cost_s(problem, d, cuts[d], cuts[d + 1]) for d in range(len(cuts) - 1)]
    return max(problem.floor_s, *costs)


def _walk_back(previous: NDArray[np.int64], chips: int) -> NDArray[np.int64]:
    cuts = np.empty(chips + 1, dtype=np.int64)
    cuts[chips] = len(previous) - 1
    for d in range(chips, 0, -1):
        cuts[d - 1] = previous[cuts[d]]
    return cuts


@njit(cache=True, nogil=True)
def _segment_cost_s(problem, chip, start, end):
    """Cost of segment [start, end) on ``chip``; twin of the conditions in ``_fewest_chips``."""
    kind = problem.chip_kind[chip]
    cost_s = problem.prefix_s[kind, end] - problem.prefix_s[kind, start]
    in_s = problem.crossing_bytes[start] * problem.hop_s_per_byte[chip - 1] if chip > 0 else 0.0
    out_s = problem.crossing_bytes[end] * problem.hop_s_per_byte[chip]
    if problem.overlap:
        return max(cost_s, in_s, out_s)
    if not problem.pays_transfers[kind]:
        return cost_s
    for a in range(len(problem.again_kernel)):
        if problem.again_before[a] >= start and problem.again_kernel[a] < end:
            cost_s -= problem.again_s[a]
    return cost_s + in_s + out_s


@njit(cache=True, nogil=True)
def _fewest_chips(problem, max_chips, interval_s, previous):
    """Fewest chips that keep every segment within ``interval_s``, or NO_SLICING.

    ``chips[j]`` is the fewest that cover kernels before cut j. Segment [i, j) is cheap
    enough where ``start_s[i] + end_s(j) <= interval_s``, so for each number of chips q it is
    enough to keep the least ``start_s[i]`` of all i with ``chips[i] <= q``: O(M) in all, but
    for inputs read again, where what a segment saves depends on both its ends.
    """
    num_kernels = problem.prefix_s.shape[1] - 1
    prefix_s = problem.prefix_s[problem.chip_kind[0]]
    hop_s_per_byte = problem.hop_s_per_byte[0]
    slack_s = interval_s * (1.0 + 1e-13)
    chips = np.full(num_kernels + 1, max_chips + 1, np.int64)
    start_s = np.full(num_kernels + 1, np.inf)
    saved_s = np.zeros(num_kernels + 1)
    least_s = np.full(max_chips + 1, np.inf)
    least_at = np.zeros(max_chips + 1, np.int64)
    chips[0] = 0
    top = np.int64(-1)
    entering = 0
    again = 0
    fewest = np.int64(0)
    for j in range(1, num_kernels + 1):
        is_saving = False
        while again < len(problem.again_kernel) and problem.again_kernel[again] < j:
            for i in range(problem.again_before[again] + 1):
                saved_s[i] += problem.again_s[again]
            again += 1
            is_saving = not problem.overlap
        if is_saving:
            least_s[:] = np.inf
            top = np.int64(-1)
            for i in range(entering):
                if start_s[i] < np.inf:
                    top = _offer(least_s, least_at, top, chips[i], start_s[i] - saved_s[i], i)
        while entering < j and problem.reach[entering] <= j:
            i = entering
            entering += 1
            cut_s = problem.crossing_bytes[i] * hop_s_per_byte
            if chips[i] >= max_chips or (problem.overlap and cut_s > slack_s):
                continue
            start_s[i] = -prefix_s[i] + (0.0 if problem.overlap else cut_s)
            top = _offer(least_s, least_at, top, chips[i], start_s[i] - saved_s[i], i)
        cut_s = problem.crossing_bytes[j] * hop_s_per_byte
        if top < 0 or (problem.overlap and cut_s > slack_s):
            continue
        room_s = slack_s - prefix_s[j] - (0.0 if problem.overlap else cut_s)
        if least_s[top] > room_s:
            continue
        if fewest > top:
            fewest = top
        while fewest > 0 and least_s[fewest - 1] <= room_s:
            fewest -= 1
        while least_s[fewest] > room_s:
            fewest += 1
        chips[j] = fewest + 1
        previous[j] = least_at[fewest]
    return chips[num_kernels] if chips[num_kernels] <= max_chips else NO_SLICING


@njit(cache=True, nogil=True)
def _offer(least_s, least_at, top, chips, seconds, cut):
    """Lower the least start of every count from ``chips`` on; returns the highest count held."""
    while top < chips:
        top += 1
        least_s[top] = least_s[top - 1] if top > 0 else np.inf
        least_at[top] = least_at[top - 1] if top > 0 else 0
    for q in range(chips, top + 1):
        if least_s[q] <= seconds:
            break
        least_s[q] = seconds
        least_at[q] = cut
    return top
