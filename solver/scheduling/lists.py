"""The state of list scheduling: the placed kernels, and the timeline of each chip."""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np

from go_opt.common.arrays import FloatArray, IntArray, LongArray, RecordArray, record
from go_opt.common.compiling import int64, uncounted_inner
from go_opt.env.cost.tables import CostTables
from go_opt.env.kernels.numbering import kernel_seconds, number_kernels
from go_opt.env.model.makespan import NONE, decisions
from go_opt.model.plan import number_by_first_place

MOST_GAPS: Final = 4096

# Of a kernel: the number of reads that it waits for, its position in the order of placing, and the kernels
# before and after it on its chip, or NONE.
PLACED: Final = record("waits_for place before behind", "start_s end_s")
# Of a chip: its first and its last kernel, or NONE. For the kernel to place: when all its reads would have
# arrived, after which kernel it would run, or NONE, when it would start, and when the host's link would be
# free again.
CHIP: Final = record("first last slot_before", "arrival_s slot_s host_s")


class Lists(NamedTuple):
    """Kernels of a partition, numbered along an order; axes: ``M`` kernels, ``K`` tensors, ``D`` chips."""

    kernels: RecordArray  # [N] KERNEL
    ops: RecordArray  # [N] OP
    sequence: IntArray  # [M]
    placed: RecordArray  # [M] PLACED
    kind_s: FloatArray  # [Q, M] infinite if the kind cannot run an op of the kernels that share its chip
    sharing: IntArray  # [M] kernels with the same number share a chip
    home: IntArray  # [M] the chip of those with a number, or NONE
    reads: IntArray  # [R] activations and inputs that ops read
    read_ptr: LongArray  # [N + 1]
    producer: IntArray  # [K]
    chip_kind: IntArray  # [D]
    there_s: FloatArray  # [K, D] when a tensor arrives; infinite if not sent
    link_free_s: FloatArray  # [L]
    chips: RecordArray  # [D] CHIP
    heap: LongArray  # [M]
    priority: FloatArray  # [M]
    most_gaps: int  # most gaps examined per chip, from the last one back


def lists_of(
    tables: CostTables,
    order: IntArray,
    fusion_group: IntArray,
    rank: FloatArray,
    fills_gaps: bool,
    shared: IntArray,
) -> Lists:
    """Kernels to be placed by ``rank`` [M], numbered along ``order`` [N]; ops of a number of ``shared`` [N]
    share a chip, and kernels lie within one."""
    kernel_of = number_kernels(order, fusion_group)
    kernels, ops = decisions(order, kernel_of)
    kind_s = kernel_seconds(tables, kernel_of)
    num_kernels, num_chips = kind_s.shape[1], tables.num_chips
    sharing = np.zeros(num_kernels, np.int32)
    sharing[kernel_of] = number_by_first_place(shared, order)
    kind, op = np.nonzero(~tables.can_run)
    cannot = np.zeros(kind_s.shape, np.bool_)
    cannot[kind, sharing[kernel_of[op]]] = True
    kind_s[cannot[:, sharing]] = np.inf
    return Lists(
        kernels=kernels,
        ops=ops,
        sequence=np.zeros(num_kernels, np.int32),
        placed=np.zeros(num_kernels, PLACED),
        kind_s=kind_s,
        sharing=sharing,
        home=np.full(num_kernels, NONE, np.int32),
        reads=tables.reader_tensor[tables.op_read].astype(np.int32),
        read_ptr=tables.op_read_ptr,
        producer=tables.tensor_producer,
        chip_kind=tables.chip_kind,
        there_s=np.zeros((len(tables.tensor_kind), num_chips)),
        link_free_s=np.zeros(len(tables.link_s_per_byte)),
        chips=np.zeros(num_chips, CHIP),
        heap=np.zeros(num_kernels, np.int64),
        priority=rank,
        most_gaps=MOST_GAPS * fills_gaps,
    )


@uncounted_inner
def find_slot(lists: Lists, kernel: int, chip: int) -> float:
    """Returns when ``kernel`` would end on ``chip``: in the earliest gap, or after all its kernels."""
    chips, placed = lists.chips, lists.placed
    seconds = lists.kind_s[lists.chip_kind[chip], kernel]
    arrival_s = chips[chip].arrival_s
    behind = chips[chip].last
    start_s = arrival_s if behind == NONE else max(arrival_s, placed[behind].end_s)
    before = behind
    for _ in range(lists.most_gaps):
        if behind == NONE or placed[behind].end_s <= arrival_s:
            break
        ahead = placed[behind].before
        gap_s = arrival_s if ahead == NONE else max(arrival_s, placed[ahead].end_s)
        if gap_s + seconds <= placed[behind].start_s:
            start_s = gap_s
            before = ahead
        behind = ahead
    chips[chip].slot_s = start_s
    chips[chip].slot_before = before
    return start_s + seconds


@uncounted_inner
def take_slot(lists: Lists, kernel: int, chip: int, place: int) -> None:
    """Put ``kernel`` into the slot that :func:`find_slot` found."""
    chips, placed = lists.chips, lists.placed
    before = chips[chip].slot_before
    behind = chips[chip].first if before == NONE else placed[before].behind
    placed[kernel].before = before
    placed[kernel].behind = behind
    if before == NONE:
        chips[chip].first = kernel
    else:
        placed[before].behind = kernel
    if behind == NONE:
        chips[chip].last = kernel
    else:
        placed[behind].before = kernel
    lists.kernels[kernel].chip = chip
    lists.kernels[kernel].seconds = lists.kind_s[lists.chip_kind[chip], kernel]
    placed[kernel].place = place
    placed[kernel].start_s = chips[chip].slot_s
    placed[kernel].end_s = chips[chip].slot_s + lists.kernels[kernel].seconds


@uncounted_inner
def fill_sequence(lists: Lists) -> None:
    """Fill in the sequence: kernels by start, ties in the order of placing."""
    chips, placed = lists.chips, lists.placed
    for place in range(len(placed)):
        earliest = int64(NONE)
        for chip in range(len(chips)):
            kernel = chips[chip].first
            if kernel == NONE:
                continue
            if earliest == NONE or _is_before(placed, kernel, earliest):
                earliest = kernel
        lists.sequence[place] = earliest
        chips[lists.kernels[earliest].chip].first = placed[earliest].behind


@uncounted_inner
def _is_before(placed: RecordArray, kernel: int, other: int) -> bool:
    if placed[kernel].start_s != placed[other].start_s:
        return bool(placed[kernel].start_s < placed[other].start_s)
    return bool(placed[kernel].place < placed[other].place)
