"""SLICE over a table of segments: where memory is short, chips differ, or weights stream.

Streamed weights of all chips share the host's link with the inputs. For a candidate interval T let
``g[b, d]`` be the fewest bytes per inference that d chips take from the host, if they cover the kernels
before candidate cut b, each within T:

    g[b, d + k] = min over a, k of g[a, d] + streamed(a, b, k)

with k = 1, or ceil(work(a, b) / T) chips where stages may be replicated: each inference streams
to one chip of the stage only. Where replicas keep sequences, a stage of more chips has fewer states on
each, and may stream less: all numbers k of chips are tried on which the segment takes at most T.

A stage of k chips that streams s bytes per inference loads the host's link with ``s / k`` if its chips
forward weights to each other. Each link between its chips carries the same amount, in addition to the
stage's input and output: ``s / k <= (T - border) rate``, with the seconds of the busier of its two cuts as
``border``. Large stages are therefore better than the smallest that their work allows. Tables of which an
inference reads only some rows are not forwarded; their part of s is not divided. (The other weights of a
kernel that reads such a table are not forwarded either; only the evaluation knows that.)

T is feasible if for some d the host's link carries the inputs and ``g[M, d]`` within T: O(A W D) for windows
of W candidates. The answer for any T is a slicing, and a larger T never streams more. So the time of the
host's link bounds the interval from above if T is infeasible, and from below if T is feasible. Without
overlap, the weights that a chip streams add to the cost of its own segment only.
"""

from __future__ import annotations

import math
from typing import Final, NamedTuple

import numpy as np

from go_opt.common.arrays import BoolArray, FloatArray, LongArray, RecordArray, record
from go_opt.common.compiling import compiled, int64, uncounted, uncounted_inner
from go_opt.env.cost.tables import CostTables
from go_opt.env.model.memory import stream_order
from go_opt.model.graph import WEIGHT
from go_opt.solver.problem.sequence import KernelSequence
from go_opt.solver.slicing.cuts import GALLOP_STEP, RELATIVE_TOLERANCE
from go_opt.solver.slicing.replicated import chips_for
from go_opt.solver.slicing.table import SegmentTable

NEXT_SIZE: Final = 4  # after k chips that forward weights, the next number tried is k + 1 + k // 4
# Share of the host's link for a stage that streams for itself, in estimates of waiting; others use the rest.
HOST_SHARE: Final = 0.5
# A way to run a segment: its chips, whether they forward weights; bytes from the host, seconds an inference.
STAGE: Final = record("chips forwards", "streamed_bytes seconds")


class Cuts(NamedTuple):
    """A slicing into ``S`` stages."""

    cut: LongArray  # [S + 1]
    chips: LongArray  # [S]
    interval_s: float  # with streamed weights
    forwards: BoolArray  # [S] whether the chips forward weights


class StreamedProblem(NamedTuple):
    """Segments of a table on a target's chips in their order. Axes: ``A`` cuts, ``D`` chips."""

    table: SegmentTable
    class_of_chip: LongArray  # [D]; zeros if classes are numbers of chips
    stage_chips: LongArray  # [C] chips of a stage of each class, ascending, on chips alike; or zeros
    blocked: LongArray  # [D, A] kernels before a cut that the chip cannot or may not run
    are_alike: bool  # chips, which may run everything
    replicates: bool
    cut_s: FloatArray  # [A] of the link at a cut; 0 where the segment costs contain it
    host_s: float  # of the busier host link, without streamed weights
    input_s: float  # of the host's input link, for inputs
    stream_s_per_byte: float  # of the host's input link, for streamed weights
    hop_s_per_byte: float  # of links inside stages whose chips forward weights; 0: none do
    sequences: int  # a stage whose chips have more of them than others forwards no weights
    waits: FloatArray  # [3, A] see waits_for_weights

    def host_link_s(self, streamed: float) -> float:
        """Returns the seconds of the busier host link if ``streamed`` bytes of weights are streamed."""
        if streamed == math.inf:
            return math.inf
        return max(self.host_s, self.input_s + streamed * self.stream_s_per_byte)


def cheapest_streamed_cuts(
    problem: StreamedProblem,
    lower_s: float,
    upper_s: float,
    *,
    min_chips: int = 1,
    tolerance: float = RELATIVE_TOLERANCE,
) -> Cuts | None:
    """Returns the cheapest slicing between cuts of the table that takes less than ``upper_s``, if any.

    No slicing may be cheaper than ``lower_s``. Both limits are finite; tight limits save work.
    """
    if min_chips > len(problem.class_of_chip):
        return None
    best: Cuts | None = None
    least_bytes = np.empty((len(problem.table.cut), len(problem.class_of_chip) + 1))
    interval_s, step = lower_s * (1.0 + RELATIVE_TOLERANCE), GALLOP_STEP
    while upper_s - lower_s > tolerance * upper_s:
        most_bytes = math.inf
        if problem.stream_s_per_byte > 0.0:
            most_bytes = (upper_s - problem.input_s) / problem.stream_s_per_byte
        next_s = least_streamed(problem, interval_s, most_bytes, least_bytes)
        chips = min_chips + int(np.argmin(least_bytes[-1, min_chips:]))
        link_s = problem.host_link_s(float(least_bytes[-1, chips]))
        is_reached = link_s <= interval_s * (1.0 + RELATIVE_TOLERANCE)
        if link_s < upper_s:
            found = _walk_back(problem, interval_s, least_bytes, chips)
            if found.interval_s < upper_s:
                best, upper_s = found, found.interval_s
        if is_reached:
            lower_s = max(lower_s, link_s)
        else:
            lower_s = max(interval_s, min(next_s, link_s))
            step *= 2.0
        interval_s = 0.5 * (lower_s + upper_s)
        if link_s == upper_s:
            # The host's link is the bottleneck: check whether a smaller interval streams less.
            interval_s = upper_s * (1.0 - RELATIVE_TOLERANCE)
        elif 0.0 < lower_s * (1.0 + step) < interval_s:
            interval_s = lower_s * (1.0 + step)
    return best


@compiled
def least_streamed(
    problem: StreamedProblem, interval_s: float, most_bytes: float, least_bytes: FloatArray
) -> float:
    """Fills ``least_bytes`` [A, D + 1], the fewest bytes streamed before each cut, by number of chips.

    Returns a bound: every candidate interval below it gives the same answer. Slicings that
    stream more than ``most_bytes`` are ignored.
    """
    table, max_chips = problem.table, least_bytes.shape[1] - 1
    slack_s = interval_s * (1.0 + 1e-13)
    next_s = np.inf
    stages = np.zeros(max_chips + len(problem.stage_chips), STAGE)
    fewest_chips = np.full(len(table.cut), max_chips + 1, np.int64)
    fewest_bytes = np.full(len(table.cut), np.inf)
    least_bytes[:] = np.inf
    least_bytes[0, 0] = 0.0
    fewest_chips[0] = 0
    fewest_bytes[0] = 0.0
    for b in range(1, len(table.cut)):
        if problem.cut_s[b] > slack_s:
            next_s = min(next_s, problem.cut_s[b])
            continue
        for a in range(table.first[b], b):
            fewest = fewest_chips[a]
            if fewest >= max_chips:
                continue
            if not problem.are_alike:
                refused_s = _reach_on_each(problem, a, b, slack_s, most_bytes, stages, least_bytes)
                next_s = min(next_s, refused_s)
                continue
            number, refused_s = _stages(problem, a, b, int64(0), slack_s, max_chips - fewest, stages)
            next_s = min(next_s, refused_s)
            for s in range(number):
                streamed, size = stages[s].streamed_bytes, stages[s].chips
                if fewest_bytes[a] + streamed > most_bytes:
                    continue
                # This loop takes most of the time: one pass over chips, without branches.
                before, after = least_bytes[a, fewest:], least_bytes[b, fewest + size :]
                for d in range(max_chips + 1 - fewest - size):
                    reached = before[d] + streamed
                    after[d] = reached if reached < after[d] else after[d]
        for d in range(max_chips, 0, -1):
            fewest_bytes[b] = min(fewest_bytes[b], least_bytes[b, d])
            if least_bytes[b, d] < np.inf:
                fewest_chips[b] = d
    return next_s


@uncounted_inner
def _reach_on_each(
    problem: StreamedProblem,
    a: int,
    b: int,
    interval_s: float,
    most_bytes: float,
    stages: RecordArray,
    least_bytes: FloatArray,
) -> float:
    """Updates cut b from cut a where chips differ or may not run all ops; returns the least rejected cost."""
    max_chips, next_s = int64(least_bytes.shape[1] - 1), np.inf
    for c in range(len(problem.stage_chips)):
        number, refused_s = _stages(problem, a, b, int64(c), interval_s, max_chips, stages[c:])
        next_s = min(next_s, refused_s)
        if number == 0:
            stages[c].chips = max_chips + 1
    for d in range(max_chips):
        c = problem.class_of_chip[d]
        reached, fewest = least_bytes[a, d] + stages[c].streamed_bytes, stages[c].chips
        if d + fewest > max_chips or reached > most_bytes or reached == np.inf:
            continue
        # Extra chips may move the next stage to chips that are allowed to run it.
        for size in range(fewest, max_chips - d + 1 if problem.replicates else fewest + 1):
            if not _may_run(problem, a, b, d, size):
                break
            least_bytes[b, d + size] = min(least_bytes[b, d + size], reached)
    return next_s


@uncounted_inner
def _stages(
    problem: StreamedProblem, a: int, b: int, of_class: int, interval_s: float, most: int, stages: RecordArray
) -> tuple[int, float]:
    """Fills ``stages`` with the ways to run segment a to b within the interval on at most ``most`` chips.

    Returns their number, and a bound: smaller intervals have no more ways.
    """
    table, max_chips = problem.table, int64(len(problem.class_of_chip))
    place, number, refused_s = table.offset[b] + a, int64(0), np.inf
    if problem.hop_s_per_byte > 0.0:
        return _forwarding_stages(problem, a, b, interval_s, most, stages), 0.0
    if problem.stage_chips[0] > 0:
        for c in range(len(problem.stage_chips)):
            cost_s, streamed = table.cost_s[c, place], table.streamed_bytes[c, place]
            if cost_s > interval_s:
                refused_s = min(refused_s, cost_s)
                continue
            if problem.stage_chips[c] <= most:
                number = _add(stages, number, problem.stage_chips[c], int64(0), streamed, cost_s)
            if streamed == 0:
                break  # more chips are of no use
        return number, refused_s
    cost_s = table.cost_s[of_class, place]
    if problem.replicates:
        size = chips_for(cost_s, interval_s, max_chips)
        refused_s = cost_s / (size - 1) if size > 1 else refused_s
    else:
        size = int64(1) if cost_s <= interval_s else max_chips + 1
        refused_s = cost_s if size > 1 else refused_s
    if size <= most:
        streamed = table.streamed_bytes[of_class, place]
        number = _add(stages, number, size, int64(0), streamed, cost_s / size)
    return number, refused_s


@uncounted_inner
def _forwarding_stages(
    problem: StreamedProblem, a: int, b: int, interval_s: float, most: int, stages: RecordArray
) -> int:
    """Fills ``stages`` with the fewest chips that stream by themselves, and numbers that forward weights."""
    place, number = problem.table.offset[b] + a, int64(0)
    cost_s, streamed = problem.table.cost_s[0, place], problem.table.streamed_bytes[0, place]
    if cost_s > interval_s * most:
        return number
    waited_bytes = problem.waits[2, b] - problem.waits[2, a]
    share = min(streamed, waited_bytes) / max(waited_bytes, 1.0)
    alone_s = cost_s + share * (problem.waits[0, b] - problem.waits[0, a])
    size = chips_for(alone_s, interval_s, most)
    if size <= most:
        number = _add(stages, number, size, int64(0), streamed, alone_s / size)
    own, border_s = problem.table.in_part_bytes[0, place], max(problem.cut_s[a], problem.cut_s[b])
    passed_s = (streamed - own) * problem.hop_s_per_byte
    room_s = interval_s - border_s
    if passed_s <= 0.0 or passed_s > room_s * most:
        return number
    together_s = cost_s + share * (problem.waits[1, b] - problem.waits[1, a])
    size = max(int64(2), chips_for(together_s, interval_s, most), chips_for(passed_s, room_s, most))
    while size <= most:
        if problem.sequences % size == 0:
            seconds = max(together_s / size, passed_s / size + border_s)
            number = _add(stages, number, size, int64(1), own + (streamed - own) / size, seconds)
        size = size + 1 + size // NEXT_SIZE
    return number


@uncounted_inner
def _add(
    stages: RecordArray, number: int, chips: int, forwards: int, streamed_bytes: float, seconds: float
) -> int:
    """Adds a stage; returns their number."""
    stages[number].chips, stages[number].forwards = chips, forwards
    stages[number].streamed_bytes, stages[number].seconds = streamed_bytes, seconds
    return number + 1


@uncounted_inner
def _may_run(problem: StreamedProblem, a: int, b: int, chip: int, size: int) -> bool:
    """Returns whether ``size`` chips from ``chip`` on exist, are identical, and may run segment a to b."""
    if chip + size > len(problem.class_of_chip):
        return False
    for d in range(chip, chip + size):
        is_other = problem.class_of_chip[d] != problem.class_of_chip[chip]
        if is_other or problem.blocked[d, a] < problem.blocked[d, b]:
            return False
    return True


def _walk_back(problem: StreamedProblem, interval_s: float, least_bytes: FloatArray, chips: int) -> Cuts:
    """Returns the slicing on ``chips`` chips that ``least_bytes`` describes."""
    longest_s = problem.host_link_s(float(least_bytes[-1, chips]))
    cut, found = [len(problem.table.cut) - 1], []
    stages = np.zeros(least_bytes.shape[1], STAGE)
    while cut[-1] > 0:
        start, size, s = _last_stage(problem, interval_s, least_bytes, cut[-1], chips, stages)
        seconds = float(stages[s].seconds) * (int(stages[s].chips) / size)
        longest_s = max(longest_s, seconds, float(problem.cut_s[start]))
        cut.append(start)
        found.append((size, bool(stages[s].forwards)))
        chips -= size
    sizes, forwards = zip(*found[::-1], strict=True)
    return Cuts(problem.table.cut[cut[::-1]], np.array(sizes), longest_s, np.array(forwards))


@uncounted
def _last_stage(
    problem: StreamedProblem,
    interval_s: float,
    least_bytes: FloatArray,
    b: int,
    chips: int,
    stages: RecordArray,
) -> tuple[int, int, int]:
    """Returns start, chips and place in ``stages`` of the last stage, up to cut b, on ``chips`` chips."""
    slack_s = interval_s * (1.0 + 1e-13)
    for a in range(problem.table.first[b], b):
        for d in range(1 if problem.are_alike else chips):
            of_class = problem.class_of_chip[d]
            number, _ = _stages(problem, a, b, of_class, slack_s, int64(chips - d), stages)
            for s in range(number):
                size = stages[s].chips if problem.are_alike else int64(chips - d)
                if size > stages[s].chips and not problem.replicates:
                    continue
                # The same sum, so == is safe.
                if least_bytes[a, chips - size] + stages[s].streamed_bytes != least_bytes[b, chips]:
                    continue
                if problem.are_alike or _may_run(problem, a, b, d, size):
                    return a, size, s
    stages[0].seconds = np.inf
    return -1, 1, 0


def waits_for_weights(
    tables: CostTables, sequence: KernelSequence, cut: LongArray, hop_s_per_byte: float
) -> FloatArray:
    """Estimates, for all segments at once, how long chips wait for weights that stream one kernel ahead.

    The weights of a kernel start to stream when the previous kernel with streamed weights begins. A chip is
    taken to wait if they take longer than the kernels in between. (A single chip waits less, since a kernel
    may run while its own weights arrive; chips that forward weights also wait for each other.) The waits are
    summed along the sequence once, as if one chip ran all of it and streamed by the rule of memory. A segment
    that streams a share of these weights waits for that share of the time.

    Returns:
      [3, A] sums up to each of ``cut`` [A]: seconds of waiting for the host, those of waiting for the
      previous chip, which forwards the weights, and the streamed bytes. Chips are identical.
    """
    streamed = _streamed_bytes(tables, sequence)
    kernel = np.flatnonzero(streamed)
    begins_s = np.concatenate([[0.0], np.cumsum(sequence.kernel_s[tables.chip_kind[0]])])[kernel]
    hidden_s = np.diff(begins_s, prepend=-np.inf)  # the first has no previous kernel
    rates = np.array([tables.host_in_s_per_byte / HOST_SHARE, hop_s_per_byte])[:, None]
    waits_s = np.maximum(streamed[kernel] * rates - hidden_s, 0.0)
    sums = np.cumsum(np.vstack([waits_s, streamed[kernel]]), axis=1)
    before = np.searchsorted(kernel, cut)
    return np.ascontiguousarray(np.hstack([np.zeros((3, 1)), sums])[:, before])


def _streamed_bytes(tables: CostTables, sequence: KernelSequence) -> FloatArray:
    """[M] streamed bytes by the kernel that reads them first, if one chip runs everything."""
    num_tensors = len(tables.tensor_kind)
    touched = np.zeros(num_tensors, np.int64)
    first = np.full(num_tensors, sequence.num_kernels)
    np.maximum.at(touched, tables.reader_tensor, tables.read_bytes)
    np.minimum.at(first, tables.reader_tensor, sequence.kernel_of[tables.reader_op])
    is_weight = (tables.tensor_kind == WEIGHT) & (tables.tensor_bytes > 0) & (first < sequence.num_kernels)
    weight = np.flatnonzero(is_weight)
    weight = weight[stream_order(tables, weight, touched[weight])]
    stored = tables.stored_bytes[weight]
    kept = stored.sum() - np.cumsum(stored) + stored  # with this weight and those that stream after it
    streams = weight[kept > tables.sram_bytes[0] - tables.stream_buffer_bytes[0]]
    bytes_of: FloatArray = np.zeros(sequence.num_kernels)
    np.add.at(bytes_of, first[streams], touched[streams])
    return bytes_of
