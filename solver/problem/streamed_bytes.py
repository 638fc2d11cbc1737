"""Weights that exceed all memories together, and their lower bound on the interval."""

from __future__ import annotations

import numpy as np

from go_opt.common.arrays import BoolArray, FloatArray
from go_opt.env import CostTables
from go_opt.model.graph import INPUT, WEIGHT


def least_host_s(tables: CostTables, divisible: BoolArray | None = None, *, forwards: bool) -> float:
    """Returns a lower bound on the interval from inputs and streamed weights, where transfers overlap.

    If the D chips of a stage may forward weights, each byte crosses the host's link at least once per
    D inferences. Each link between chips carries ``T / link`` bytes within an interval T. So stages of k
    chips stream at most ``k T / link`` forwarded bytes, and ``T / host`` bytes directly.

    Args:
      divisible: [N] ops that may be split.
      forwards: whether stages may forward weights.
    """
    input_bytes = float(tables.tensor_bytes[tables.tensor_kind == INPUT].sum())
    streamed = least_streamed_bytes(tables, divisible)
    host_s = tables.host_in_s_per_byte
    if streamed == 0.0 or not (forwards and may_forward(tables)):
        return (input_bytes + streamed) * host_s
    shared = least_streamed_bytes(tables, divisible, sharers=tables.num_chips)
    bytes_per_s = 1.0 / host_s + forwarded_bytes_per_s(tables)
    return max((input_bytes + shared) * host_s, (input_bytes + streamed) / bytes_per_s)


def may_forward(tables: CostTables) -> bool:
    """Returns whether stages may forward weights: on rings where transfers overlap compute."""
    return tables.is_ring and tables.overlap and tables.num_chips > 1


def forwarded_bytes_per_s(tables: CostTables) -> float:
    """Returns an upper bound on the forwarded bytes per second of all stages together."""
    return tables.num_chips / float(tables.link_s_per_byte.min())


def least_streamed_bytes(tables: CostTables, divisible: BoolArray | None = None, sharers: int = 1) -> float:
    """Returns the bytes each inference must stream because the weights exceed all memories together.

    Each weight is resident or streamed at least once. The cheapest way to remove the excess,
    with fractions of weights allowed, is by least touched bytes per stored byte.

    Args:
      divisible: [N] ops that may be split, so that no chip needs all of their weights.
      sharers: chips that share the streaming of weights that are read as a whole.
    """
    sizes = [_sizes(tables, np.ones(tables.num_ops, dtype=np.bool_), sharers)]
    if divisible is not None:
        sizes = [_sizes(tables, ~divisible, sharers), _sizes(tables, divisible, sharers)]
    always = 0.0
    for number, (stored, touched) in enumerate(sizes):
        # A weight too large for any chip streams; its largest reader needs the most bytes.
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


def _sizes(tables: CostTables, of_ops: BoolArray, sharers: int) -> tuple[FloatArray, FloatArray]:
    """Returns stored bytes, and the most bytes an op touches, of each weight that ``of_ops`` read."""
    is_read = of_ops[tables.reader_op]
    touched = np.zeros(len(tables.tensor_bytes))
    np.maximum.at(touched, tables.reader_tensor[is_read], tables.read_bytes[is_read])
    weights = np.unique(tables.reader_tensor[is_read])
    weights = weights[tables.tensor_kind[weights] == WEIGHT]
    touched = np.where(touched < tables.tensor_bytes, touched, touched / sharers)
    return tables.stored_bytes[weights].astype(np.float64), touched[weights]
