"""A sequence of kernels along an order, with all data that slicing needs.

Positions: kernel ``m`` is between cut ``m`` and cut ``m + 1``; a segment ``[i, j)``
consists of kernels i … j - 1. Axes: ``M`` kernels, ``N`` ops, ``K`` tensors, ``Q`` chip kinds.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from go_opt.common.arrays import BoolArray, FloatArray, IntArray, LongArray
from go_opt.common.compiling import compiled
from go_opt.env.cost.tables import CostTables
from go_opt.env.kernels.numbering import kernel_seconds, number_kernels
from go_opt.model.graph import INPUT, NO_PRODUCER, WEIGHT


class KernelSequence(NamedTuple):
    """Costs of kernels and cuts along one order."""

    order: IntArray  # [N] ops
    fusion_group: IntArray  # [N] their kernels, whose ops are adjacent in the order
    kernel_of: IntArray  # [N] position of each op's kernel
    home: LongArray  # [K] kernel that produces the tensor, -1: none
    last: LongArray  # [K] last kernel that reads it from another, -1: none, or the tensor is a weight
    kernel_s: FloatArray  # [Q, M] seconds of each kernel on each kind
    can_run: BoolArray  # [Q, M] True where the kind may run the kernel
    crossing_bytes: LongArray  # [M + 1] produced before a cut and read after it
    reach: LongArray  # [M + 1] the first cut where a segment that starts at each cut may end
    host_in_bytes: LongArray  # [M] inputs read, each input at each kernel reading it
    host_out_bytes: LongArray  # [M] outputs produced
    again_kernel: LongArray  # [A] kernels that read an input that an earlier kernel also reads
    again_before: LongArray  # [A] the previous reader of that input
    again_bytes: LongArray  # [A] bytes that a segment with both readers transfers only once
    input_bytes: int  # all inputs, each once
    adjacent: bool  # whether every edge may span at most one chip

    @property
    def num_kernels(self) -> int:
        return self.kernel_s.shape[1]


def kernel_sequence(
    tables: CostTables,
    order: IntArray,
    fusion_group: IntArray,
    *,
    adjacent: bool,
) -> KernelSequence:
    """Returns the kernels of ``fusion_group`` along ``order`` with their costs.

    With ``adjacent`` every edge may span at most one chip, so the segment after a cut must
    reach the last reader of every tensor that crosses the cut: ``reach`` is its first
    allowed end. Otherwise a segment may end anywhere.
    """
    kernel_of = number_kernels(order, fusion_group)
    num_kernels = int(kernel_of.max()) + 1
    kernel_s = kernel_seconds(tables, kernel_of)
    can_run = np.ones_like(kernel_s, dtype=np.bool_)
    kind, op = np.nonzero(~tables.can_run)
    can_run[kind, kernel_of[op]] = False
    home, last, crossing, last_reader, inputs, outputs = _sequence(tables, kernel_of, num_kernels)
    kernel, before, tensor = reads_by_kernel(tables, kernel_of, INPUT)
    again = before >= 0
    cuts = np.arange(1, num_kernels + 2)
    reach = cuts if not adjacent else np.maximum(cuts, np.concatenate([[0], last_reader + 1]))
    is_input = tables.tensor_kind == INPUT
    return KernelSequence(
        order,
        fusion_group,
        kernel_of,
        home,
        last,
        kernel_s,
        can_run,
        crossing,
        reach,
        inputs,
        outputs,
        kernel[again],
        before[again],
        tables.tensor_bytes[tensor[again]],
        input_bytes=int(tables.tensor_bytes[is_input].sum()),
        adjacent=adjacent,
    )


def reads_by_kernel(
    tables: CostTables, kernel_of: IntArray, kind: int
) -> tuple[LongArray, LongArray, LongArray]:
    """Returns the kernels [P] that read tensors of ``kind``, ascending, the previous readers (-1: none), and
    the tensors."""
    is_kind = tables.tensor_kind[tables.reader_tensor] == kind
    reads = unique_pairs(tables.reader_tensor[is_kind], kernel_of[tables.reader_op[is_kind]])
    before = np.full(len(reads), -1)
    again = 1 + np.flatnonzero(reads[1:, 0] == reads[:-1, 0])
    before[again] = reads[again - 1, 1]
    by_kernel = np.argsort(reads[:, 1], kind="stable")
    return reads[by_kernel, 1], before[by_kernel], reads[by_kernel, 0]


def unique_pairs(a: NDArray[np.integer], b: NDArray[np.integer]) -> LongArray:
    """Returns the distinct pairs [P, 2] of ``a`` and ``b``, ascending; all values must be >= 0."""
    if len(a) == 0:
        return np.zeros((0, 2), dtype=np.int64)
    # Encode each pair as one number: sorting rows takes several times as long.
    above = np.int64(b.max()) + 1
    return np.stack(np.divmod(np.unique(a.astype(np.int64) * above + b), above), axis=1)


@compiled
def _sequence(
    tables: CostTables, kernel_of: IntArray, num_kernels: int
) -> tuple[LongArray, LongArray, LongArray, LongArray, LongArray, LongArray]:
    home_of = np.full(len(tables.tensor_kind), -1, np.int64)
    last_of = np.full(len(tables.tensor_kind), -1, np.int64)
    crossing = np.zeros(num_kernels + 1, np.int64)
    last_reader = np.full(num_kernels, -1, np.int64)
    inputs = np.zeros(num_kernels, np.int64)
    outputs = np.zeros(num_kernels, np.int64)
    seen = np.full(num_kernels, -1, np.int64)
    for k in range(len(tables.tensor_kind)):
        size = tables.tensor_bytes[k]
        producer = tables.tensor_producer[k]
        home = home_of[k] = kernel_of[producer] if producer != NO_PRODUCER else -1
        last = -1
        for r in range(tables.reader_ptr[k], tables.reader_ptr[k + 1]):
            kernel = kernel_of[tables.reader_op[r]]
            if kernel == home:
                continue
            last = max(last, kernel)
            if tables.tensor_kind[k] == INPUT and seen[kernel] != k:
                seen[kernel] = k
                inputs[kernel] += size
        if tables.tensor_kind[k] == WEIGHT:
            continue
        last_of[k] = last
        if home < 0:
            continue
        if tables.tensor_is_output[k]:
            outputs[home] += size
        if last > home:
            crossing[home + 1] += size
            crossing[last + 1] -= size
            last_reader[home] = max(last_reader[home], last)
    for m in range(1, num_kernels):
        last_reader[m] = max(last_reader[m], last_reader[m - 1])
    for m in range(num_kernels):
        crossing[m + 1] += crossing[m]
    return home_of, last_of, crossing, last_reader, inputs, outputs
