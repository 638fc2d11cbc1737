"""What the chips of replicated stages share: inferences in turn, and the weights they forward."""

from __future__ import annotations

from go_opt.common.arrays import FloatArray, IntArray, LongArray
from go_opt.common.compiling import compiled_inner


@compiled_inner
def number_stages(
    placement: IntArray,
    replication: IntArray,
    stage_size: LongArray,
    sharers: LongArray,
    border_bytes: LongArray,
) -> None:
    """Fill in the stages of a plan, and clear what crosses their borders."""
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


@compiled_inner
def share_stream(first: int, size: int, bytes_a_turn: float, turn_bytes: FloatArray) -> None:
    """The host sends a forwarded weight once for all chips of a stage, and each sends it to the next."""
    turn_bytes[-1] += bytes_a_turn
    for link in range(first, first + size - 1):
        turn_bytes[link] += bytes_a_turn
