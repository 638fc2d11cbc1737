"""Lower bounds of the makespan and of a sample's latency, sound for every decision a request leaves open.

An op's *head* is the least time before its kernel starts, its *tail* the least time after its kernel ends.
Heads and tails follow from paths, on which ops that may share a kernel share its overhead and start
together. All ops with a head of at least a and a tail of at least b run between a and the makespan minus b:
all chips share their work (energetic reasoning; Baptiste, Le Pape, Nuijten, "Constraint-based scheduling",
2001, chapter 3). Transfers between chips count from forks to joins
(:mod:`go_opt.solver.scheduling.fork_join`).
"""

from __future__ import annotations

from typing import Final

import numpy as np

from go_opt.common.arrays import BoolArray, FloatArray, IntArray, LongArray, csr
from go_opt.common.compiling import compiled
from go_opt.env.cost.tables import CostTables
from go_opt.env.kernels.fusion import ALONE, MATRIX_LOOP, REDUCTION, LoopRoles, may_share
from go_opt.env.model.makespan import workspace_of
from go_opt.model.graph import INPUT, NO_PRODUCER, Graph
from go_opt.solver.certify.bounds import Bound, OpFloors, host_seconds, op_floors
from go_opt.solver.scheduling.fork_join import WINDOW, Flow, seconds_between
from go_opt.solver.scheduling.gates import gated_bound

PAIRS: Final = 1 << 13  # most pairs of a fork and a join
GRID: Final = 48  # most heads, and most tails, that bound windows


def latency_bound(
    graph: Graph,
    tables: CostTables,
    roles: LoopRoles,
    *,
    fusion_is_open: bool,
    is_alone: bool = True,
    divisible: BoolArray | None = None,
    counts_transfers: bool = True,
    rises: bool = False,
) -> Bound:
    """A lower bound of the makespan: paths, windows and host traffic.

    Args:
      is_alone: False for the latency of a sample among others, whose bound has no host traffic.
      divisible: [N] ops that may be split, at best into one part per chip; None: no op.
      counts_transfers: False: tensors reach other chips in no time.
      rises: True: results go to no lower chip.
    """
    floors = op_floors(tables, roles, fusion_is_open=fusion_is_open, divisible=divisible)
    is_split = np.zeros(graph.num_ops, np.bool_) if divisible is None else divisible
    chips = tables.num_chips if is_split.any() else min(tables.num_chips, graph.num_ops)
    of_ops = _ops(tables, roles, floors, is_split, fusion_is_open)
    input_s, output_s = _host_seconds_by_op(tables)
    output_s[is_split] /= tables.num_chips  # each part has its own
    if graph.has_scope("model"):  # whose inputs are handed out in parts
        input_s[is_split] /= tables.num_chips
    forward, reverse = _flows(
        graph, tables, roles, of_ops, is_split, counts_transfers=counts_transfers, fuses=fusion_is_open
    )
    pairs = _pairs(forward, reverse)
    between_s = seconds_between(forward, reverse, pairs, chips)
    head_s, path_s = _heads(forward, input_s, pairs[:, 0], pairs[:, 1], between_s)
    pairs = graph.num_ops - 1 - pairs
    tail_s, _ = _heads(reverse, output_s[::-1].copy(), pairs[:, 1], pairs[:, 0], between_s)
    tail_s = tail_s[::-1].copy()
    last = int(np.argmax(path_s + tail_s))
    bounds = [
        Bound(float((path_s + tail_s)[last]), f"the critical path, on which op {graph.op_names[last]!r} is"),
        _window_bound(floors, head_s, tail_s, chips),
    ]
    if rises:
        bounds.append(gated_bound(graph, tables, roles, floors, is_split))
    if is_alone:
        host_in_s, host_out_s = host_seconds(tables)
        bounds += [
            Bound(host_in_s, "the inputs cross the host's link in"),
            Bound(host_out_s, "the outputs cross the host's link out"),
        ]
    return max(bounds, key=lambda bound: bound.seconds)


def _ops(
    tables: CostTables, roles: LoopRoles, floors: OpFloors, is_split: BoolArray, fusion_is_open: bool
) -> tuple[FloatArray, FloatArray, BoolArray]:
    """``(floor_s, path_s, is_matrix)`` of the flow, [N] each."""
    is_alone, is_matrix = roles.role == ALONE, roles.role == MATRIX_LOOP
    floor_s = path_s = floors.op_s
    if fusion_is_open:
        # A kernel lasts at least as long as the compute of its ops on the path. Only matrix ops and
        # ops that never fuse surely have an overhead that no other op of the path counts.
        compute_s = np.where(tables.can_run, tables.own_s(), np.inf).min(axis=0)
        overhead_s = float(tables.kernel_overhead_s.min())
        path_s = np.where(is_alone | tables.is_measured(), floors.op_s, compute_s + overhead_s * is_matrix)
    share = np.where(is_split, 1.0 / tables.num_chips, 1.0)
    floor_s, path_s = floor_s * share, path_s * share
    if fusion_is_open:
        # Whatever its parts are, each of those that need each other has a kernel of its own.
        launched_s = np.where(is_split & ~is_alone & ~tables.is_measured(), (1.0 - share) * overhead_s, 0.0)
        floor_s, path_s = floor_s + launched_s, path_s + launched_s * is_matrix
    return floor_s, path_s, is_matrix & ~is_split


def _flows(
    graph: Graph,
    tables: CostTables,
    roles: LoopRoles,
    of_ops: tuple[FloatArray, FloatArray, BoolArray],
    is_split: BoolArray,
    *,
    counts_transfers: bool,
    fuses: bool,
) -> tuple[Flow, Flow]:
    """The graph and the reversed one.

    Parts of a split op may share kernels with all its neighbours; but nothing follows a reduction in its
    kernel.
    """
    first, second, last = graph.edge_src, graph.edge_dst, graph.num_ops - 1
    is_in_parts = is_split[first] | is_split[second]
    ends = roles.role == REDUCTION
    shares = (may_share(roles, first, second) | (is_in_parts & ~ends[first])) & fuses
    sent_s = np.where(~is_in_parts & counts_transfers, _transfer_s(tables, first, second), 0.0)

    def flow(before: IntArray, behind: IntArray, step: int) -> Flow:
        ptr, by = csr(behind, graph.num_ops)
        floor_s, path_s = (seconds[::step].copy() for seconds in of_ops[:2])
        return Flow(ptr, before[by], shares[by], sent_s[by], floor_s, path_s, of_ops[2][::step].copy())

    return flow(first, second, 1), flow(last - second, last - first, -1)


def _transfer_s(tables: CostTables, first: IntArray, second: IntArray) -> FloatArray:
    """[E] least seconds of each edge's largest tensor between two chips."""
    if tables.num_chips == 1:
        return np.zeros(len(first))
    pairs = workspace_of(tables).pairs[:-1][~np.eye(tables.num_chips, dtype=np.bool_).ravel()]
    is_made = tables.tensor_producer[tables.reader_tensor] != NO_PRODUCER
    tensor, reader = tables.reader_tensor[is_made], tables.reader_op[is_made].astype(np.int64)
    edges, edge = np.unique(
        tables.tensor_producer[tensor].astype(np.int64) * tables.num_ops + reader, return_inverse=True
    )
    seconds = np.zeros(len(edges))
    size = tables.tensor_bytes[tensor]
    sent_s = np.where(size > 0, pairs["setup_s"].min() + size * pairs["s_per_byte"].min(), 0.0)
    np.maximum.at(seconds, edge, sent_s)
    of_edges: FloatArray = seconds[np.searchsorted(edges, first.astype(np.int64) * tables.num_ops + second)]
    return of_edges


def _pairs(forward: Flow, reverse: Flow) -> LongArray:
    """[P, 2] forks and later joins, sorted by join: the nearest forks of each, at most ``PAIRS`` pairs."""
    joins = np.flatnonzero(_joins(forward))
    forks = len(forward.floor_s) - 1 - np.flatnonzero(_joins(reverse))[::-1]
    end = np.searchsorted(forks, joins)
    begin = np.maximum(
        np.searchsorted(forks, joins - WINDOW, side="right"), end - PAIRS // max(1, len(joins))
    )
    count = end - begin
    within = np.arange(count.sum()) - np.repeat(np.cumsum(count) - count, count)
    return np.stack([forks[np.repeat(begin, count) + within], np.repeat(joins, count)], axis=1)


@compiled
def _joins(flow: Flow) -> BoolArray:
    """[N] ops with several incoming edges, and readers of a kernel that such an op may share with others."""
    num_ops = len(flow.floor_s)
    is_join = np.zeros(num_ops, np.bool_)
    may_share_join = np.zeros(num_ops, np.bool_)
    for op in range(num_ops):
        is_join[op] = flow.ptr[op + 1] - flow.ptr[op] > 1
        for i in range(flow.ptr[op], flow.ptr[op + 1]):
            if flow.may_share[i]:
                may_share_join[op] |= is_join[op] or may_share_join[flow.before[i]]
            else:
                is_join[op] |= may_share_join[flow.before[i]]
    return is_join


def _heads(
    flow: Flow, given_s: FloatArray, first: LongArray, last: LongArray, seconds: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """([N], [N]): the least time before each op's kernel starts, and until it ends.

    On the reversed graph: the least time after its end, and from its start on.

    Args:
      seconds: [P] at least, between the ops ``first`` and ``last`` [P].
    """
    ptr, by = csr(last, len(given_s))
    return _heads_along(flow, given_s, ptr, first[by], seconds[by])


@compiled
def _heads_along(
    flow: Flow, given_s: FloatArray, pair_ptr: LongArray, first: LongArray, between_s: FloatArray
) -> tuple[FloatArray, FloatArray]:
    head_s = given_s.copy()
    path_s = given_s.copy()
    matrix_s = np.zeros(len(given_s))  # until the last earlier kernel with a matrix op ends
    for op in range(len(given_s)):
        for i in range(flow.ptr[op], flow.ptr[op + 1]):
            other, may_share = flow.before[i], flow.may_share[i]
            end_s = max(path_s[other], head_s[other] + flow.floor_s[other])
            head_s[op] = max(head_s[op], head_s[other] if may_share else end_s)
            path_s[op] = max(path_s[op], path_s[other] if may_share else end_s)
            matrix_s[op] = max(matrix_s[op], max(matrix_s[other], end_s if flow.is_matrix[other] else 0.0))
        if flow.is_matrix[op]:
            head_s[op] = max(head_s[op], matrix_s[op])
        for i in range(pair_ptr[op], pair_ptr[op + 1]):
            other = first[i]
            end_s = max(path_s[other], head_s[other] + flow.floor_s[other])
            head_s[op] = max(head_s[op], end_s + between_s[i])
        path_s[op] = max(path_s[op], head_s[op]) + flow.path_s[op]
    for op in range(len(given_s)):
        path_s[op] = max(path_s[op], head_s[op] + flow.floor_s[op])
    return head_s, path_s


def _host_seconds_by_op(tables: CostTables) -> tuple[FloatArray, FloatArray]:
    """([N], [N]): seconds of the largest input that each op reads, and of the largest output it writes."""
    input_s, output_s = np.zeros(tables.num_ops), np.zeros(tables.num_ops)
    read = tables.tensor_kind[tables.reader_tensor] == INPUT
    seconds = tables.tensor_bytes[tables.reader_tensor[read]] * tables.host_in_s_per_byte
    np.maximum.at(input_s, tables.reader_op[read], seconds)
    written = tables.tensor_is_output & (tables.tensor_producer >= 0)
    seconds = tables.tensor_bytes[written] * tables.host_out_s_per_byte
    np.maximum.at(output_s, tables.tensor_producer[written], seconds)
    return input_s, output_s


def _window_bound(floors: OpFloors, head_s: FloatArray, tail_s: FloatArray, chips: int) -> Bound:
    """The best window: a head, a tail, and between them the work of all ops with no smaller ones."""
    heads, head = _levels(head_s)
    tails, tail = _levels(tail_s)

    loops = int(floors.loop.max()) + 1

    def above(amount: FloatArray) -> FloatArray:
        """[H, T, loops] sums over all ops from those levels on."""
        sums = np.zeros((len(heads), len(tails), loops))
        np.add.at(sums, (head, tail, floors.loop), amount)
        return sums[::-1, ::-1].cumsum(axis=0).cumsum(axis=1)[::-1, ::-1]

    work_s = floors.work_s(np.array([above(row) for row in floors.parts]))
    seconds = heads[:, None] + tails[None, :] + work_s / chips
    seconds[work_s == 0.0] = 0.0
    i, j = np.unravel_index(int(np.argmax(seconds)), seconds.shape)
    reason = f"{work_s[i, j] * 1e6:.4g} us of work share {chips} chips"
    if heads[i] + tails[j] > 0.0:
        reason += f", after {heads[i] * 1e6:.4g} us and before {tails[j] * 1e6:.4g} us of others"
    return Bound(float(seconds[i, j]), reason)


def _levels(seconds: FloatArray) -> tuple[FloatArray, LongArray]:
    """At most ``GRID`` rising values, the least first; and [N] the index of the last one not above each."""
    values = np.unique(seconds)
    if len(values) > GRID:
        values = np.unique(np.quantile(values, np.linspace(0.0, 1.0, GRID), method="lower"))
    return values, np.searchsorted(values, seconds, side="right") - 1
