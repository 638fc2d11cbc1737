"""Kernels of a plan: numbering along the order, bytes moved, seconds on each chip kind."""

from __future__ import annotations

import numpy as np

from go_opt.common.arrays import FloatArray, IntArray, LongArray
from go_opt.common.compiling import compiled, compiled_inner
from go_opt.env.cost.tables import CostTables


def number_kernels(order: IntArray, fusion_group: IntArray) -> IntArray:
    """[N] kernel of each op, numbered 0 … M - 1 along ``order``."""
    group = fusion_group[order]
    starts = np.concatenate([[True], group[1:] != group[:-1]])
    kernel_of = np.empty(len(order), dtype=np.int32)
    kernel_of[order] = np.cumsum(starts) - 1
    return kernel_of


def kernel_seconds(tables: CostTables, kernel_of: IntArray) -> FloatArray:
    """[Q, M] ``max(flops / peak, bytes / SRAM bandwidth) + overhead``, or the seconds of measured ops."""
    return seconds_of_kernels(tables, kernel_of, int(kernel_of.max()) + 1)


@compiled
def seconds_of_kernels(tables: CostTables, kernel_of: IntArray, num_kernels: int) -> FloatArray:
    """:func:`kernel_seconds` for compiled callers."""
    num_kinds = len(tables.sram_s_per_byte)
    moved_bytes = _kernel_bytes(tables, kernel_of, num_kernels)
    kernel_s = np.zeros((num_kinds, num_kernels))
    for kind in range(num_kinds):
        measured_s = np.zeros(num_kernels)
        is_modelled = np.zeros(num_kernels, np.bool_)
        for op in range(len(kernel_of)):
            kernel = kernel_of[op]
            if np.isnan(tables.measured_s[kind, op]):
                is_modelled[kernel] = True
                kernel_s[kind, kernel] += tables.op_s[kind, op]
            else:
                measured_s[kernel] += tables.measured_s[kind, op]
        for kernel in range(num_kernels):
            if is_modelled[kernel]:
                moved_s = moved_bytes[kernel] * tables.sram_s_per_byte[kind]
                seconds = max(kernel_s[kind, kernel], moved_s) + tables.kernel_overhead_s[kind]
                kernel_s[kind, kernel] = seconds
            kernel_s[kind, kernel] += measured_s[kernel]
    return kernel_s


@compiled_inner
def _kernel_bytes(tables: CostTables, kernel_of: IntArray, num_kernels: int) -> LongArray:
    """[M] bytes that each kernel reads from outside, once per tensor, and writes to outside."""
    moved_bytes = np.zeros(num_kernels, np.int64)
    seen = np.zeros(num_kernels, np.int64)  # last tensor that each kernel read, counted from one
    read = np.zeros(num_kernels, np.int64)
    for k in range(len(tables.tensor_kind)):
        producer = tables.tensor_producer[k]
        home = kernel_of[producer] if producer >= 0 else -1
        is_stored = tables.tensor_is_output[k]
        for r in range(tables.reader_ptr[k], tables.reader_ptr[k + 1]):
            kernel = kernel_of[tables.reader_op[r]]
            if kernel == home:
                continue
            is_stored = True
            if seen[kernel] != k + 1:
                seen[kernel] = k + 1
                read[kernel] = 0
            if tables.read_bytes[r] > read[kernel]:
                moved_bytes[kernel] += tables.read_bytes[r] - read[kernel]
                read[kernel] = tables.read_bytes[r]
        if home >= 0 and is_stored:
            moved_bytes[home] += tables.tensor_bytes[k]
    return moved_bytes
