"""SLICE for sequences in flight: each waits for its last inference, so latency / S bounds the interval.

Where the slices of a sample follow one another, its latency is the time of its inputs, kernels and outputs,
which no cut changes, and a transfer for each cut. For a candidate interval T, labels of a cut are the ways to
reach it within T on each number of chips with the streamed bytes and the transfers so far, of which none is
worse than another in all three. T is feasible if a label of the last cut streams within T and its transfers
take at most S T minus the rest of the latency. So the least T is exact. Elsewhere samples may be faster, as
slices overlap, or slower, as tensors go farther: the sum is an estimate.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from go_opt.common.arrays import FloatArray, LongArray
from go_opt.common.compiling import compiled, compiled_inner, int64, uncounted_inner
from go_opt.env.cost import CostTables
from go_opt.env.cost.routes import transfer_s
from go_opt.model.graph import INPUT, NO_PRODUCER
from go_opt.solver.problem.sequence import KernelSequence
from go_opt.solver.slicing.cuts import RELATIVE_TOLERANCE, least_interval
from go_opt.solver.slicing.streamed.cuts import StreamedCuts, StreamedProblem


class SampleLatency(NamedTuple):
    """The latency of a sample along a sequence of kernels on chips that are alike."""

    sequences: int
    fixed_s: float  # inputs, kernels and outputs
    cut_s: FloatArray  # [M + 1] from the kernel before a cut to the slice behind it

    @property
    def longest_s(self) -> float:
        """An interval that no slicing waits for."""
        return (self.fixed_s + float(self.cut_s.sum())) / self.sequences * 1.001 + 1e-30


def sample_latency(tables: CostTables, sequence: KernelSequence) -> SampleLatency:
    """Returns the latency of a sample, whose slices follow one another.

    What crosses a cut last is what the last kernel before it leaves: its largest tensor that is read behind.
    """
    kind, home, last = tables.chip_kind[0], sequence.home, sequence.last
    cut_s = np.zeros(sequence.num_kernels + 1)
    latest = np.full(sequence.num_kernels + 1, -1)
    for k in np.flatnonzero((home >= 0) & (last > home)).tolist():
        seconds = transfer_s(tables, 0, min(1, tables.num_chips - 1), tables.tensor_bytes[k])
        for cut in range(home[k] + 1, last[k] + 1):
            if home[k] > latest[cut]:
                latest[cut], cut_s[cut] = home[k], 0.0
            if home[k] == latest[cut]:
                cut_s[cut] = max(cut_s[cut], seconds)
    is_input = (tables.tensor_kind == INPUT) & (np.diff(tables.reader_ptr) > 0)
    first = _bytes_at(tables, sequence, is_input)
    is_output = tables.tensor_is_output & (tables.tensor_producer != NO_PRODUCER)
    sent = np.flatnonzero(is_output & (home == sequence.num_kernels - 1))
    ends_s = float(tables.tensor_bytes[sent].max(initial=0)) * tables.host_out_s_per_byte
    begins_s = float(first) * tables.host_in_s_per_byte
    return SampleLatency(tables.loops, begins_s + float(sequence.kernel_s[kind].sum()) + ends_s, cut_s)


def _bytes_at(tables: CostTables, sequence: KernelSequence, is_input: np.ndarray) -> int:
    """Returns the bytes of the largest input that the first kernel reads."""
    is_first = sequence.kernel_of[tables.reader_op] == 0
    read = tables.reader_tensor[is_first]
    return int(tables.tensor_bytes[read[is_input[read]]].max(initial=0))


def cheapest_cuts_with_latency(
    problem: StreamedProblem, latency: SampleLatency, lower_s: float, upper_s: float
) -> StreamedCuts | None:
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

    lower_s = max(lower_s, latency.fixed_s / latency.sequences, problem.host_s)
    upper_s = upper_s * (1.0 - RELATIVE_TOLERANCE)
    found = least_interval(cost_s, cuts_within, lower_s, upper_s)
    if found is None:
        return None
    return StreamedCuts(table.cut[found], np.ones(len(found) - 1, np.int64), cost_s(found))


@compiled
def _cuts_within(
    problem: StreamedProblem, cut_s: FloatArray, interval_s: float, most_bytes: float, most_s: float
) -> LongArray:
    """Returns the candidates of a slicing within all three limits; none if there is no such slicing."""
    table, most_chips, last = problem.table, len(problem.class_of_chip), len(problem.table.cut) - 1
    marks = np.zeros((3, 4 * last + 4), np.int64)  # of each label: its cut, chips, and the label before
    sums = np.zeros((2, 4 * last + 4), np.float64)  # streamed bytes, and seconds of transfers
    begin = np.zeros(last + 2, np.int64)  # first label of each cut
    number = int64(1)
    begin[1] = 1
    for b in range(1, last + 1):
        for a in range(table.first[b], b):
            place = table.offset[b] + a
            if table.cost_s[0, place] > interval_s:
                continue
            for label in range(begin[a], begin[a + 1]):
                chips = marks[1, label] + 1
                streamed = sums[0, label] + table.streamed_bytes[0, place]
                seconds = sums[1, label] + cut_s[b]
                if chips > most_chips or streamed > most_bytes or seconds > most_s:
                    continue
                marks, sums = _with_room(marks, sums, number)
                marks[0, number], marks[1, number], marks[2, number] = b, chips, label
                sums[0, number], sums[1, number] = streamed, seconds
                number = _keep_best(marks, sums, begin[b], number)
        begin[b + 1] = number
    best = int64(-1)
    for label in range(begin[last], begin[last + 1]):
        if best < 0 or sums[1, label] < sums[1, best]:
            best = label
    if best < 0:
        return np.empty(0, np.int64)
    cuts = np.empty(marks[1, best] + 1, np.int64)
    for i in range(len(cuts) - 1, -1, -1):
        cuts[i] = marks[0, best]
        best = marks[2, best]
    return cuts


@compiled_inner
def _with_room(marks: LongArray, sums: FloatArray, number: int) -> tuple[LongArray, FloatArray]:
    """Returns the labels with room for one more."""
    if number < marks.shape[1]:
        return marks, sums
    more_marks = np.zeros((3, 2 * number), np.int64)
    more_sums = np.zeros((2, 2 * number), np.float64)
    for i in range(number):
        for row in range(3):
            more_marks[row, i] = marks[row, i]
        more_sums[0, i], more_sums[1, i] = sums[0, i], sums[1, i]
    return more_marks, more_sums


@uncounted_inner
def _keep_best(marks: LongArray, sums: FloatArray, begin: int, new: int) -> int:
    """Drops label ``new`` if one from ``begin`` on is as good in all, or else those that are no better.

    Returns the number of labels.
    """
    end = new
    label = begin
    while label < end:
        is_best = marks[1, label] <= marks[1, new]
        is_best &= sums[0, label] <= sums[0, new] and sums[1, label] <= sums[1, new]
        if is_best:
            return new  # then it has replaced none
        is_no_better = marks[1, new] <= marks[1, label]
        is_no_better &= sums[0, new] <= sums[0, label] and sums[1, new] <= sums[1, label]
        if is_no_better:
            end -= 1
            _move(marks, sums, end, label)
        else:
            label += 1
    _move(marks, sums, new, end)
    return end + 1


@uncounted_inner
def _move(marks: LongArray, sums: FloatArray, source: int, to: int) -> None:
    for row in range(3):
        marks[row, to] = marks[row, source]
    sums[0, to], sums[1, to] = sums[0, source], sums[1, source]
