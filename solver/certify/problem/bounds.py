"""Trivial lower bounds, sound for every decision the request leaves open (design section 8).

With kernels fixed (one per op) every kernel's seconds are known. With fusion open a
kernel can at best hide its memory traffic and share one overhead among its ops, so

* an op that may not fuse costs what it costs alone;
* a kernel holds at most one matrix op, one reduction and ``MAX_GROUP_OPS`` ops, so there
  are at least as many kernels, each with an overhead;
* a kernel with a matrix op lasts at least as long as reading that op's weights.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from go_opt.common.arrays import BoolArray, FloatArray
from go_opt.env.cost import CostTables
from go_opt.env.kernels.fusion import ALONE, MATRIX_LOOP, MAX_GROUP_OPS, REDUCTION, LoopRoles
from go_opt.model.graph import INPUT, WEIGHT, Graph
from go_opt.solver.problem.streamed_bytes import least_streamed_bytes


@dataclass(frozen=True)
class Bound:
    """No plan is faster than ``seconds``, because of ``reason``."""

    seconds: float
    reason: str


@dataclass(frozen=True)
class OpFloors:
    """Seconds that no plan can save. Axis ``N`` ops."""

    op_s: FloatArray  # [N] of the kernel that holds the op, whatever else it holds
    total_s: float  # of all kernels together


def op_floors(tables: CostTables, roles: LoopRoles, *, fusion_is_open: bool) -> OpFloors:
    """Least seconds of each op's kernel and of all kernels, on the fastest kind for each op."""
    alone_s = np.where(tables.can_run, tables.kernel_floor_s(), np.inf).min(axis=0)
    if not fusion_is_open:
        return OpFloors(alone_s, float(alone_s.sum()))
    overhead_s = float(tables.kernel_overhead_s.min())
    compute_s = np.where(tables.can_run, tables.op_s, np.inf).min(axis=0)
    is_alone, is_matrix = roles.role == ALONE, roles.role == MATRIX_LOOP
    weights_s = _weight_bytes_read(tables) * float(tables.sram_s_per_byte.min())
    kernel_s = np.where(is_matrix, np.maximum(compute_s, weights_s), compute_s)
    op_s = np.where(is_alone, alone_s, kernel_s + overhead_s)
    may_fuse = ~is_alone
    num_kernels = max(
        int(is_matrix.sum()),
        int((roles.role == REDUCTION).sum()),
        -(-int(may_fuse.sum()) // MAX_GROUP_OPS),
    )
    busy_s = max(float(compute_s[may_fuse].sum()), float(kernel_s[is_matrix].sum()))
    total_s = float(alone_s[is_alone].sum()) + busy_s + num_kernels * overhead_s
    return OpFloors(op_s, total_s)


def throughput_bound(
    graph: Graph,
    tables: CostTables,
    roles: LoopRoles,
    *,
    fusion_is_open: bool,
    replication_is_open: bool,
    divisible: BoolArray | None = None,
) -> Bound:
    """A lower bound of the interval: total work, the longest op, the host's traffic.

    The parts of an op together do its work, read its weights and have no fewer kernels than it.

    Args:
      divisible: [N] ops that may be split; None: none of them.
    """
    floors = op_floors(tables, roles, fusion_is_open=fusion_is_open)
    # Without replication and splits an op runs on one chip, so more chips than ops are of no use.
    splits = divisible is not None and bool(divisible.any())
    chips = tables.num_chips if replication_is_open or splits else min(tables.num_chips, graph.num_ops)
    host_in_s, host_out_s = _host_seconds(tables)
    host_total_s = 0.0
    if not tables.overlap and tables.pays_transfers.all():
        host_total_s = host_in_s + host_out_s
    bounds = [_total_bound(floors.total_s + host_total_s, chips), _longest_op(graph, floors, divisible)]
    if replication_is_open:
        bounds[1] = Bound(bounds[1].seconds / chips, f"{bounds[1].reason}, replicated on all {chips} chips")
    if tables.overlap:
        streamed_s = least_streamed_bytes(tables, divisible) * tables.host_in_s_per_byte
        what = "the inputs" if streamed_s == 0 else "the inputs and the weights no memory can hold"
        bounds.append(Bound(host_in_s + streamed_s, f"{what} cross the host's link in"))
        bounds.append(Bound(host_out_s, "the outputs cross the host's link out"))
    return max(bounds, key=lambda bound: bound.seconds)


def latency_bound(
    graph: Graph,
    tables: CostTables,
    roles: LoopRoles,
    *,
    fusion_is_open: bool,
    divisible: BoolArray | None = None,
) -> Bound:
    """A lower bound of the makespan: the critical path, total work, the host's traffic."""
    host_in_s, host_out_s = _host_seconds(tables)
    return max(
        sample_bound(graph, tables, roles, fusion_is_open=fusion_is_open, divisible=divisible),
        Bound(host_in_s, "the inputs cross the host's link in"),
        Bound(host_out_s, "the outputs cross the host's link out"),
        key=lambda bound: bound.seconds,
    )


def sample_bound(
    graph: Graph,
    tables: CostTables,
    roles: LoopRoles,
    *,
    fusion_is_open: bool,
    divisible: BoolArray | None = None,
) -> Bound:
    """A lower bound of the latency of a sample, and so of the makespan: the critical path, total work."""
    floors = op_floors(tables, roles, fusion_is_open=fusion_is_open)
    on_path_s = floors.op_s
    if fusion_is_open:
        # A kernel lasts as long as the compute of its ops on the path; its overhead is surely
        # theirs alone only for matrix ops and loners.
        compute_s = np.where(tables.can_run, tables.op_s, np.inf).min(axis=0)
        overhead_s = float(tables.kernel_overhead_s.min()) * (roles.role == MATRIX_LOOP)
        on_path_s = np.where(roles.role == ALONE, floors.op_s, compute_s + overhead_s)
    chips = min(tables.num_chips, graph.num_ops)
    if divisible is not None and divisible.any():  # at best all chips compute a part at once
        chips = tables.num_chips
        on_path_s = np.where(divisible, on_path_s / chips, on_path_s)
    path_s, last = _critical_path(graph, on_path_s)
    return max(
        _total_bound(floors.total_s, chips),
        Bound(path_s, f"the critical path, which ends at op {graph.op_names[last]!r}"),
        key=lambda bound: bound.seconds,
    )


def _total_bound(total_s: float, chips: int) -> Bound:
    return Bound(total_s / chips, f"{total_s * 1e6:.4g} us of work share {chips} chips")


def _longest_op(graph: Graph, floors: OpFloors, divisible: BoolArray | None) -> Bound:
    """Of those that are whole in every plan."""
    op_s = floors.op_s if divisible is None else np.where(divisible, 0.0, floors.op_s)
    longest = int(np.argmax(op_s))
    return Bound(float(op_s[longest]), f"op {graph.op_names[longest]!r} takes {op_s[longest] * 1e6:.4g} us")


def _host_seconds(tables: CostTables) -> tuple[float, float]:
    inputs = int(tables.tensor_bytes[tables.tensor_kind == INPUT].sum())
    outputs = int(tables.tensor_bytes[tables.tensor_is_output].sum())
    return inputs * tables.host_in_s_per_byte, outputs * tables.host_out_s_per_byte


def _weight_bytes_read(tables: CostTables) -> FloatArray:
    """[N] bytes of weights each op touches."""
    is_weight = tables.tensor_kind[tables.reader_tensor] == WEIGHT
    touched = tables.read_bytes[is_weight].astype(np.float64)
    return np.bincount(tables.reader_op[is_weight], weights=touched, minlength=tables.num_ops).astype(
        np.float64
    )


def _critical_path(graph: Graph, op_s: FloatArray) -> tuple[float, int]:
    """Longest path by ``op_s`` and the op it ends at."""
    end_s = op_s.copy()
    ptr, producer = graph.predecessors
    for op in range(graph.num_ops):
        before = producer[ptr[op] : ptr[op + 1]]
        if len(before):
            end_s[op] += end_s[before].max()
    last = int(np.argmax(end_s))
    return float(end_s[last]), last
