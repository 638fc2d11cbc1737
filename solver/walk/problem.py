"""What a walk sees of the kernels along an order."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from go_opt.common.arrays import FloatArray, IntArray, LongArray, row_pointers
from go_opt.env.cost.tables import CostTables, hop_seconds_per_byte
from go_opt.model.graph import WEIGHT
from go_opt.solver.problem.sequence import kernel_sequence, reads_by_kernel
from go_opt.solver.slicing.memory import SegmentMemory, segment_memory


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
    reader, before, weight = reads_by_kernel(tables, sequence.kernel_of, WEIGHT)
    return WalkProblem(
        kernel_of=sequence.kernel_of,
        kernel_s=sequence.kernel_s,
        left_s=left_s,
        chip_kind=tables.chip_kind,
        traffic=np.log10(sequence.crossing_bytes[:-1] * (rates[:, None] / fair_share_s) + 0.01),
        hop=hop.astype(np.int64),
        weight_ptr=row_pointers(reader, sequence.num_kernels),
        weight_bytes=tables.stored_bytes[weight],
        weight_before=before,
        memory=segment_memory(tables, sequence),
        sent_bytes=sequence.crossing_bytes,
    )
