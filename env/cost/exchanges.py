"""Costs of collectives in graphs with parts (:mod:`go_opt.env.copies.exchanges`).

Each chip of a collective has two ops: one hands over what the chip has made, and takes no time; the other
occupies the chip for as long as the target's figures say, as a kernel that moves and adds what all have.
Nothing crosses a link besides. Without figures for a collective of as many chips, each chip copies what the
others have, one by one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from go_opt.env.gpu.figures import Collective
from go_opt.model.graph import NO_PRODUCER, Graph
from go_opt.model.plan import CollectiveOp

if TYPE_CHECKING:
    from go_opt.common.arrays import LongArray


def collective_s(
    collectives: tuple[Collective, ...], of: CollectiveOp, num_bytes: float, group: int
) -> float | None:
    """Seconds of a collective of ``group`` chips; None if no figures are given.

    Args:
      num_bytes: of the whole tensor that is exchanged.
    """
    figures = Collective.of_group(collectives, of.figures, group)
    if figures is None:
        return None
    # A chip has a share of the tensor, which it sends to all others.
    whole = num_bytes / group if of is CollectiveOp.ALL_TO_ALL else num_bytes
    return float(figures.seconds(np.array([whole]), np.array([float(group)]))[0])


def costed_exchanges(
    graph: Graph, collectives: tuple[Collective, ...], tensor_bytes: LongArray
) -> list[tuple[int, list[int], float]]:
    """What chips do in the collectives for which there are figures; ``tensor_bytes`` [K].

    Returns:
      ops, the tensors that the chips of their group hand over, and seconds.
    """
    found = []
    for op, op_type in enumerate(graph.op_types if collectives else ()):
        of = CollectiveOp.of(op_type)
        if of is None:
            continue
        sent = [k for k, touched in graph.reads_of(op) if touched]  # others are states that it only writes
        makers = graph.tensor_producer[sent]
        is_ours = bool(sent) and (makers != NO_PRODUCER).all()
        if not is_ours or {graph.op_types[one] for one in makers} != {CollectiveOp.SEND}:
            continue  # an op of the model that has this name
        is_gathered = of in (CollectiveOp.ALL_GATHER, CollectiveOp.ALL_TO_ALL)
        # Those of a bucket are exchanged at once.
        group = len(sent) // sum(bool(graph.tensor_elements[k]) for k in graph.outputs_of(op))
        num_bytes = float(tensor_bytes[sent].sum()) / (1 if is_gathered else group)
        seconds = collective_s(collectives, of, num_bytes, group)
        if seconds is not None:
            found.append((op, sent, seconds))
    return found
