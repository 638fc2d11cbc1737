"""Quantities that characterise ops, and their standardisation."""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from go_opt.common.arrays import FloatArray
from go_opt.env.cost import CostTables
from go_opt.model.graph import NO_PRODUCER, WEIGHT

# Deviations below this share of the largest value are rounding errors.
_LEAST_SPREAD: Final = 1e-12


def bytes_out(tables: CostTables) -> NDArray:
    """[N] bytes of all tensors that each op writes."""
    produced = tables.tensor_producer != NO_PRODUCER
    producer, sizes = tables.tensor_producer[produced], tables.tensor_bytes[produced]
    return np.bincount(producer, weights=sizes, minlength=tables.num_ops)


def weight_bytes(tables: CostTables) -> NDArray:
    """[N] bytes of the weights that each op reads, also of parts that it does not touch."""
    is_weight = tables.tensor_kind[tables.reader_tensor] == WEIGHT
    reader, tensor = tables.reader_op[is_weight], tables.reader_tensor[is_weight]
    return np.bincount(reader, weights=tables.tensor_bytes[tensor], minlength=tables.num_ops)


def smallest_op_s(tables: CostTables) -> FloatArray:
    """[N] seconds of each op as a kernel of its own, on the fastest kind that may run it."""
    floor_s = tables.kernel_floor_s()
    may_run = tables.can_run | ~tables.can_run.any(axis=0)
    least_s: FloatArray = np.where(may_run, floor_s, np.inf).min(axis=0)
    return least_s


def standardise(columns: FloatArray) -> tuple[NDArray, NDArray, NDArray]:
    """``columns`` [N, F] with mean 0 and deviation 1, the means [F] and the deviations [F].

    A column that is the same for all ops becomes zero; scaling would amplify its rounding errors.
    """
    mean, spread = columns.mean(axis=0), columns.std(axis=0)
    spread = np.where(spread > _LEAST_SPREAD * np.abs(columns).max(axis=0), spread, 0.0)
    return (columns - mean) * (spread > 0) / np.where(spread > 0, spread, 1.0), mean, spread
