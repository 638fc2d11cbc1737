"""The weights that no memory can hold."""

from __future__ import annotations

import numpy as np

from go_opt.common.arrays import BoolArray, FloatArray
from go_opt.env import CostTables
from go_opt.model.graph import WEIGHT


def least_streamed_bytes(tables: CostTables, divisible: BoolArray | None = None) -> float:
    """Bytes a sample must stream because all memories together cannot hold the weights.

    Each weight is held or streamed at least once; the cheapest way to shed the excess,
    fractions of weights allowed, is by least touched per stored byte.

    Args:
      divisible: [N] ops that may be split, so that no chip need hold all of a weight of theirs.
    """
    sizes = [_sizes(tables, np.ones(tables.num_ops, dtype=np.bool_))]
    if divisible is not None:
        sizes = [_sizes(tables, ~divisible), _sizes(tables, divisible)]
    always = 0.0
    for number, (stored, touched) in enumerate(sizes):
        # A weight held nowhere streams on the chip of its greediest reader too.
        never_fits = (stored > float(tables.sram_bytes.max())) & (number == 0)
        always += float(touched[never_fits].sum())
        sizes[number] = stored[~never_fits], touched[~never_fits]
    stored, touched = (np.concatenate(column) for column in zip(*sizes, strict=True))
    excess = float(stored.sum()) - float(tables.sram_bytes.sum())
    if excess <= 0:
        return always
    share = touched / np.maximum(stored, 1.0)
    cheapest = np.argsort(share, kind="stable")
    shed_before = np.concatenate([[0.0], np.cumsum(stored[cheapest])[:-1]])
    shed = np.clip(excess - shed_before, 0.0, stored[cheapest])
    return always + float((shed * share[cheapest]).sum())


def _sizes(tables: CostTables, of_ops: BoolArray) -> tuple[FloatArray, FloatArray]:
    """Bytes stored, and the most that an op touches, of the weights that some ops read."""
    is_read = of_ops[tables.reader_op]
    touched = np.zeros(len(tables.tensor_bytes))
    np.maximum.at(touched, tables.reader_tensor[is_read], tables.read_bytes[is_read])
    weights = np.unique(tables.reader_tensor[is_read])
    weights = weights[tables.tensor_kind[weights] == WEIGHT]
    return tables.stored_bytes[weights].astype(np.float64), touched[weights]
