"""SLICE by likelihood: the most likely cuts along a kernel sequence, and exact samples of cuts.

Segment d runs on chip d. For log-probabilities ``l``, cuts ``0 = c_0 < c_1 < … < c_n = M`` have
the weight ``exp(Σ_d Σ_{m in [c_d, c_{d+1})} l[m, d])`` if every segment ends at or after the
reach of its start (:mod:`go_opt.solver.problem.sequence`). With ``S_d`` the prefix sums of
``l[:, d]``, the forward filter is

    F[d][j] = S_d(j) + log Σ_{i: reach(i) <= j} exp(F[d-1][i] - S_d(i)),

the log-weight of all ways to cover the kernels before cut j with d + 1 chips. ``reach`` is
monotone, so the starts that may end at j are a range that only grows: one running sum
``C[d][i]`` per chip serves all j, O(D M) in total. ``C[d]`` is also the distribution function
of the cut before a given cut. So walking back from the last cut draws an exact sample with one
binary search per chip. Carrying the probabilities of all cuts back gives the marginals
(forward-backward algorithm). With the maximum in place of the sum, the recurrence gives the
most likely cuts (Viterbi).

A kernel without mass on a chip splits that chip's range in two. If every slicing contains such
a kernel, see :func:`likelihood_slicing`. Axes: ``M`` kernels, ``D`` chips, ``L`` levels (chips
a slicing may use), ``S`` samples.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np

from go_opt.common.arrays import FloatArray, IntArray, LongArray
from go_opt.errors import InfeasibleError, InvalidInputError
from go_opt.solver.problem.sequence import KernelSequence
from go_opt.solver.slicing.likelihood_kernels import (
    run_filter,
    run_likeliest,
    run_marginals,
    sum_log_probs,
    walk_back,
)

# If no slicing has mass, each kernel without mass on its chip gets exp(-1000): slicings with
# the fewest such kernels win, and the sums stay far from overflow.
ZERO_MASS: Final = -1000.0


class CutFilter(NamedTuple):
    """The distribution over cuts, ready to draw from."""

    cumulative: FloatArray  # [L, M] C: log-weight of the starts of a range up to this one
    prefix: FloatArray  # [L, M + 1] S: prefix sums without massless kernels, zero at a likely cut
    stretch: IntArray  # [L, M + 1] first start from which the chip has mass up to each cut
    num_starts: LongArray  # [M + 1] starts whose reach is at most this cut
    end: FloatArray  # [L] log-weight of all slicings on level + 1 chips
    log_total: float  # of all slicings

    @property
    def num_kernels(self) -> int:
        return self.cumulative.shape[1]


class LikelihoodSlicing(NamedTuple):
    """Placements along a sequence: samples of a policy, or its most likely slicing."""

    placement: IntArray  # [S, N]
    chips_used: IntArray  # [S]
    cuts: LongArray  # [S, L + 1], M from entry ``chips_used`` on
    log_prob: FloatArray  # [S] of the cuts given the sequence, exact
    has_mass: bool  # False: no slicing has mass, and massless kernels got exp(ZERO_MASS)


def likelihood_slicing(
    sequence: KernelSequence,
    log_probs: FloatArray,
    chip_kind: IntArray,
    *,
    seed: int = 0,
    num_samples: int = 0,
    min_chips: int = 1,
) -> LikelihoodSlicing:
    """Samples slicings of ``sequence`` in proportion to their likelihood, or returns the most likely one.

    Args:
      log_probs: [N, D] of each op on each chip, on any scale; -inf means no mass. If no slicing
        has mass, kernels without mass get ``ZERO_MASS``.
      chip_kind: [D] (``tables.chip_kind``); a kernel never runs on a kind that cannot run it.
      num_samples: 0 for the most likely slicing, as a batch of one.
      min_chips: the least number of chips to use (``D``: all).

    Raises:
      InfeasibleError: no slicing uses ``min_chips`` chips, or none runs every op on a capable chip.
    """
    found, kernel_log_probs, has_mass = sequence_filter(sequence, log_probs, chip_kind, min_chips=min_chips)
    if num_samples == 0:
        chips_used, cuts = most_likely_cuts(sequence.reach, kernel_log_probs, min_chips=min_chips)
    else:
        chips_used, cuts = sample_cuts(found, seed, num_samples)
    return LikelihoodSlicing(
        placement=chip_of_kernel(cuts)[:, sequence.kernel_of],
        chips_used=chips_used,
        cuts=cuts,
        log_prob=log_prob(found, cuts),
        has_mass=has_mass,
    )


def sequence_filter(
    sequence: KernelSequence,
    log_probs: FloatArray,
    chip_kind: IntArray,
    *,
    min_chips: int = 1,
) -> tuple[CutFilter, FloatArray, bool]:
    """Returns the filter of a sequence, its rows [M, D], and whether any slicing has mass.

    Arguments and errors as for :func:`likelihood_slicing`.
    """
    can_run = sequence.can_run[chip_kind].T
    rows = np.where(can_run, sum_by_kernel(sequence.kernel_of, log_probs), -np.inf)
    found = cut_filter(sequence.reach, rows, min_chips=min_chips)
    if found.log_total > -np.inf:
        return found, rows, True
    rows[np.isneginf(rows) & can_run] = ZERO_MASS
    found = cut_filter(sequence.reach, rows, min_chips=min_chips)
    if found.log_total == -np.inf:
        raise InfeasibleError("no slicing of this order puts every op on a chip kind that can run it.")
    return found, rows, False


def cut_filter(reach: LongArray, log_probs: FloatArray, *, min_chips: int = 1) -> CutFilter:
    """Runs the forward filter.

    Args:
      reach: [M + 1], monotone, ``reach[i] > i``.
      log_probs: [M, D] of each kernel on each chip.
      min_chips: slicings on fewer chips have no weight.

    Raises:
      InfeasibleError: no slicing uses that many chips.
    """
    rows, levels = _checked(reach, log_probs, min_chips)
    num_kernels = rows.shape[1]
    num_starts = _num_starts(reach)
    cumulative = np.empty((levels, num_kernels))
    prefix = np.empty((levels, num_kernels + 1))
    stretch = np.empty((levels, num_kernels + 1), dtype=np.int32)
    end = np.empty(levels)
    run_filter(rows, num_starts, cumulative, prefix, stretch, end)
    end[: min_chips - 1] = -np.inf
    return CutFilter(cumulative, prefix, stretch, num_starts, end, float(np.logaddexp.reduce(end)))


def most_likely_cuts(
    reach: LongArray, log_probs: FloatArray, *, min_chips: int = 1
) -> tuple[IntArray, LongArray]:
    """Returns chips used [1] and cuts [1, L + 1] of the likeliest slicing.

    Arguments as for :func:`cut_filter`. If no slicing has mass: 0 chips, and all cuts are M.
    """
    rows, levels = _checked(reach, log_probs, min_chips)
    num_kernels = rows.shape[1]
    num_starts = _num_starts(reach)
    before = np.zeros((levels, num_kernels), dtype=np.int32)
    end = np.empty(levels)
    run_likeliest(rows, num_starts, before, end)
    end[: min_chips - 1] = -np.inf
    best = int(np.argmax(end))
    cuts = np.full((1, levels + 1), num_kernels, dtype=np.int64)
    if end[best] == -np.inf:
        return np.zeros(1, dtype=np.int32), cuts
    for level in range(best, -1, -1):
        cuts[0, level] = before[level, num_starts[cuts[0, level + 1]] - 1]
    return np.array([best + 1], dtype=np.int32), cuts


def sample_cuts(cut_filter: CutFilter, seed: int, num_samples: int) -> tuple[IntArray, LongArray]:
    """Draws chips used [S] and cuts [S, L + 1], padded with M, from the filter's distribution."""
    if cut_filter.log_total == -np.inf:
        raise InvalidInputError("no slicing has any mass to draw from.", field="log_probs")
    levels = len(cut_filter.end)
    cuts = np.full((num_samples, levels + 1), cut_filter.num_kernels, dtype=np.int64)
    chips_used = np.empty(num_samples, dtype=np.int32)
    # In (0, 1]: the search for a positive share never stops at a start without weight.
    uniforms = 1.0 - np.random.default_rng(seed).random((num_samples, levels + 1))
    share = np.cumsum(np.exp(cut_filter.end - cut_filter.log_total))
    walk_back(cut_filter, share / share[-1], uniforms, chips_used, cuts)
    return chips_used, cuts


def log_prob(cut_filter: CutFilter, cuts: LongArray) -> FloatArray:
    """Returns the exact log-probability [S] of ``cuts`` [S, L + 1]; -inf if cuts break a rule."""
    result = np.empty(len(cuts))
    sum_log_probs(cut_filter, cuts, result)
    return result


def cut_marginals(cut_filter: CutFilter) -> FloatArray:
    """Returns the probability [M, L] of each kernel on each chip.

    This is the gradient of ``log_total`` with respect to the filter's rows. Chips from L on get no kernel.
    """
    if cut_filter.log_total == -np.inf:
        raise InvalidInputError("no slicing has any mass to have marginals of.", field="log_probs")
    by_level = np.empty(cut_filter.cumulative.shape)
    run_marginals(cut_filter, by_level)
    return by_level.T


def chip_of_kernel(cuts: LongArray) -> IntArray:
    """Returns the segment [S, M] of each kernel."""
    num_kernels = int(cuts[0, -1])
    starts = np.zeros((len(cuts), num_kernels + 1), dtype=np.int32)
    np.add.at(starts, (np.arange(len(cuts))[:, None], cuts[:, 1:-1]), 1)
    return np.cumsum(starts[:, :num_kernels], axis=1, dtype=np.int32)


def sum_by_kernel(kernel_of: IntArray, log_probs: FloatArray) -> FloatArray:
    """Returns the sums [M, D] of ``log_probs`` [N, D] over the ops of each kernel; ``kernel_of`` is [N]."""
    if log_probs.ndim != 2 or len(log_probs) != len(kernel_of):
        raise InvalidInputError(
            f"log_probs has shape {log_probs.shape}, must have a row for each of {len(kernel_of)} ops.",
            field="log_probs",
        )
    by_kernel = np.argsort(kernel_of, kind="stable")
    starts = np.flatnonzero(np.diff(kernel_of[by_kernel], prepend=-1))
    return np.add.reduceat(np.asarray(log_probs, dtype=np.float64)[by_kernel], starts, axis=0)


def _checked(reach: LongArray, log_probs: FloatArray, min_chips: int) -> tuple[FloatArray, int]:
    """Returns rows [D, M] by chip, and the number of chips a slicing may use."""
    if log_probs.ndim != 2 or len(reach) != len(log_probs) + 1:
        raise InvalidInputError(
            f"log_probs has shape {log_probs.shape}, must be ({len(reach) - 1}, D).", field="log_probs"
        )
    rows = np.ascontiguousarray(log_probs.T, dtype=np.float64)
    if not rows.max(initial=-np.inf) < np.inf:  # also true for NaN
        raise InvalidInputError("log_probs holds NaN or infinity.", field="log_probs")
    levels = min(rows.shape)
    most = _most_segments(reach)
    if min_chips > min(most, levels):
        raise InfeasibleError(
            f"{min_chips} chips cannot all be used: this order has at most {min(most, levels)} segments."
        )
    return rows, levels


def _num_starts(reach: LongArray) -> LongArray:
    """Returns [M + 1]: the first so many starts may end at each cut, because reach is monotone."""
    num_kernels = len(reach) - 1
    return np.searchsorted(reach[:-1], np.arange(num_kernels + 1), side="right").astype(np.int64)


def _most_segments(reach: LongArray) -> int:
    """Returns the most segments a slicing can have: reach is monotone, so each ends as early as possible."""
    num_kernels = len(reach) - 1
    cut, segments = 0, 0
    while cut < num_kernels and reach[cut] <= num_kernels:
        cut, segments = int(reach[cut]), segments + 1
    return max(segments, 1)
