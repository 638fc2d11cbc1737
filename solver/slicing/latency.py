"""SLICE for sequences in flight: each waits for its last inference, so latency / S bounds the interval.

The latency of a sample is the time of its inputs, kernels and outputs, which no cut changes, and what each
cut adds: a transfer, less what the slice behind it does meanwhile. For a candidate interval T, labels of a
cut are the ways to reach it within T on each number of chips with the streamed bytes and the seconds of the
cuts so far, of which none is worse than another in all three. T is feasible if a label of the last cut
streams within T and its cuts add at most S T minus the rest of the latency. Where the slices of a sample
follow one another, the least T is exact. Elsewhere the sum is an estimate: each cut counts as if alone.
"""

from __future__ import annotations

import math
from typing import Final, NamedTuple

import numpy as np

from go_opt.common.arrays import FloatArray, IntArray, LongArray, RecordArray, record
from go_opt.common.compiling import compiled, compiled_inner, int64, uncounted_inner
from go_opt.env.cost.tables import CostTables, transfer_s
from go_opt.model.graph import INPUT, NO_PRODUCER
from go_opt.solver.problem.sequence import KernelSequence
from go_opt.solver.slicing.cuts import RELATIVE_TOLERANCE, least_interval
from go_opt.solver.slicing.streamed import Cuts, StreamedProblem

WINDOW: Final = 256  # kernels behind a cut that are looked at
MOST_ALIKE: Final = 4  # labels of a cut on the same number of chips: beyond, the fastest ones are kept
# Of a way to reach a cut: the cut, its chips, the label before; its seconds of transfers and streamed bytes.
LABEL: Final = record("cut chips before", "streamed_bytes seconds")


class SampleLatency(NamedTuple):
    """The latency of a sample along a sequence of kernels on chips that are alike."""

    sequences: int
    fixed_s: float  # inputs, kernels and outputs
    cut_s: FloatArray  # [M + 1] that a cut adds; below zero where the slice behind it begins before it

    @property
    def longest_s(self) -> float:
        """An interval that no slicing waits for."""
        return (self.fixed_s + float(np.maximum(self.cut_s, 0.0).sum())) / self.sequences * 1.001 + 1e-30

    def least_s(self, chips: int) -> float:
        """An interval for which the cuts of any slicing on so many chips wait."""
        saved_s = np.sort(np.minimum(self.cut_s, 0.0))[: chips - 1].sum()
        return max(self.fixed_s + float(saved_s), 0.0) / self.sequences


def sample_latency(tables: CostTables, sequence: KernelSequence) -> SampleLatency:
    """Returns the latency of a sample along a sequence."""
    kind, home = tables.chip_kind[0], sequence.home
    cut_s = _added_s(tables, sequence.kernel_of, sequence.last, home, sequence.kernel_s[kind])
    is_input = (tables.tensor_kind == INPUT) & (np.diff(tables.reader_ptr) > 0)
    first = _bytes_at(tables, sequence, is_input)
    is_output = tables.tensor_is_output & (tables.tensor_producer != NO_PRODUCER)
    sent = np.flatnonzero(is_output & (home == sequence.num_kernels - 1))
    ends_s = float(tables.tensor_bytes[sent].max(initial=0)) * tables.host_out_s_per_byte
    begins_s = float(first) * tables.host_in_s_per_byte
    return SampleLatency(tables.loops, begins_s + float(sequence.kernel_s[kind].sum()) + ends_s, cut_s)


@compiled
def _added_s(
    tables: CostTables, kernel_of: IntArray, last: LongArray, home: LongArray, kernel_s: FloatArray
) -> FloatArray:
    """Returns the seconds [M + 1] that each cut adds to the way of a sample, if it is the only one.

    The slice behind the cut runs its kernels in turn, each once what comes from before the cut has arrived.
    """
    num_kernels = len(kernel_s)
    end_s = np.zeros(num_kernels + 1)
    for m in range(num_kernels):
        end_s[m + 1] = end_s[m] + kernel_s[m]
    begin = np.zeros(num_kernels + 1, np.int64)  # first read of each kernel …
    for k in range(len(home)):
        if home[k] >= 0 and last[k] > home[k]:
            for r in range(tables.reader_ptr[k], tables.reader_ptr[k + 1]):
                begin[kernel_of[tables.reader_op[r]]] += 1
    total = int64(0)
    for m in range(num_kernels + 1):
        total, begin[m] = total + begin[m], total
    read = np.zeros(total, np.int64)  # … of a tensor that a kernel produces
    place = begin.copy()
    reach = np.zeros(num_kernels + 1, np.int64)  # the last kernel that reads from before each cut
    sent_s, neighbour = np.zeros(len(home)), int64(min(1, len(tables.chip_kind) - 1))
    for k in range(len(home)):
        if home[k] < 0 or last[k] <= home[k]:
            continue
        sent_s[k] = transfer_s(tables, int64(0), neighbour, tables.tensor_bytes[k])
        reach[home[k] + 1] = max(reach[home[k] + 1], last[k])
        for r in range(tables.reader_ptr[k], tables.reader_ptr[k + 1]):
            m = kernel_of[tables.reader_op[r]]
            read[place[m]] = k
            place[m] += 1
    added_s = np.zeros(num_kernels + 1)
    for cut in range(1, num_kernels):
        reach[cut] = max(reach[cut], reach[cut - 1])
        # It does no more than an equal share of the work meanwhile: the slices before it are no longer.
        now_s, m = end_s[cut] - end_s[num_kernels] / len(tables.chip_kind), int64(cut)
        while m <= min(reach[cut], cut + WINDOW):
            for i in range(begin[m], place[m]):
                if home[read[i]] < cut:
                    now_s = max(now_s, end_s[home[read[i]] + 1] + sent_s[read[i]])
            now_s += kernel_s[m]
            m += 1
        added_s[cut] = now_s - end_s[m] if m > cut else 0.0
    return added_s


def _bytes_at(tables: CostTables, sequence: KernelSequence, is_input: np.ndarray) -> int:
    """Returns the bytes of the largest input that the first kernel reads."""
    is_first = sequence.kernel_of[tables.reader_op] == 0
    read = tables.reader_tensor[is_first]
    return int(tables.tensor_bytes[read[is_input[read]]].max(initial=0))


def cheapest_cuts_with_latency(
    problem: StreamedProblem, latency: SampleLatency, lower_s: float, upper_s: float
) -> Cuts | None:
    """Returns the slicing of the least interval below ``upper_s``, if any; chips are alike.

    No slicing may be cheaper than ``lower_s``.
    """
    table = problem.table
    cut_s = latency.cut_s[table.cut]
    cut_s[0] = cut_s[-1] = 0.0

    def cost_s(cuts: LongArray) -> float:
        place = table.offset[cuts[1:]] + cuts[:-1]
        host_s = problem.host_link_s(float(table.streamed_bytes[0, place].sum()))
        waits_s = (latency.fixed_s + float(cut_s[cuts].sum())) / latency.sequences
        return max(float(table.cost_s[0, place].max()), host_s, waits_s)

    def cuts_within(interval_s: float) -> tuple[LongArray | None, float]:
        most_bytes = math.inf
        if problem.stream_s_per_byte > 0.0:
            most_bytes = (interval_s - problem.input_s) / problem.stream_s_per_byte
        most_s = latency.sequences * interval_s - latency.fixed_s
        slack = 1.0 + 1e-12
        cuts = _cuts_within(problem, cut_s, interval_s * slack, most_bytes * slack, most_s * slack)
        return (cuts if len(cuts) else None), 0.0

    lower_s = max(lower_s, latency.least_s(len(problem.class_of_chip)), problem.host_s)
    upper_s = upper_s * (1.0 - RELATIVE_TOLERANCE)
    found = least_interval(cost_s, cuts_within, lower_s, upper_s)
    if found is None:
        return None
    one_each = np.ones(len(found) - 1, np.int64)
    return Cuts(table.cut[found], one_each, cost_s(found), one_each == 0)


@compiled
def _cuts_within(
    problem: StreamedProblem, cut_s: FloatArray, interval_s: float, most_bytes: float, most_s: float
) -> LongArray:
    """Returns the candidates of a slicing within all three limits; none if there is no such slicing."""
    table, most_chips, last = problem.table, len(problem.class_of_chip), len(problem.table.cut) - 1
    labels = np.zeros(4 * last + 4, LABEL)
    begin = np.zeros(last + 2, np.int64)  # first label of each cut
    number = int64(1)
    begin[1] = 1
    left_s = _least_left_s(problem, cut_s, interval_s)
    for b in range(1, last + 1):
        for a in range(table.first[b], b):
            place = table.offset[b] + a
            if table.cost_s[0, place] > interval_s:
                continue
            for label in range(begin[a], begin[a + 1]):
                chips = labels[label].chips + 1
                streamed = labels[label].streamed_bytes + table.streamed_bytes[0, place]
                seconds = labels[label].seconds + cut_s[b]
                if chips > most_chips or streamed > most_bytes:
                    continue
                if seconds + left_s[b, most_chips - chips] > most_s:
                    continue
                labels = _with_room(labels, number)
                labels[number].cut, labels[number].chips, labels[number].before = b, chips, label
                labels[number].streamed_bytes, labels[number].seconds = streamed, seconds
                number = _keep_best(labels, begin[b], number)
        begin[b + 1] = number
    best = int64(-1)
    for label in range(begin[last], begin[last + 1]):
        if best < 0 or labels[label].seconds < labels[best].seconds:
            best = label
    if best < 0:
        return np.empty(0, np.int64)
    cuts = np.empty(labels[best].chips + 1, np.int64)
    for i in range(len(cuts) - 1, -1, -1):
        cuts[i] = labels[best].cut
        best = labels[best].before
    return cuts


@compiled_inner
def _least_left_s(problem: StreamedProblem, cut_s: FloatArray, interval_s: float) -> FloatArray:
    """Returns the least seconds [A, D + 1] that the cuts behind each cut add, with so many chips or fewer."""
    table, most_chips, last = problem.table, len(problem.class_of_chip), len(problem.table.cut) - 1
    left_s = np.full((last + 1, most_chips + 1), np.inf)
    for d in range(most_chips + 1):
        left_s[last, d] = 0.0
    for b in range(last, 0, -1):
        for d in range(1, most_chips + 1):
            left_s[b, d] = min(left_s[b, d], left_s[b, d - 1])
        for a in range(table.first[b], b):
            if table.cost_s[0, table.offset[b] + a] <= interval_s:
                for d in range(most_chips):
                    left_s[a, d + 1] = min(left_s[a, d + 1], cut_s[b] + left_s[b, d])
    return left_s


@compiled_inner
def _with_room(labels: RecordArray, number: int) -> RecordArray:
    """Returns the labels with room for one more."""
    if number < len(labels):
        return labels
    more = np.zeros(2 * number, LABEL)
    for i in range(number):
        more[i] = labels[i]
    return more


@uncounted_inner
def _keep_best(labels: RecordArray, begin: int, new: int) -> int:
    """Drops label ``new`` if one from ``begin`` on is as good in all, or else those that are no better.

    Returns the number of labels.
    """
    end = new
    label = begin
    alike, slowest = int64(0), new  # labels on as many chips, and of these the one with most seconds
    while label < end:
        is_best = labels[label].chips <= labels[new].chips
        is_best &= labels[label].streamed_bytes <= labels[new].streamed_bytes
        if is_best and labels[label].seconds <= labels[new].seconds:
            return new  # then it has replaced none
        is_no_better = labels[new].chips <= labels[label].chips
        is_no_better &= labels[new].streamed_bytes <= labels[label].streamed_bytes
        if is_no_better and labels[new].seconds <= labels[label].seconds:
            end -= 1
            labels[label] = labels[end]
            continue
        if labels[label].chips == labels[new].chips:
            alike += 1
            if labels[label].seconds > labels[slowest].seconds:
                slowest = label
        label += 1
    if alike >= MOST_ALIKE:  # then there is a slower one, or the new one is the slowest
        if slowest < end:
            labels[slowest] = labels[new]
        return end
    labels[end] = labels[new]
    return end + 1
