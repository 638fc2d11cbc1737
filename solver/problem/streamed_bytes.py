"""The weights that no memory can hold."""

from __future__ import annotations

import numpy as np

from go_opt.env import CostTables
from go_opt.model.graph import WEIGHT


def least_streamed_bytes(tables: CostTables) -> float:
    """Bytes a sample must stream because all memories together cannot hold the weights.

    Each weight is held or streamed at least once; the cheapest way to shed the excess,
    fractions of weights allowed, is by least touched per stored byte.
    """
    weights = np.flatnonzero(tables.tensor_kind == WEIGHT)
    if len(weights) == 0:
        return 0.0
    stored = tables.stored_bytes[weights].astype(np.float64)
    never_fits = stored > float(tables.sram_bytes.max())
    # A weight held nowhere streams on the chip of its greediest reader too.
    most_touched = np.zeros(len(tables.tensor_bytes))
    np.maximum.at(most_touched, tables.reader_tensor, tables.read_bytes)
    always = float(most_touched[weights[never_fits]].sum())
    weights, stored = weights[~never_fits], stored[~never_fits]
    excess = float(stored.sum()) - float(tables.sram_bytes.sum())
    if excess <= 0:
        return always
    share = most_touched[weights] / np.maximum(stored, 1.0)
    cheapest = np.argsort(share, kind="stable")
    shed_before = np.concatenate([[0.0], np.cumsum(stored[cheapest])[:-1]])
    shed = np.clip(excess - shed_before, 0.0, stored[cheapest])
    return always + float((shed * share[cheapest]).sum())
