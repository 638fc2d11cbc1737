"""Trivial lower bounds, sound for every decision the request leaves open (design section 8).

With kernels fixed (one per op), the seconds of every kernel are known. With fusion open, a
kernel can at best hide its memory traffic and share one overhead among its ops, so

* an op that may not fuse keeps its own cost;
* a kernel holds ops of one trip count, and at most one matrix op, one reduction and
  ``MAX_GROUP_OPS`` ops; this bounds the number of kernels, each with one overhead;
* a kernel takes at least the time to move the bytes that one of its ops exchanges with other kernels
  in every plan.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from go_opt.common.arrays import BoolArray, FloatArray, LongArray
from go_opt.env.cost.tables import CostTables
from go_opt.env.kernels.fusion import ALONE, MATRIX_LOOP, MAX_GROUP_OPS, REDUCTION, LoopRoles, may_share
from go_opt.model.graph import INPUT, NO_PRODUCER, WEIGHT, Graph
from go_opt.solver.problem.streamed_bytes import least_host_s

MOST_LOOPS: Final = 64  # distinct numbers of trip counts
ROUNDING: Final = 1e-12  # relative difference of sums in different orders


@dataclass(frozen=True)
class Bound:
    """A lower bound: no plan is faster than ``seconds``, because of ``reason``."""

    seconds: float
    reason: str

    def below(self, reached_s: float) -> float:
        """Returns the bound, or ``reached_s`` if only rounding of sums lifts the bound above it."""
        is_rounding = reached_s < self.seconds <= reached_s * (1.0 + ROUNDING)
        return reached_s if is_rounding else self.seconds


@dataclass(frozen=True)
class OpFloors:
    """Seconds that no plan can save. Axis ``N`` ops."""

    op_s: FloatArray  # [N] least seconds of any kernel that holds the op
    loop: LongArray  # [N] number of its trip count; all ops of a kernel have the same
    parts: FloatArray  # [6, N] contributions to the kernels of a loop; see `work_s`
    overhead_s: float

    def work_s(self, sums: FloatArray) -> FloatArray:
        """Returns the least seconds of all kernels, given sums over ops of ``parts`` ([6, ..., loops]).

        Rows: seconds of ops that form their own kernels; compute seconds of the others; larger of
        compute and memory seconds of matrix ops; numbers of matrix ops, reductions and ops that may fuse.
        """
        alone_s, compute_s, matrix_s, matrices, reductions, sharing = sums
        kernels = np.maximum(np.maximum(matrices, reductions), np.ceil(sharing / MAX_GROUP_OPS))
        by_loop = alone_s + np.maximum(compute_s, matrix_s) + kernels * self.overhead_s
        work_s: FloatArray = by_loop.sum(axis=-1)
        return work_s

    @property
    def total_s(self) -> float:
        """Least seconds of all kernels together."""
        return float(self.work_s(np.array([np.bincount(self.loop, weights=row) for row in self.parts])))


def op_floors(
    tables: CostTables, roles: LoopRoles, *, fusion_is_open: bool, divisible: BoolArray | None = None
) -> OpFloors:
    """Returns the least seconds of each op's kernel and of all kernels, each op on its fastest kind.

    If ops may be split, all ops count as one loop, because kernels of any loop may hold the parts.
    """
    alone_s = np.where(tables.can_run, tables.kernel_floor_s(), np.inf).min(axis=0)
    overhead_s = float(tables.kernel_overhead_s.min())
    parts = np.zeros((6, len(alone_s)))
    if not fusion_is_open:
        parts[0] = alone_s
        return OpFloors(alone_s, np.zeros(len(alone_s), np.int64), parts, overhead_s)
    compute_s = np.where(tables.can_run, tables.own_s(), np.inf).min(axis=0)
    # The cost of a measured op does not depend on its kernel.
    alone_s = np.where(roles.role == ALONE, alone_s, compute_s)
    is_alone = (roles.role == ALONE) | tables.is_measured()
    is_matrix = (roles.role == MATRIX_LOOP) & ~is_alone
    is_split = np.zeros(len(alone_s), np.bool_) if divisible is None else divisible
    moved_s = _sure_bytes(tables, roles, is_split) * float(tables.sram_s_per_byte.min())
    kernel_s = np.maximum(compute_s, moved_s)
    op_s = np.where(is_alone, alone_s, kernel_s + overhead_s)
    parts[0, is_alone] = alone_s[is_alone]
    parts[1, ~is_alone] = compute_s[~is_alone]
    parts[2, is_matrix] = kernel_s[is_matrix]
    parts[3], parts[4], parts[5] = is_matrix, (roles.role == REDUCTION) & ~is_alone, ~is_alone
    loop = np.zeros(len(alone_s), np.int64) if is_split.any() else _loops(roles)
    return OpFloors(op_s, loop, parts, overhead_s)


def _loops(roles: LoopRoles) -> LongArray:
    """Returns the number [N] of each op's trip count; all but the most frequent share one number."""
    _, number, count = np.unique(roles.loop_elements, return_inverse=True, return_counts=True)
    rank = np.empty(len(count), np.int64)
    rank[np.argsort(-count, kind="stable")] = np.arange(len(count))
    loops: LongArray = np.minimum(rank[number], MOST_LOOPS - 1)
    return loops


def throughput_bound(
    graph: Graph,
    tables: CostTables,
    roles: LoopRoles,
    *,
    fusion_is_open: bool,
    replication_is_open: bool,
    divisible: BoolArray | None = None,
    sequences: int | None = None,
) -> Bound:
    """Returns the largest lower bound on the interval: total work, longest op or host traffic.

    The parts of a split op together do its work, read its weights and need at least as many kernels.

    Args:
      divisible: [N] ops that may be split; None: none of them.
      sequences: in flight, which replicas keep; None: the bound is to hold for any larger number too.
    """
    floors = op_floors(tables, roles, fusion_is_open=fusion_is_open, divisible=divisible)
    # Without replication and splits, an op runs on one chip, so more chips than ops do not help.
    splits = divisible is not None and bool(divisible.any())
    chips = tables.num_chips if replication_is_open or splits else min(tables.num_chips, graph.num_ops)
    host_in_s, host_out_s = host_seconds(tables)
    host_total_s = 0.0
    if not tables.overlap and tables.pays_transfers.all():
        host_total_s = host_in_s + host_out_s
    able = np.ones(graph.num_ops, np.int64)  # [N] most chips of a stage with the op
    if replication_is_open:
        able = np.maximum(1, np.count_nonzero(tables.can_run[tables.chip_kind], axis=0))
    total = _total_bound(floors.total_s + host_total_s, chips)
    bounds = [total, _longest_op(graph, floors, divisible, able, sequences)]
    if tables.overlap:
        bounds += host_bounds(tables, divisible, forwards=replication_is_open)
    return max(bounds, key=lambda bound: bound.seconds)


def host_bounds(tables: CostTables, divisible: BoolArray | None = None, *, forwards: bool) -> list[Bound]:
    """Returns bounds from the bytes that every plan sends over the host's links, with overlap."""
    inputs_s, outputs_s = host_seconds(tables)
    in_s = least_host_s(tables, divisible, forwards=forwards)
    what = "the inputs" if in_s == inputs_s else "the inputs and the weights no memory can hold"
    return [
        Bound(in_s, f"{what} cross the host's link in"),
        Bound(outputs_s, "the outputs cross the host's link out"),
    ]


def _total_bound(total_s: float, chips: int) -> Bound:
    return Bound(total_s / chips, f"{total_s * 1e6:.4g} us of work share {chips} chips")


def _longest_op(
    graph: Graph, floors: OpFloors, divisible: BoolArray | None, able: LongArray, sequences: int | None
) -> Bound:
    """Returns the bound of the longest op that no plan may split, replicated on ``able`` [N] chips.

    The busiest of r chips runs ceil(S / r) of S sequences.
    """
    op_s = floors.op_s if divisible is None else np.where(divisible, 0.0, floors.op_s)
    share = 1.0 / able
    if sequences is not None:
        able = np.minimum(able, sequences)
        share = -(-sequences // able) / sequences
    longest = int(np.argmax(op_s * share))
    reason = f"op {graph.op_names[longest]!r} takes {op_s[longest] * 1e6:.4g} us"
    if able[longest] > 1:
        which = "all " if sequences is None else ""
        reason += f", replicated on {which}{able[longest]} chips that run it"
    return Bound(float(op_s[longest] * share[longest]), reason)


def host_seconds(tables: CostTables) -> tuple[float, float]:
    """Returns the seconds of all inputs and of all outputs on the host's links."""
    inputs = int(tables.tensor_bytes[tables.tensor_kind == INPUT].sum())
    leaves = tables.tensor_is_output & (tables.tensor_producer != NO_PRODUCER)
    outputs = int(tables.tensor_bytes[leaves].sum())
    return inputs * tables.host_in_s_per_byte, outputs * tables.host_out_s_per_byte


def _sure_bytes(tables: CostTables, roles: LoopRoles, is_split: BoolArray) -> FloatArray:
    """Returns the bytes [N] that an op's kernel reads and writes in every plan.

    These are weights, graph inputs and outputs, and tensors shared with ops that never fuse with the op.
    """
    num_ops, reader, producer = tables.num_ops, tables.reader_op, tables.tensor_producer[tables.reader_tensor]
    is_made, is_weight = producer != NO_PRODUCER, tables.tensor_kind[tables.reader_tensor] == WEIGHT
    is_apart = is_made & ~may_share(roles, producer, reader) & ~is_split[producer] & ~is_split[reader]
    is_read = is_apart | is_weight | (~is_made & ~is_split[reader])
    num_bytes = np.bincount(reader[is_read], weights=tables.read_bytes[is_read], minlength=num_ops)
    is_stored = tables.tensor_is_output & (tables.tensor_producer != NO_PRODUCER)
    is_stored[tables.reader_tensor[is_apart]] = True
    maker = tables.tensor_producer[is_stored]
    written = np.bincount(maker, weights=tables.tensor_bytes[is_stored], minlength=num_ops)
    return np.asarray(num_bytes + np.where(is_split, 0.0, written), np.float64)
