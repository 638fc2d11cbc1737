"""Replicated stages: their chips take inferences in turn and forward streamed weights.

Sequence q runs on replica q mod r of every stage of r chips, and its states stay there. Without sequences,
inferences take their place. In a *round* every sequence has one inference; if each of the r chips has as many
of these, r inferences are a round as well.
"""

from __future__ import annotations

from go_opt.common.arrays import FloatArray, IntArray, LongArray
from go_opt.common.compiling import uncounted_inner


@uncounted_inner
def round_of(size: int, sequences: int) -> int:
    """Inferences after which the chips of a stage take the same turns again; no ``sequences``: 0."""
    return sequences if sequences % size > 0 else size


@uncounted_inner
def turns_before(replica: int, size: int, sequences: int) -> int:
    """Inferences of a round that run on the replicas before ``replica``."""
    inferences = round_of(size, sequences)
    return inferences // size * replica + min(inferences % size, replica)


@uncounted_inner
def turns_of(replica: int, size: int, sequences: int) -> int:
    """Inferences of a round that run on a replica; the first has the most."""
    return (round_of(size, sequences) - replica + size - 1) // size


@uncounted_inner
def number_stages(
    placement: IntArray,
    replication: IntArray,
    sequences: int,
    stage_size: LongArray,
    share: FloatArray,
    border_bytes: LongArray,
) -> None:
    """Fill in ``stage_size``, and the ``share`` of inferences of each chip; clear ``border_bytes``."""
    num_chips = len(stage_size)
    for d in range(num_chips):
        stage_size[d] = 1
        share[d] = 1.0
        border_bytes[0, d] = 0
        border_bytes[1, d] = 0
    for op in range(len(placement)):
        size = min(replication[op], num_chips - placement[op])
        if sequences > 0:
            size = min(size, sequences)
        stage_size[placement[op]] = max(stage_size[placement[op]], size)
    for d in range(num_chips):
        for replica in range(stage_size[d] if stage_size[d] > 1 else 0):
            turns = turns_of(replica, stage_size[d], sequences)
            share[d + replica] = turns / round_of(stage_size[d], sequences)


@uncounted_inner
def share_stream(first: int, size: int, bytes_a_turn: float, turn_bytes: FloatArray) -> None:
    """Add forwarded weights: the host sends them once per stage, and each chip sends them to the next."""
    turn_bytes[-1] += bytes_a_turn
    for link in range(first, first + size - 1):
        turn_bytes[link] += bytes_a_turn
