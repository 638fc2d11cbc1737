"""Segments between candidate cuts of a kernel sequence: the cost and the streamed bytes of each.

Segments grow from each candidate end towards the start, kernel by kernel, which updates memory and
streamed weights in O(A W) steps for A candidates and windows of W kernels. If there are too many
cuts, only those with the least traffic among their neighbours are candidates.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np

from go_opt.common.arrays import BoolArray, FloatArray, LongArray
from go_opt.common.compiling import compiled, int64
from go_opt.env.cost.tables import CostTables
from go_opt.env.kernels.plain_loops import largest
from go_opt.solver.slicing.memory import (
    HeldWeights,
    SegmentMemory,
    WeightReads,
    drop_weights,
    grow_segment,
    hold_weights,
    move_end,
    no_segment,
    no_weights_held,
    streamed_bytes,
)
from go_opt.solver.slicing.problem import (
    ROUNDING,
    Alive,
    SliceProblem,
    end_moves_on,
    first_start,
    no_tensors_alive,
    relay_s,
    start_over,
)

# Limits on the kernels added to segments, and on segments per class of chips: about a fifth of a second.
MOST_STEPS: Final = 1_070_000
MOST_SEGMENTS: Final = 400_000
NEXT_SIZE: Final = 1.1  # at least so many times the last one is the next number of chips that is looked at


class ChipClasses(NamedTuple):
    """Chips on which every segment costs the same. Axes: ``C`` classes, ``D`` chips.

    Where replicas keep sequences, the classes are numbers of chips of a stage: the busiest chip has fewer
    sequences, with their states, the more there are.
    """

    of_chip: LongArray  # [D]
    kind: LongArray  # [C]
    sram_bytes: LongArray  # [C]
    stream_buffer_bytes: LongArray  # [C]
    in_s_per_byte: FloatArray  # [C] from the chip before
    out_s_per_byte: FloatArray  # [C] to the chip behind
    stage_chips: LongArray  # [C] chips of a stage; 0: any number
    sequences: LongArray  # [C] whose states lie on the busiest chip, beside what segments need; 0: none
    share: FloatArray  # [C] of all inferences that this chip runs, as far as costs contain it
    states_before: LongArray  # [M + 1] bytes of the states of one of these sequences, before each kernel


class SegmentTable(NamedTuple):
    """Segments from candidate cut a to b, at ``offset[b] + a``. Axes: ``A`` cuts, ``Z`` segments."""

    cut: LongArray  # [A] from 0 to M
    first: LongArray  # [A] the first candidate where a segment that ends here may start
    offset: LongArray  # [A]
    cost_s: FloatArray  # [C, Z] infinite if the segment is illegal or does not fit
    streamed_bytes: FloatArray  # [C, Z] on the host's shared link; 0 where transfers do not overlap
    in_part_bytes: FloatArray  # [C, Z] of these, the bytes of weights that the segment reads in part


def chip_classes(tables: CostTables, problem: SliceProblem, max_chips: int) -> ChipClasses:
    """Returns the classes of the first ``max_chips`` chips."""
    # Nothing enters the first chip or leaves the last, so their missing rates are arbitrary.
    hops = problem.hop_s_per_byte[: max_chips - 1] if max_chips > 1 else np.zeros(1)
    rows = np.stack(
        [
            problem.chip_kind[:max_chips],
            tables.sram_bytes[:max_chips],
            tables.stream_buffer_bytes[:max_chips],
            np.concatenate([hops[:1], hops])[:max_chips],
            np.concatenate([hops, hops[-1:]])[:max_chips],
        ]
    )
    (kind, sram, buffer, enter, leave), of_chip = np.unique(rows, axis=1, return_inverse=True)
    # Contiguous copies, so that kernels are compiled once.
    return ChipClasses(
        of_chip.reshape(-1),
        kind.astype(np.int64),
        sram.astype(np.int64),
        buffer.astype(np.int64),
        enter.copy(),
        leave.copy(),
        np.zeros(len(kind), np.int64),
        np.zeros(len(kind), np.int64),
        np.ones(len(kind)),
        np.zeros(problem.num_kernels + 1, np.int64),
    )


def stage_classes(classes: ChipClasses, sequences: int, state_bytes: LongArray) -> ChipClasses:
    """Returns the only class of ``classes`` once for each number of chips of a stage, ascending.

    Numbers with as many sequences on the busiest chip as a smaller one are left out, and of the large ones
    some more. The cost of a segment then is that of an inference on the stage.

    Args:
      state_bytes: [M] of the states of one sequence, by kernel; segments have none.
    """
    chips, sizes = len(classes.of_chip), [1]
    for size in range(2, min(chips, sequences) + 1):
        if -(-sequences // size) < -(-sequences // sizes[-1]) and size >= sizes[-1] * NEXT_SIZE:
            sizes.append(size)
    stage_chips: LongArray = np.array(sizes, dtype=np.int64)
    most = -(-sequences // stage_chips)
    same = {name: np.repeat(getattr(classes, name), len(sizes)) for name in _OF_KIND}
    before = np.concatenate([np.zeros(1, np.int64), np.cumsum(state_bytes)])
    return classes._replace(
        **same, stage_chips=stage_chips, sequences=most, share=most / sequences, states_before=before
    )


_OF_KIND: Final = ("kind", "sram_bytes", "stream_buffer_bytes", "in_s_per_byte", "out_s_per_byte")


def segment_table(
    tables: CostTables,
    problem: SliceProblem,
    memory: SegmentMemory,
    classes: ChipClasses,
    *,
    reads: WeightReads,
    most_chips: int,
    longest_s: float,
    most_streamed_bytes: float,
    most_segments: int = MOST_SEGMENTS,
) -> SegmentTable:
    """Returns the segments of at most ``longest_s`` on some chip, streaming at most ``most_streamed_bytes``.

    Args:
      memory: segment memory without stream buffers.
      most_chips: most chips of a stage. If it is more than one, the cost of a segment is its work alone,
        up to ``most_chips * longest_s``.
      most_segments: limit for all classes together.
    """
    first_starts = _first_starts(problem, longest_s * most_chips)
    share = _share_of_cuts(first_starts, problem.may_cut, most_segments // len(classes.kind))
    cut = np.flatnonzero(problem.may_cut[1 : problem.num_kernels]) + 1
    if share < 1.0:
        cut = _cheapest_spread(problem, reads, cut, int(share * len(cut)))
    cut = np.concatenate([[0], cut, [problem.num_kernels]])
    first = np.searchsorted(cut, first_starts[cut])
    ends = np.cumsum(np.arange(len(cut)) - first)
    num_segments = int(ends[-1])
    table = SegmentTable(
        cut,
        first,
        ends - np.arange(len(cut)),
        np.full((len(classes.kind), num_segments), np.inf),
        np.zeros((len(classes.kind), num_segments)),
        np.zeros((len(classes.kind), num_segments)),
    )
    _fill(
        problem, memory, reads, classes, table,
        longest_s * (1 if classes.stage_chips[0] > 0 else most_chips), most_streamed_bytes,
        tables.host_in_s_per_byte, most_chips > 1,
        no_weights_held(reads), no_tensors_alive(problem),
    )  # fmt: skip
    return table


@compiled
def _first_starts(problem: SliceProblem, longest_s: float) -> LongArray:
    """Returns the first start [M + 1] of segments up to each cut within ``longest_s`` on the fastest kind."""
    num_kernels, most_work_s = len(problem.reach) - 1, longest_s + problem.again_s.sum()
    starts = np.zeros(num_kernels + 1, np.int64)
    first = int64(0)
    for j in range(1, num_kernels + 1):
        first = first_start(problem, first, j, most_work_s)
        starts[j] = first
    return starts


@compiled
def _fill(
    problem: SliceProblem,
    memory: SegmentMemory,
    reads: WeightReads,
    classes: ChipClasses,
    table: SegmentTable,
    longest_s: float,
    most_streamed_bytes: float,
    host_s_per_byte: float,
    is_work_alone: bool,
    held: HeldWeights,
    alive: Alive,
) -> None:
    segment = no_segment(memory)
    saved_s = np.zeros(len(problem.reach))  # by a segment from each start to the current end
    most_bytes = largest(classes.sram_bytes)
    start_over(problem, alive)
    again = 0
    for b in range(1, len(table.cut)):
        j = table.cut[b]
        for end in range(table.cut[b - 1] + 1, j + 1):
            end_moves_on(problem, alive, end)
            move_end(memory, segment, end - 1)
        while again < len(problem.again_kernel) and problem.again_kernel[again] < j:
            for i in range(problem.again_before[again] + 1):
                saved_s[i] += problem.again_s[again]
            again += 1
        relayed_bytes, relays = alive.total[0], alive.total[1]
        drop_weights(held)
        a = b - 1
        for i in range(j - 1, table.cut[table.first[b]] - 1, -1):
            relayed_bytes -= alive.size_bytes[i]
            relays -= alive.number[i]
            needed_bytes, live_bytes = grow_segment(memory, segment, i, j)
            hold_weights(reads, held, i)
            # As a segment grows, neither its peak of live tensors nor its streamed bytes ever fall.
            most_room_bytes = most_bytes - live_bytes
            if most_room_bytes < 0:
                table.first[b] = a + 1
                break
            if i > table.cut[a]:
                continue
            a -= 1
            if problem.reach[i] > j:
                continue
            streams_too_much = problem.overlap
            for c in range(len(classes.kind)):
                room_bytes = classes.sram_bytes[c] - needed_bytes
                room_bytes -= classes.sequences[c] * (classes.states_before[j] - classes.states_before[i])
                if room_bytes < 0:
                    continue
                kind, place = classes.kind[c], table.offset[b] + a + 1
                streamed = streamed_bytes(reads, held, room_bytes, classes.stream_buffer_bytes[c])
                if streamed > 0 and room_bytes < classes.stream_buffer_bytes[c]:
                    continue
                cost_s = problem.prefix_s[kind, j] - problem.prefix_s[kind, i]
                cost_s += relay_s(problem, kind, relayed_bytes, relays)
                cost_s *= classes.share[c]
                in_s = problem.crossing_bytes[i] * classes.in_s_per_byte[c]
                out_s = problem.crossing_bytes[j] * classes.out_s_per_byte[c]
                if problem.overlap:
                    table.streamed_bytes[c, place] = streamed
                    # Weights that are read in part stream first.
                    table.in_part_bytes[c, place] = min(streamed, held.total_bytes[1])
                    cost_s = cost_s if is_work_alone else max(cost_s, in_s, out_s)
                    if streamed > most_streamed_bytes:
                        continue
                    streams_too_much = False
                elif problem.pays_transfers[kind]:
                    cost_s += in_s + out_s - saved_s[i] + streamed * host_s_per_byte
                if cost_s <= longest_s:
                    table.cost_s[c, place] = cost_s
            least = streamed_bytes(reads, held, most_room_bytes, int64(0)) if streams_too_much else 0
            if least > most_streamed_bytes:
                table.first[b] = a + 1
                break


def _share_of_cuts(first_starts: LongArray, may_cut: BoolArray, most_segments: int) -> float:
    """Returns the share of the possible cuts that the limits on work allow as candidates."""
    inner = np.flatnonzero(may_cut[1:-1]) + 1
    steps = int((inner - first_starts[inner]).sum())
    before = np.cumsum(np.concatenate([[0], may_cut]))
    num_segments = int((before[inner] - before[first_starts[inner]]).sum())
    most_steps = MOST_STEPS * min(1.0, most_segments / MOST_SEGMENTS)
    return min(1.0, most_steps / max(steps, 1), (most_segments / max(num_segments, 1)) ** 0.5)


def _cheapest_spread(problem: SliceProblem, reads: WeightReads, inner: LongArray, most: int) -> LongArray:
    """Returns the cuts of ``inner`` with least traffic in their stretch of work, weights and kernels.

    The sequence is divided into ``most`` stretches.
    """
    num_kernels = problem.num_kernels
    kernel = np.repeat(np.arange(num_kernels), np.diff(reads.read_ptr))
    _, first_read = np.unique(reads.weight, return_index=True)
    stored = reads.stored_bytes[reads.place[first_read]]
    along = np.zeros(len(inner))
    for amount in (
        np.diff(problem.prefix_s[0]),
        np.bincount(kernel[first_read], stored, minlength=num_kernels),
        np.ones(num_kernels),
    ):
        before = np.cumsum(amount)
        along += before[inner - 1] / max(float(before[-1]), ROUNDING)
    stretch = (along / along[-1] * most).astype(np.int64)
    by_traffic = np.lexsort([problem.crossing_bytes[inner], stretch])
    is_first = np.diff(stretch[by_traffic], prepend=-1) > 0
    # The latest ends from the user's rules must stay candidates.
    asked_for = np.intersect1d(problem.latest, inner)
    return np.union1d(inner[by_traffic[is_first]], asked_for)
