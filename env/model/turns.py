"""Replicated stages: their chips take inferences in turn and forward streamed weights."""

from __future__ import annotations

from go_opt.common.arrays import FloatArray, IntArray, LongArray
from go_opt.common.compiling import uncounted_inner


@uncounted_inner
def number_stages(
    placement: IntArray,
    replication: IntArray,
    stage_size: LongArray,
    sharers: LongArray,
    border_bytes: LongArray,
) -> None:
    """Fill in ``stage_size`` and ``sharers`` for a plan, and clear ``border_bytes``."""
    num_chips = len(stage_size)
    for d in range(num_chips):
        stage_size[d] = 1
        sharers[d] = 1
        border_bytes[0, d] = 0
        border_bytes[1, d] = 0
    for op in range(len(placement)):
        size = min(replication[op], num_chips - placement[op])
        stage_size[placement[op]] = max(stage_size[placement[op]], size)
    for d in range(num_chips):
        for replica in range(d, d + stage_size[d] if stage_size[d] > 1 else d):
            sharers[replica] = stage_size[d]


@uncounted_inner
def share_stream(first: int, size: int, bytes_a_turn: float, turn_bytes: FloatArray) -> None:
    """Add forwarded weights: the host sends them once per stage, and each chip sends them to the next."""
    turn_bytes[-1] += bytes_a_turn
    for link in range(first, first + size - 1):
        turn_bytes[link] += bytes_a_turn
