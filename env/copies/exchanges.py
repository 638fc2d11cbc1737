"""Collectives in which the chips of an op's parts exchange its results, as those of NCCL and MPI.

Each chip hands over what its part has made, and then takes part in the collective, which ends with what its
part of the next op needs: all pieces (all-gather), the sum of all partial results (all-reduce), a slice of
this sum (reduce-scatter), or a slice of each piece (all-to-all). Those of a bucket are one collective.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

from go_opt.env.copies.pieces import Piece
from go_opt.errors import PlanError
from go_opt.model.graph import Graph
from go_opt.model.plan import CollectiveOp, Split


class Exchange(NamedTuple):
    """What a collective leaves on the chip of each part."""

    op: CollectiveOp
    results: tuple[Piece, ...]  # () each: a copy of the whole tensor

    @property
    def is_whole(self) -> bool:
        return not any(self.results)


def exchange_of(
    sources: Sequence[Piece],
    wanted: Sequence[tuple[Piece, ...] | None],
    *,
    is_sum: bool,
    is_output: bool,
) -> Exchange | None:
    """The collective that serves the readers of a tensor; None if each part reads what its chip has made.

    Args:
      sources: the pieces that the parts of the op make, or of partial results what they are added to.
      wanted: of each reader the piece that each part reads; None if it has other parts, or none.
      is_output: the host reads the tensor.
    """
    alike = wanted[0] if wanted and len(set(wanted)) == 1 and not is_output else None
    if alike is not None and _is_partition(alike):
        if is_sum:
            return Exchange(CollectiveOp.REDUCE_SCATTER, alike)
        if {cut.period for cut in alike[0]} == {cut.period for cut in sources[0]}:
            return None
        return Exchange(CollectiveOp.ALL_TO_ALL, alike)
    return Exchange(CollectiveOp.ALL_REDUCE if is_sum else CollectiveOp.ALL_GATHER, ((),) * len(sources))


def collective_of(cut: int, wanted: Collection[int], *, is_sum: bool, is_output: bool) -> CollectiveOp | None:
    """As :func:`exchange_of`, by the periods of cuts: of what parts make, and of what the readers need.

    Args:
      wanted: 0 of a reader that needs the whole tensor.
    """
    is_alike = len(set(wanted)) == 1 and 0 not in wanted and not is_output
    if is_sum:
        return CollectiveOp.REDUCE_SCATTER if is_alike else CollectiveOp.ALL_REDUCE
    if not is_output and set(wanted) <= {cut}:
        return None
    return CollectiveOp.ALL_TO_ALL if is_alike else CollectiveOp.ALL_GATHER


def buckets_of(
    graph: Graph, splits: Sequence[Split], exchanges: Mapping[int, Exchange]
) -> dict[int, list[int]]:
    """The tensors that the collective of each bucket exchanges, in order.

    Raises:
      PlanError: an op of a bucket has no collective, or another one, or one of other chips, than the others.
    """
    found: dict[int, list[int]] = {}
    of_op = {graph.op_index[one.op]: one.bucket for one in splits if one.bucket}
    for op, number in sorted(of_op.items()):
        exchanged = [k for k in graph.outputs_of(op) if k in exchanges]
        bucket = found.setdefault(number, [])
        bucket += exchanged
        if not exchanged or len({(exchanges[k].op, len(exchanges[k].results)) for k in bucket}) > 1:
            problem = f"op {graph.op_names[op]!r} takes part in no collective of bucket {number}"
            raise PlanError(f"splits: {problem}.", field="splits")
    return found


def _is_partition(pieces: Sequence[Piece]) -> bool:
    """Whether pieces along one factor follow each other, and make up the tensor."""
    if any(len(piece) != 1 for piece in pieces):
        return False
    cuts = [piece[0] for piece in pieces]
    meets = all(one.stop == other.start for one, other in pairwise(cuts))
    return meets and cuts[0].start == 0 and {cut.period for cut in cuts} == {cuts[-1].stop}
