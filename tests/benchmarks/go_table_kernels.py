"""A graph as rivals for the makespan see it: kernels, seconds, transfers; and their list schedules.

Kernels are fixed before rivals place them, in two ways: the default fusion, and joined wherever the
rule lets them. All devices are of one kind, each linked to each other alike.
Axes: ``N`` ops, ``M`` kernels, ``E`` pairs of kernels with a transfer, ``D`` devices.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Final

import numpy as np

from go_opt.common.arrays import FloatArray, IntArray, LongArray, row_pointers
from go_opt.common.compiling import compiled, int64
from go_opt.env import CostTables, Target, cost_tables, greedy_fusion, list_schedule, loop_roles
from go_opt.env.cost.tables import transfer_s
from go_opt.env.kernels.fusion import priority_fusion
from go_opt.env.kernels.numbering import kernel_seconds, number_kernels
from go_opt.env.model.makespan import executions
from go_opt.model.graph import NO_PRODUCER, Graph
from go_opt.model.plan import Candidate, Plan

FUSIONS: Final = ("default", "joined")
_JOINED: Final = 2.0  # a priority by which an op joins whatever kernel it may
_MEGABYTE: Final = 1_000_000


@dataclass(frozen=True, eq=False)
class Kernels:
    """The kernels of one fusion, numbered along a topological order."""

    graph: Graph
    target: Target
    fusion: str
    tables: CostTables
    kernel_of: IntArray  # [N]
    seconds: FloatArray  # [M]
    source: IntArray  # [E]
    reader: IntArray  # [E]
    num_bytes: FloatArray  # [E]
    transfer_s: FloatArray  # [E] from one device to another, with no other transfer in the way

    @property
    def num_kernels(self) -> int:
        return len(self.seconds)

    @property
    def num_devices(self) -> int:
        return self.target.num_chips

    @cached_property
    def reads(self) -> tuple[LongArray, LongArray]:
        """``(ptr [M + 1], pairs)``: the pairs that each kernel reads."""
        return row_pointers(self.reader, self.num_kernels), np.argsort(self.reader, kind="stable")

    @cached_property
    def sends(self) -> tuple[LongArray, LongArray]:
        """``(ptr [M + 1], pairs)``: the pairs that each kernel sends."""
        return row_pointers(self.source, self.num_kernels), np.argsort(self.source, kind="stable")

    def upward_rank(self, pair_s: FloatArray) -> FloatArray:
        """[M] seconds from each kernel's start to the end of all that waits for it; ``pair_s`` [E]."""
        return _upward_rank(self.seconds, *self.sends, self.reader, pair_s)

    def arrays(self, device: IntArray, sequence: LongArray) -> tuple[IntArray, IntArray]:
        """``(placement, order)``, [N] each, of kernels on devices [M] in a sequence [M]."""
        place = np.empty(self.num_kernels, np.int64)
        place[sequence] = np.arange(self.num_kernels)
        order = np.argsort(place[self.kernel_of], kind="stable").astype(np.int32)
        return device[self.kernel_of].astype(np.int32), order

    def makespan_s(self, device: IntArray, sequence: LongArray) -> float:
        """By the environment, of weights that stay on their device."""
        rows = [row[None] for row in (*self.arrays(device, sequence), self.kernel_of)]
        stream_bytes = np.zeros((1, self.num_devices), np.int64)
        return next(executions(self.tables, *rows, stream_bytes)).makespan_s


def kernels_of(graph: Graph, target: Target, fusion: str) -> Kernels:
    """The kernels of one of ``FUSIONS``."""
    assert len(target.kinds) == 1, "devices of one kind"
    roles, default = loop_roles(graph, target.kernel_patterns), np.arange(graph.num_ops, dtype=np.int32)
    group = greedy_fusion(roles, default)
    if fusion == "joined":
        group = priority_fusion(graph, roles, group, np.full(graph.num_ops, _JOINED))
    order = list_schedule(graph, group, -np.arange(int(group.max()) + 1, dtype=np.float64))
    tables, kernel_of = cost_tables(graph, target), number_kernels(order, group)
    source, reader, num_bytes = _pairs(tables, kernel_of)
    first_byte_s = transfer_s(tables, 0, 1, 1)
    s_per_byte = (transfer_s(tables, 0, 1, 1 + _MEGABYTE) - first_byte_s) / _MEGABYTE
    return Kernels(
        graph, target, fusion, tables, kernel_of, kernel_seconds(tables, kernel_of)[0],
        source, reader, num_bytes, first_byte_s + (num_bytes - 1) * s_per_byte,
    )  # fmt: skip


def _pairs(tables: CostTables, kernel_of: IntArray) -> tuple[IntArray, IntArray, FloatArray]:
    """Kernels that read from another one, and the bytes of all tensors between both."""
    tensor = tables.reader_tensor
    producer = tables.tensor_producer[tensor]
    is_made = producer != NO_PRODUCER
    home, reader = kernel_of[producer[is_made]], kernel_of[tables.reader_op[is_made]]
    read = np.unique(np.stack([home, reader, tensor[is_made]])[:, home != reader], axis=1)
    pairs, inverse = np.unique(read[:2], axis=1, return_inverse=True)
    num_bytes = np.bincount(inverse.ravel(), weights=tables.tensor_bytes[read[2]], minlength=pairs.shape[1])
    return pairs[0].astype(np.int32), pairs[1].astype(np.int32), num_bytes.astype(np.float64)


@dataclass
class Best:
    """The best plan so far."""

    makespan_s: float = math.inf
    plan: Plan | None = None
    evaluations: int = 0

    def add(self, kernels: Kernels, device: IntArray, sequence: LongArray, by: str) -> float:
        """Evaluate kernels on devices in a sequence; their makespan."""
        seconds = kernels.makespan_s(device, sequence)
        self.evaluations += 1
        if seconds < self.makespan_s:
            self.makespan_s = seconds
            placement, order = kernels.arrays(device, sequence)
            self.plan = Candidate(
                f"{by}, {kernels.fusion} kernels", placement, order, kernels.kernel_of
            ).plan(kernels.graph, kernels.target)
        return seconds

    def add_scheduled(self, kernels: Kernels, device: IntArray, by: str) -> float:
        """Evaluate a placement [M] with each list schedule of it; the least makespan."""
        return min(self.add(kernels, device, sequence, by) for sequence in schedules(kernels, device))


def schedules(kernels: Kernels, device: IntArray) -> Iterator[LongArray]:
    """Sequences of placed kernels: the default one, and list scheduling by upward rank."""
    yield np.arange(kernels.num_kernels)
    is_sent = device[kernels.source] != device[kernels.reader]
    pair_s = np.where(is_sent, kernels.transfer_s, 0.0)
    rank = kernels.upward_rank(pair_s)
    start_s = _dispatch(
        kernels.seconds, *kernels.reads, *kernels.sends, kernels.reader, pair_s,
        device.astype(np.int64), rank, kernels.num_devices,
    )  # fmt: skip
    yield np.argsort(start_s, kind="stable")


def earliest_finish(kernels: Kernels, rank: FloatArray, *, inserts: bool) -> tuple[IntArray, LongArray]:
    """``(device, sequence)``, [M] each: by falling rank, each kernel where it finishes first.

    Args:
      rank: [M] that falls along every edge.
      inserts: whether a kernel may go between two that are already placed.
    """
    by_rank = np.lexsort((np.arange(kernels.num_kernels), -rank))
    device, start_s = _earliest_finish(
        kernels.seconds, *kernels.reads, kernels.source, kernels.transfer_s, by_rank,
        kernels.num_devices, inserts,
    )  # fmt: skip
    return device, np.lexsort((np.arange(kernels.num_kernels), start_s))


@compiled
def _upward_rank(
    seconds: FloatArray, send_ptr: LongArray, send: LongArray, reader: IntArray, pair_s: FloatArray
) -> FloatArray:
    rank = np.zeros(len(seconds))
    for kernel in range(len(seconds) - 1, -1, -1):
        behind_s = 0.0
        for i in range(send_ptr[kernel], send_ptr[kernel + 1]):
            behind_s = max(behind_s, pair_s[send[i]] + rank[reader[send[i]]])
        rank[kernel] = seconds[kernel] + behind_s
    return rank


@compiled
def _dispatch(
    seconds: FloatArray,
    read_ptr: LongArray,
    read: LongArray,
    send_ptr: LongArray,
    send: LongArray,
    reader: IntArray,
    pair_s: FloatArray,
    device: LongArray,
    rank: FloatArray,
    num_devices: int,
) -> FloatArray:
    """[M] start of each kernel: a free device starts what has arrived there and has the highest rank."""
    num_kernels = len(seconds)
    start_s = np.zeros(num_kernels)
    arrival_s = np.zeros(num_kernels)
    waits_for = np.diff(read_ptr)
    is_busy = np.zeros(num_devices, np.bool_)
    ready = [[(0.0, 0)] for _ in range(num_devices)]
    for of_device in ready:
        of_device.pop()
    events = [(0.0, 0, 0)]  # time, 1 where a kernel ends and 0 where its operands have arrived, kernel
    events.pop()
    for kernel in range(num_kernels):
        if waits_for[kernel] == 0:
            heapq.heappush(events, (0.0, 0, kernel))
    while len(events) > 0:
        now_s = events[0][0]
        while len(events) > 0 and events[0][0] == now_s:
            _, is_end, kernel = heapq.heappop(events)
            if is_end == 0:
                heapq.heappush(ready[device[kernel]], (-rank[kernel], kernel))
                continue
            is_busy[device[kernel]] = False
            for i in range(send_ptr[kernel], send_ptr[kernel + 1]):
                to = reader[send[i]]
                arrival_s[to] = max(arrival_s[to], now_s + pair_s[send[i]])
                waits_for[to] -= 1
                if waits_for[to] == 0:
                    heapq.heappush(events, (arrival_s[to], 0, int64(to)))
        for chip in range(num_devices):
            if not is_busy[chip] and len(ready[chip]) > 0:
                _, kernel = heapq.heappop(ready[chip])
                start_s[kernel] = now_s
                is_busy[chip] = True
                heapq.heappush(events, (now_s + seconds[kernel], 1, kernel))
    return start_s


@compiled
def _earliest_finish(
    seconds: FloatArray,
    read_ptr: LongArray,
    read: LongArray,
    source: IntArray,
    transfer_s: FloatArray,
    by_rank: LongArray,
    num_devices: int,
    inserts: bool,
) -> tuple[IntArray, FloatArray]:
    """``(device, start_s)``, [M] each."""
    num_kernels = len(seconds)
    device = np.zeros(num_kernels, np.int32)
    start_s = np.zeros(num_kernels)
    begin_s = np.empty((num_devices, num_kernels))  # of what each device runs, by time
    end_s = np.empty((num_devices, num_kernels))
    count = np.zeros(num_devices, np.int64)
    for kernel in by_rank:
        best, best_s, best_at = -1, np.inf, 0
        for chip in range(num_devices):
            ready_s = 0.0
            for i in range(read_ptr[kernel], read_ptr[kernel + 1]):
                home = source[read[i]]
                sent_s = transfer_s[read[i]] if device[home] != chip else 0.0
                ready_s = max(ready_s, start_s[home] + seconds[home] + sent_s)
            at = count[chip]
            if inserts:
                at = np.searchsorted(end_s[chip, :at], ready_s, side="right")
                free_s = max(ready_s, end_s[chip, at - 1]) if at > 0 else ready_s
                while at < count[chip] and free_s + seconds[kernel] > begin_s[chip, at]:
                    free_s = max(ready_s, end_s[chip, at])
                    at += 1
            else:
                free_s = max(ready_s, end_s[chip, at - 1]) if at > 0 else ready_s
            if free_s < best_s:
                best, best_s, best_at = chip, free_s, at
        for i in range(count[best], best_at, -1):
            begin_s[best, i] = begin_s[best, i - 1]
            end_s[best, i] = end_s[best, i - 1]
        begin_s[best, best_at] = best_s
        end_s[best, best_at] = best_s + seconds[kernel]
        count[best] += 1
        device[kernel] = best
        start_s[kernel] = best_s
    return device, start_s
