"""What a walk sees of the kernels along an order."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from go_opt.common.arrays import FloatArray, IntArray, LongArray, csr
from go_opt.env.cost import CostTables
from go_opt.env.cost.routes import hop_seconds_per_byte
from go_opt.model.graph import WEIGHT
from go_opt.solver.problem.sequence import kernel_sequence, unique_pairs
from go_opt.solver.slicing.segments.memory import SegmentMemory, segment_memory


class WalkProblem(NamedTuple):
    """Kernels along an order, and the chips that they fill one after the other.

    Axes: ``N`` ops, ``M`` kernels, ``D`` chips, ``Q`` chip kinds, ``H`` different rates of hops, ``W`` reads
    of weights.
    """

    kernel_of: IntArray  # [N] numbered along the order
    kernel_s: FloatArray  # [Q, M]
    left_s: FloatArray  # [M + 1] seconds of the kernels from here on, each on its fastest kind
    chip_kind: IntArray  # [D]
    traffic: FloatArray  # [H, M] feature 4 of a cut before the kernel
    hop: LongArray  # [D] row of ``traffic`` for the hop from each chip
    weight_ptr: LongArray  # [M + 1]
    weight_bytes: LongArray  # [W] stored bytes of the weights that each kernel reads
    weight_before: LongArray  # [W] the kernel that read the weight before, -1: none
    memory: SegmentMemory  # activations by kernel
    sent_bytes: LongArray  # [M + 1] produced before a cut and read after it, as sent over links

    @property
    def num_kernels(self) -> int:
        return self.kernel_s.shape[1]

    @property
    def num_chips(self) -> int:
        return len(self.chip_kind)


def walk_problem(tables: CostTables, order: IntArray, fusion_group: IntArray) -> WalkProblem:
    """Returns the problem of a walk along ``order`` [N] by the kernels of ``fusion_group`` [N]."""
    sequence = kernel_sequence(tables, order, fusion_group, adjacent=True)
    left_s = np.append(np.cumsum(sequence.kernel_s.min(axis=0)[::-1])[::-1], 0.0)
    rates, hop = np.unique(hop_seconds_per_byte(tables), return_inverse=True)
    fair_share_s = max(left_s[0] / tables.num_chips, np.finfo(np.float64).tiny)
    return WalkProblem(
        kernel_of=sequence.kernel_of,
        kernel_s=sequence.kernel_s,
        left_s=left_s,
        chip_kind=tables.chip_kind,
        traffic=np.log10(sequence.crossing_bytes[:-1] * (rates[:, None] / fair_share_s) + 0.01),
        hop=hop.astype(np.int64),
        **_weights(tables, sequence.kernel_of, sequence.num_kernels),
        memory=segment_memory(tables, sequence),
        sent_bytes=sequence.crossing_bytes,
    )


def _weights(tables: CostTables, kernel_of: IntArray, num_kernels: int) -> dict[str, LongArray]:
    is_weight = tables.tensor_kind[tables.reader_tensor] == WEIGHT
    # By weight, then by kernel.
    reads = unique_pairs(tables.reader_tensor[is_weight], kernel_of[tables.reader_op[is_weight]])
    before = np.full(len(reads), -1, dtype=np.int64)
    again = 1 + np.flatnonzero(reads[1:, 0] == reads[:-1, 0])
    before[again] = reads[again - 1, 1]
    weight_ptr, by_kernel = csr(reads[:, 1], num_kernels)
    return {
        "weight_ptr": weight_ptr,
        "weight_bytes": tables.stored_bytes[reads[by_kernel, 0]],
        "weight_before": before[by_kernel],
    }
