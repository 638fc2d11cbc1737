"""Partitions of kernels with little traffic between chips, whose chips share the work of each period.

Annealing of the seconds of all transfers plus, for each period, the sum over chips of squared work over the
mean. A period is a range of the longest paths that end at a kernel. With several, chips work at once.
One is graph partitioning (Karypis and Kumar, "A fast and high quality multilevel scheme for partitioning
irregular graphs", SIAM J. Sci. Comput. 1998).
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np

from go_opt.common.arrays import FloatArray, IntArray, LongArray, csr
from go_opt.common.compiling import compiled, int64
from go_opt.env.cost.tables import CostTables
from go_opt.env.kernels.numbering import kernel_seconds
from go_opt.model.graph import NO_PRODUCER

HOT: Final = 4.0  # first temperature, in mean seconds of a kernel
COLD: Final = 0.01  # last temperature, as a share of the first


class Linked(NamedTuple):
    """Kernels and the transfers between them. Axes: ``M`` kernels, ``E`` ends of pairs by kernel."""

    seconds: FloatArray  # [M]
    head_s: FloatArray  # [M] longest path until each kernel starts
    ptr: LongArray  # [M + 1]
    other: IntArray  # [E]
    sent_s: FloatArray  # [E]


def linked_kernels(tables: CostTables, kernel_of: IntArray) -> Linked:
    """Of kernels [N], numbered along an order."""
    seconds = kernel_seconds(tables, kernel_of).mean(axis=0)
    tensor = tables.reader_tensor
    producer = tables.tensor_producer[tensor]
    is_made = producer != NO_PRODUCER
    source, reader = kernel_of[producer[is_made]], kernel_of[tables.reader_op[is_made]]
    pairs = np.unique(np.stack([source, reader, tensor[is_made]])[:, source != reader], axis=1)
    setup_s = float(tables.dma_setup_s.mean() + tables.dependency_s.mean() + tables.link_latency_s.mean())
    sent_s = setup_s + tables.tensor_bytes[pairs[2]] * float(tables.link_s_per_byte.mean())
    ptr, by_first = csr(np.concatenate([pairs[0], pairs[1]]), len(seconds))
    return Linked(
        seconds,
        _heads(seconds, pairs[0].astype(np.int32), pairs[1].astype(np.int32)),
        ptr,
        np.concatenate([pairs[1], pairs[0]])[by_first].astype(np.int32),
        np.tile(sent_s, 2)[by_first],
    )


def partition(
    linked: Linked, num_chips: int, periods: int, weight: float, sweeps: int, seed: int
) -> IntArray:
    """[M] the chip of each kernel, after ``sweeps`` moves for each; transfers count ``weight`` times."""
    end_s = float((linked.head_s + linked.seconds).max())
    period = np.minimum(linked.head_s / max(end_s, 1e-30) * periods, periods - 1).astype(np.int64)
    rng = np.random.default_rng(seed)
    chip = rng.integers(0, num_chips, len(linked.seconds)).astype(np.int32)
    mean_s = np.maximum(np.bincount(period, linked.seconds, periods) / num_chips, 1e-30)
    _anneal(linked, chip, period, mean_s, num_chips, weight, sweeps, rng)
    return chip


@compiled
def _heads(seconds: FloatArray, source: IntArray, reader: IntArray) -> FloatArray:
    """[M]; pairs are sorted by ``source``, and kernels numbered along an order."""
    head_s = np.zeros(len(seconds))
    for i in range(len(source)):
        head_s[reader[i]] = max(head_s[reader[i]], head_s[source[i]] + seconds[source[i]])
    return head_s


@compiled
def _anneal(
    linked: Linked,
    chip: IntArray,
    period: LongArray,
    mean_s: FloatArray,
    num_chips: int,
    weight: float,
    sweeps: int,
    rng: np.random.Generator,
) -> None:
    """Change ``chip`` in place."""
    num_kernels = len(chip)
    work_s = np.zeros((len(mean_s), num_chips))
    for kernel in range(num_kernels):
        work_s[period[kernel], chip[kernel]] += linked.seconds[kernel]
    moves = sweeps * num_kernels
    hot_s = HOT * linked.seconds.mean()
    for move in range(moves):
        kernel = int64(rng.random() * num_kernels)
        home, when, seconds = chip[kernel], period[kernel], linked.seconds[kernel]
        first, last = linked.ptr[kernel], linked.ptr[kernel + 1]
        to = int64(rng.random() * num_chips)
        if last > first and rng.random() < 0.5:
            to = int64(chip[linked.other[first + int64(rng.random() * (last - first))]])
        if to == home:
            continue
        change_s = (work_s[when, to] - work_s[when, home] + seconds) * seconds / mean_s[when]
        for i in range(first, last):
            other = chip[linked.other[i]]
            change_s += weight * linked.sent_s[i] * (int64(other == home) - int64(other == to))
        if change_s > 0.0 and rng.random() >= np.exp(-change_s / (hot_s * COLD ** (move / moves))):
            continue
        work_s[when, home] -= seconds
        work_s[when, to] += seconds
        chip[kernel] = to
