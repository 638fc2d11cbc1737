"""Orders in which each chip runs what arrives first: a sample then waits less, at the same loads."""

from __future__ import annotations

import heapq

import numpy as np

from go_opt.common.arrays import IntArray
from go_opt.env import CostTables
from go_opt.env.cost.tables import transfer_s
from go_opt.env.kernels.numbering import kernel_seconds, number_kernels
from go_opt.model.graph import NO_PRODUCER


def by_arrival(tables: CostTables, placement: IntArray, order: IntArray, fusion_group: IntArray) -> IntArray:
    """[N] the order of a list schedule of a sample: of what has arrived on a chip, the longest way first.

    Args:
      placement, order, fusion_group: [N] of a plan; the kernels stay as they are.
    """
    kernel_of = number_kernels(order, fusion_group)
    number = int(kernel_of.max()) + 1
    chip = np.zeros(number, np.int64)
    chip[kernel_of] = placement
    seconds = kernel_seconds(tables, kernel_of)[tables.chip_kind[chip], np.arange(number)].tolist()
    chips = chip.tolist()
    readers: list[dict[int, float]] = [{} for _ in range(number)]  # with the seconds of the longest transfer
    for tensor, op in zip(tables.reader_tensor.tolist(), tables.reader_op.tolist(), strict=True):
        if tables.tensor_producer[tensor] == NO_PRODUCER:
            continue
        source, reader = int(kernel_of[tables.tensor_producer[tensor]]), int(kernel_of[op])
        if source != reader:
            sent_s = transfer_s(tables, chips[source], chips[reader], int(tables.tensor_bytes[tensor]))
            readers[source][reader] = max(sent_s, readers[source].get(reader, 0.0))
    left_s, waits = [0.0] * number, [0] * number  # until the end of the sample
    for kernel in reversed(range(number)):
        after = (sent_s + left_s[reader] for reader, sent_s in readers[kernel].items())
        left_s[kernel] = seconds[kernel] + max(after, default=0.0)
        for reader in readers[kernel]:
            waits[reader] += 1
    arrived_s, free_s = [0.0] * number, [0.0] * tables.num_chips
    waiting = [(0.0, -left_s[kernel], kernel) for kernel in range(number) if not waits[kernel]]
    heapq.heapify(waiting)
    place = np.zeros(number, np.int64)
    done = 0
    while waiting:
        start_s, _, kernel = heapq.heappop(waiting)
        if start_s < free_s[chips[kernel]]:  # another kernel has taken the chip
            heapq.heappush(waiting, (free_s[chips[kernel]], -left_s[kernel], kernel))
            continue
        place[kernel], done = done, done + 1
        free_s[chips[kernel]] = end_s = start_s + seconds[kernel]
        for reader, sent_s in readers[kernel].items():
            arrived_s[reader] = max(arrived_s[reader], end_s + sent_s)
            waits[reader] -= 1
            if not waits[reader]:
                start_s = max(arrived_s[reader], free_s[chips[reader]])
                heapq.heappush(waiting, (start_s, -left_s[reader], reader))
    position = np.empty(len(order), np.int64)
    position[order] = np.arange(len(order))
    return np.lexsort((position, place[kernel_of])).astype(np.int32)
