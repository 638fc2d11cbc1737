"""Kernels of slicing by likelihood; :mod:`go_opt.solver.slicing.likelihood` explains the recurrences."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from go_opt.common.arrays import FloatArray, IntArray, LongArray
from go_opt.common.compiling import compiled, int64, uncounted, uncounted_inner

if TYPE_CHECKING:
    from go_opt.solver.slicing.likelihood import CutFilter


@uncounted_inner
def _prefix_sums(
    row: FloatArray, centre: int, low_part: FloatArray, prefix: FloatArray, stretch: IntArray
) -> None:
    """Fills ``prefix`` with sums of ``row`` relative to ``centre``, and the start of each range with mass.

    Each sum has two parts, high and low (Neumaier): near ``centre`` the sums are small and must
    be precise; far from it they are large and unlikely.
    """
    num_kernels = len(row)
    high = 0.0
    low = 0.0
    begin = 0
    prefix[0] = 0.0
    low_part[0] = 0.0
    stretch[0] = 0
    for m in range(num_kernels):
        gain = row[m]
        if gain == -np.inf:
            begin = m + 1
            gain = 0.0
        total = high + gain
        if abs(high) >= abs(gain):
            low += (high - total) + gain
        else:
            low += (gain - total) + high
        high = total
        prefix[m + 1] = high
        low_part[m + 1] = low
        stretch[m + 1] = begin
    centre_high = prefix[centre]
    centre_low = low_part[centre]
    for j in range(num_kernels + 1):
        prefix[j] = (prefix[j] - centre_high) + (low_part[j] - centre_low)


@compiled
def run_filter(
    rows: FloatArray,
    num_starts: LongArray,
    cumulative: FloatArray,
    prefix: FloatArray,
    stretch: IntArray,
    end: FloatArray,
) -> None:
    """Fills the arrays of a ``CutFilter`` level by level."""
    num_kernels = rows.shape[1]
    reached = np.empty(num_kernels + 1)  # F of the previous level
    low_part = np.empty(num_kernels + 1)
    for j in range(num_kernels + 1):
        reached[j] = -np.inf
    reached[0] = 0.0
    for level in range(len(end)):
        sums = prefix[level]
        begins = stretch[level]
        running = cumulative[level]
        _prefix_sums(rows[level], np.argmax(reached), low_part, sums, begins)
        scale = -np.inf
        weight = 0.0
        for i in range(num_kernels):
            if begins[i] == i:
                scale = -np.inf
                weight = 0.0
            entering = reached[i] - sums[i]
            if entering > scale:
                weight = 1.0 + (weight * np.exp(scale - entering) if weight > 0.0 else 0.0)
                scale = entering
                running[i] = scale + np.log(weight)
            elif entering > scale - 745.0:
                weight += np.exp(entering - scale)
                running[i] = scale + np.log(weight)
            else:
                running[i] = running[i - 1] if begins[i] < i else -np.inf
        for j in range(num_kernels + 1):
            last = num_starts[j] - 1
            reached[j] = sums[j] + running[last] if last >= begins[j] else -np.inf
        end[level] = reached[num_kernels]


@compiled
def run_likeliest(rows: FloatArray, num_starts: LongArray, before: IntArray, end: FloatArray) -> None:
    """Runs the recurrence of ``run_filter`` with maximum in place of sum; ``before`` holds the arg max."""
    num_kernels = rows.shape[1]
    reached = np.empty(num_kernels + 1)
    running = np.empty(num_kernels)
    low_part = np.empty(num_kernels + 1)
    sums = np.empty(num_kernels + 1)
    begins = np.empty(num_kernels + 1, np.int32)
    for j in range(num_kernels + 1):
        reached[j] = -np.inf
    reached[0] = 0.0
    for level in range(len(end)):
        _prefix_sums(rows[level], np.argmax(reached), low_part, sums, begins)
        best = -np.inf
        best_start = 0
        for i in range(num_kernels):
            if begins[i] == i:
                best = -np.inf
            if reached[i] - sums[i] > best:
                best = reached[i] - sums[i]
                best_start = i
            running[i] = best
            before[level, i] = best_start
        for j in range(num_kernels + 1):
            last = num_starts[j] - 1
            reached[j] = sums[j] + running[last] if last >= begins[j] else -np.inf
        end[level] = reached[num_kernels]


@uncounted
def walk_back(
    cut_filter: CutFilter, share: FloatArray, uniforms: FloatArray, chips_used: IntArray, cuts: LongArray
) -> None:
    """Draws the number of chips, then each cut given the cut after it."""
    num_kernels = cut_filter.cumulative.shape[1]
    for s in range(len(uniforms)):
        level = 0
        while share[level] < uniforms[s, 0]:
            level += 1
        chips_used[s] = level + 1
        cut = num_kernels
        while level >= 0:
            running = cut_filter.cumulative[level]
            high = int64(cut_filter.num_starts[cut]) - 1
            low = int64(cut_filter.stretch[level, cut])
            wanted = running[high] + np.log(uniforms[s, level + 1])
            while low < high:
                middle = (low + high) // 2
                if running[middle] >= wanted:
                    high = middle
                else:
                    low = middle + 1
            cut = low
            cuts[s, level] = cut
            level -= 1


@compiled
def run_marginals(cut_filter: CutFilter, marginals: FloatArray) -> None:
    """Fills ``marginals`` [L, M]: kernel m is on the chip whose segment starts by m and ends after m.

    ``begun`` is the probability that the segment starts at each cut, ``ended`` that it ends
    there. An end j divides its probability among its starts i in proportion to
    ``exp(entering[i])``; these add up to ``exp(running[last])``. ``shared`` is the sum, over the
    ends from j on, of their probability times the share of all starts up to ``last``. ``shared``
    is a probability and only scaled down as ``last`` falls, so rows of any scale never overflow.
    """
    num_kernels = cut_filter.cumulative.shape[1]
    num_starts = cut_filter.num_starts
    begun = np.zeros(num_kernels)
    ended = np.zeros(num_kernels + 1)
    for level in range(len(cut_filter.end) - 1, -1, -1):
        running = cut_filter.cumulative[level]
        sums = cut_filter.prefix[level]
        begins = cut_filter.stretch[level]
        for i in range(num_kernels):
            ended[i], begun[i] = begun[i], 0.0
        ended[num_kernels] = np.exp(cut_filter.end[level] - cut_filter.log_total)
        shared = 0.0
        scale = 0.0
        for j in range(num_kernels, 0, -1):
            last = num_starts[j] - 1
            if last < begins[j]:
                shared = 0.0
                continue
            if j < num_kernels and begins[j] != begins[j + 1]:
                shared = 0.0
            if shared > 0.0 and running[last] != scale:
                shared *= np.exp(running[last] - scale)
            shared += ended[j]
            scale = running[last]
            if shared == 0.0:
                continue
            for i in range(max(num_starts[j - 1], begins[j]), num_starts[j]):
                entering = _reached_before(cut_filter, level, i) - sums[i]
                begun[i] = shared * np.exp(entering - scale)
        inside = 0.0
        for m in range(num_kernels):
            inside += begun[m] - ended[m]
            marginals[level, m] = max(inside, 0.0) if begins[m + 1] <= m else 0.0


@uncounted_inner
def _reached_before(cut_filter: CutFilter, level: int, cut: int) -> float:
    """Returns ``reached`` of ``run_filter``: log-weight of ``level`` chips for the kernels before ``cut``."""
    if level == 0:
        return 0.0 if cut == 0 else -np.inf
    last = cut_filter.num_starts[cut] - 1
    if last < cut_filter.stretch[level - 1, cut]:
        return -np.inf
    return cut_filter.prefix[level - 1, cut] + cut_filter.cumulative[level - 1, last]


@uncounted
def sum_log_probs(cut_filter: CutFilter, cuts: LongArray, result: FloatArray) -> None:
    """Fills ``result`` [S] with the log-probability of each row of ``cuts``, segment by segment."""
    num_kernels = cut_filter.cumulative.shape[1]
    for s in range(len(cuts)):
        total = -cut_filter.log_total
        level = 0
        while level < len(cut_filter.end) and cuts[s, level] < num_kernels:
            start = cuts[s, level]
            after = cuts[s, level + 1]
            is_legal = start < after and start < cut_filter.num_starts[after]
            if not is_legal or cut_filter.stretch[level, after] > start:
                total = -np.inf
            else:
                total += cut_filter.prefix[level, after] - cut_filter.prefix[level, start]
            level += 1
        if cuts[s, 0] != 0 or cut_filter.end[level - 1] == -np.inf:
            total = -np.inf
        result[s] = total
