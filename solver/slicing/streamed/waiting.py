"""An estimate, for all segments at once, of how long chips wait for weights that stream one kernel ahead.

The weights of a kernel start to stream when the previous kernel with streamed weights begins. A chip is
taken to wait if they take longer than the kernels in between. (A single chip waits less, since a kernel
may run while its own weights arrive; chips that forward weights also wait for each other.) The waits are
summed along the sequence once, as if one chip ran all of it and streamed by the rule of memory. A segment
that streams a share of these weights waits for that share of the time.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from go_opt.common.arrays import FloatArray, LongArray
from go_opt.env.cost import CostTables
from go_opt.env.model.memory import stream_order
from go_opt.model.graph import WEIGHT
from go_opt.solver.problem.sequence import KernelSequence

# Share of the host's link for a stage that streams for itself; other stages use the rest.
HOST_SHARE: Final = 0.5


def waits_for_weights(
    tables: CostTables, sequence: KernelSequence, cut: LongArray, hop_s_per_byte: float
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Sums up to each of ``cut`` [A], if one chip runs everything; chips are identical.

    These are the seconds of waiting for the host, those of waiting for the previous chip, which forwards the
    weights, and the streamed bytes.
    """
    streamed = _streamed_bytes(tables, sequence)
    kernel = np.flatnonzero(streamed)
    begins_s = np.concatenate([[0.0], np.cumsum(sequence.kernel_s[tables.chip_kind[0]])])[kernel]
    hidden_s = np.diff(begins_s, prepend=-np.inf)  # the first has no previous kernel
    before = np.searchsorted(kernel, cut)

    def summed(values: FloatArray) -> FloatArray:
        return np.concatenate([[0.0], np.cumsum(values)])[before]

    def waits(s_per_byte: float) -> FloatArray:
        return summed(np.maximum(streamed[kernel] * s_per_byte - hidden_s, 0.0))

    host_s_per_byte = tables.host_in_s_per_byte / HOST_SHARE
    return waits(host_s_per_byte), waits(hop_s_per_byte), summed(streamed[kernel])


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
