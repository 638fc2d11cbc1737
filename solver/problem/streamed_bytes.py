"""Weights that exceed all memories together, and their lower bound on the interval."""

from __future__ import annotations

import numpy as np

from go_opt.common.arrays import BoolArray, FloatArray, LongArray
from go_opt.env import CostTables
from go_opt.model.graph import INPUT, NO_PRODUCER, WEIGHT


def least_host_s(tables: CostTables, divisible: BoolArray | None = None, *, forwards: bool) -> float:
    """Returns a lower bound on the interval from inputs and streamed weights, where transfers overlap.

    If the chips of a stage may forward weights, each byte crosses the host's link at least once per D
    inferences, for D chips. S stages hold weights in S memories, since the chips of a stage hold the same.
    What they stream within an interval T crosses the host's link, ``T / host`` bytes, or one of the D - S
    links inside stages, ``T / link`` bytes each. The bound is that of the best S.

    Args:
      divisible: [N] ops that may be split.
      forwards: whether stages may forward weights.
    """
    input_bytes = float(tables.tensor_bytes[tables.tensor_kind == INPUT].sum())
    streamed, host_s = _streamed_by_stages(tables, divisible), tables.host_in_s_per_byte
    if not (forwards and tables.may_forward):
        return (input_bytes + float(streamed[-1])) * host_s
    shared = _streamed_by_stages(tables, divisible, sharers=tables.num_chips)
    links_inside = np.arange(tables.num_chips)[::-1]
    bytes_per_s = 1.0 / host_s + links_inside / float(tables.link_s_per_byte.min())
    return float(np.maximum((input_bytes + shared) * host_s, (input_bytes + streamed) / bytes_per_s).min())


def least_host_s_with_states(tables: CostTables, sent_bytes: LongArray, *, forwards: bool) -> float:
    """Returns a lower bound as :func:`least_host_s`, where the host may keep states.

    What the memories cannot hold is streamed, if it is a weight, or sent, at the least bytes per stored byte.

    Args:
      sent_bytes: [K] of states: what the host sends for each inference if it keeps the state.
    """
    sharers = tables.num_chips if forwards and tables.may_forward else 1
    stored, touched, *_ = _sizes(tables, np.ones(tables.num_ops, dtype=np.bool_), sharers)
    states = np.flatnonzero(tables.is_state & (np.diff(tables.reader_ptr) > 0))
    stored = np.concatenate([stored, tables.stored_bytes[states]])
    touched = np.concatenate([touched, sent_bytes[states]])
    excess = np.array([stored.sum() - tables.sram_bytes.sum()])
    input_bytes = float(tables.tensor_bytes[tables.tensor_kind == INPUT].sum())
    return (input_bytes + float(_shed_bytes(stored, touched, excess)[0])) * tables.host_in_s_per_byte


def least_streamed_bytes(tables: CostTables) -> float:
    """Returns the bytes each inference must stream because the weights exceed all memories together."""
    return float(_streamed_by_stages(tables)[-1])


def _streamed_by_stages(
    tables: CostTables, divisible: BoolArray | None = None, sharers: int = 1
) -> FloatArray:
    """Returns the bytes [D] each inference must stream because the weights exceed 1 to D memories together.

    Each weight is resident or streamed at least once.

    Args:
      divisible: [N] ops that may be split, so that no chip needs all of their weights.
      sharers: chips that share the streaming of weights that are read as a whole.
    """
    sizes = [_sizes(tables, np.ones(tables.num_ops, dtype=np.bool_), sharers)]
    if divisible is not None:
        sizes = [_sizes(tables, ~divisible, sharers), _sizes(tables, divisible, sharers)]
    # Of a weight of whole ops that is too large for any chip, the bytes stream for which no chip has room; if
    # its largest reader reads a part of it, all that this one reads.
    stored, touched, is_whole, beside = sizes[0]
    room = np.maximum(float((tables.sram_bytes - tables.stream_buffer_bytes).max()) - beside, 0.0)
    never_fits = stored > float(tables.sram_bytes.max()) - beside
    stays = np.where(never_fits, np.where(is_whole, room, 0.0), stored)
    stays_touched = np.where(never_fits, stays / sharers, touched)
    always = float(np.maximum(touched - stays_touched, 0.0).sum())
    sizes[0] = stays, stays_touched, is_whole, beside
    stored, touched, *_ = (np.concatenate(column) for column in zip(*sizes, strict=True))
    excess = float(stored.sum()) - np.cumsum(np.sort(tables.sram_bytes)[::-1]).astype(np.float64)
    return always + _shed_bytes(stored, touched, excess + _state_bytes_by_stages(tables))


def _state_bytes_by_stages(tables: CostTables) -> FloatArray:
    """Returns the least bytes [D] of states beside the weights of 1 to D stages, one chip of each counted.

    All chips together hold all states, those of a stage as many each; a chip holds no more than its memory,
    and the D - S chips that S stages have beside their first ones may lie in one stage.
    """
    is_held = tables.is_state & (np.diff(tables.reader_ptr) > 0)
    total = float(tables.stored_bytes[is_held].sum())
    others = np.arange(tables.num_chips)[::-1]
    least: FloatArray = np.maximum(total / (others + 1), total - others * float(tables.sram_bytes.max()))
    return least


def _shed_bytes(stored: FloatArray, touched: FloatArray, excess: FloatArray) -> FloatArray:
    """Returns the least bytes [E] that each inference touches of what leaves the memories.

    The cheapest way to remove an excess [E], with fractions of tensors allowed, is by least touched bytes
    per stored byte.
    """
    share = touched / np.maximum(stored, 1.0)
    cheapest = np.argsort(share, kind="stable")
    shed_before = np.cumsum(stored[cheapest]) - stored[cheapest]
    shed = np.clip(excess[:, None] - shed_before, 0.0, stored[cheapest])
    touched_bytes: FloatArray = shed @ share[cheapest]
    return touched_bytes


def _sizes(
    tables: CostTables, of_ops: BoolArray, sharers: int
) -> tuple[FloatArray, FloatArray, BoolArray, FloatArray]:
    """Returns, of each weight that ``of_ops`` read, its bytes, the most an op touches, and if that is all.

    Also the least bytes beside it on a chip where an op reads all of it: twice the model's outputs that this
    op writes.
    """
    written = tables.tensor_is_output & (tables.tensor_producer != NO_PRODUCER)
    output_bytes = np.bincount(
        tables.tensor_producer[written], 2.0 * tables.tensor_bytes[written], minlength=tables.num_ops
    )
    reads_all = of_ops[tables.reader_op] & (tables.read_bytes >= tables.tensor_bytes[tables.reader_tensor])
    beside = np.full(len(tables.tensor_bytes), np.inf)
    np.minimum.at(beside, tables.reader_tensor[reads_all], output_bytes[tables.reader_op[reads_all]])
    is_read = of_ops[tables.reader_op]
    touched = np.zeros(len(tables.tensor_bytes))
    np.maximum.at(touched, tables.reader_tensor[is_read], tables.read_bytes[is_read])
    weights = np.unique(tables.reader_tensor[is_read])
    weights = weights[(tables.tensor_kind[weights] == WEIGHT) & ~tables.is_state[weights]]
    is_whole = touched >= tables.tensor_bytes
    touched = np.where(is_whole, touched / sharers, touched)
    beside = np.where(is_whole, beside, 0.0)
    return (
        tables.stored_bytes[weights].astype(np.float64),
        touched[weights],
        is_whole[weights],
        beside[weights],
    )
