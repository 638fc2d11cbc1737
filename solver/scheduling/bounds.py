"""Lower bounds of the makespan and of a sample's latency, sound for every decision a request leaves open.

An op's *head* is the least time before its kernel starts, its *tail* the least time behind its end. Heads
and tails follow from paths, where ops that may share a kernel share its overhead and start together. All
ops with a head of at least a and a tail of at least b are done in what is left between them: the work
they need, shared by all chips (energetic reasoning; Baptiste, Le Pape, Nuijten, "Constraint-based
scheduling", 2001, chapter 3). Transfers between chips take no time here.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np

from go_opt.common.arrays import BoolArray, FloatArray, IntArray, LongArray
from go_opt.common.compiling import compiled
from go_opt.env.cost import CostTables
from go_opt.env.kernels.fusion import ALONE, MATRIX_LOOP, REDUCTION, LoopRoles
from go_opt.model.graph import INPUT, Graph
from go_opt.solver.certify.problem.bounds import Bound, OpFloors, host_seconds, op_floors

GRID: Final = 48  # heads and tails that windows begin and end at


class _Ops(NamedTuple):
    """What each op surely takes. Axis ``N`` ops."""

    floor_s: FloatArray  # its kernel, whatever else is in it
    path_s: FloatArray  # on a path: beside what the other ops of its kernel are on it for
    is_matrix: BoolArray  # at most one of them in a kernel


def latency_bound(
    graph: Graph,
    tables: CostTables,
    roles: LoopRoles,
    *,
    fusion_is_open: bool,
    divisible: BoolArray | None = None,
) -> Bound:
    """A lower bound of the makespan: paths, windows, the host's traffic."""
    host_in_s, host_out_s = host_seconds(tables)
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
    """A lower bound of the latency of a sample, and so of the makespan: paths and windows.

    Args:
      divisible: [N] ops that may be split, at best into a part for each chip; None: none of them.
    """
    floors = op_floors(tables, roles, fusion_is_open=fusion_is_open, divisible=divisible)
    is_split = np.zeros(graph.num_ops, np.bool_) if divisible is None else divisible
    chips = tables.num_chips if is_split.any() else min(tables.num_chips, graph.num_ops)
    ops = _ops(tables, roles, floors, is_split, fusion_is_open)
    input_s, output_s = _host_seconds_by_op(tables)
    along = np.arange(graph.num_ops, dtype=np.int32)

    def heads(
        rows: tuple[LongArray, IntArray], given_s: FloatArray, order: IntArray, is_behind: bool
    ) -> tuple[FloatArray, FloatArray]:
        op = np.repeat(along, np.diff(rows[0]))
        before, behind = (op, rows[1]) if is_behind else (rows[1], op)
        may_share = _may_share(roles, is_split, before, behind) & fusion_is_open
        return _heads(*rows, order, may_share, ops, given_s)

    head_s, path_s = heads(graph.predecessors, input_s, along, False)
    tail_s, _ = heads(graph.successors, output_s, along[::-1].copy(), True)
    last = int(np.argmax(path_s + tail_s))
    return max(
        Bound(float((path_s + tail_s)[last]), f"the critical path, on which op {graph.op_names[last]!r} is"),
        _window_bound(floors, head_s, tail_s, chips),
        key=lambda bound: bound.seconds,
    )


def _ops(
    tables: CostTables, roles: LoopRoles, floors: OpFloors, is_split: BoolArray, fusion_is_open: bool
) -> _Ops:
    is_alone, is_matrix = roles.role == ALONE, roles.role == MATRIX_LOOP
    floor_s = path_s = floors.op_s
    if fusion_is_open:
        # A kernel lasts as long as the compute of its ops on the path; its overhead is surely
        # theirs alone only for matrix ops and loners.
        compute_s = np.where(tables.can_run, tables.op_s, np.inf).min(axis=0)
        overhead_s = float(tables.kernel_overhead_s.min()) * is_matrix
        path_s = np.where(is_alone, floors.op_s, compute_s + overhead_s)
    share = np.where(is_split, 1.0 / tables.num_chips, 1.0)
    return _Ops(floor_s * share, path_s * share, is_matrix & ~is_split)


def _may_share(roles: LoopRoles, is_split: BoolArray, before: IntArray, behind: IntArray) -> BoolArray:
    """[E] whether the ends of an edge may be in one kernel; parts of an op may be in several."""
    role, elements = roles.role, roles.loop_elements
    may: BoolArray = (role[before] != ALONE) & (role[behind] != ALONE) & (role[before] != REDUCTION)
    may &= elements[before] == elements[behind]
    may &= (role[before] != MATRIX_LOOP) | (role[behind] != MATRIX_LOOP)
    return may | is_split[before] | is_split[behind]


@compiled
def _heads(
    ptr: LongArray,
    neighbour: IntArray,
    visiting_order: IntArray,
    may_share: BoolArray,
    ops: _Ops,
    given_s: FloatArray,
) -> tuple[FloatArray, FloatArray]:
    """([N], [N]): the least time before each op's kernel starts, and until it ends.

    With readers for ``neighbour`` and the order reversed: behind its end, and from its start on.
    """
    head_s = given_s.copy()
    path_s = given_s.copy()
    matrix_s = np.zeros(len(given_s))  # until the last kernel before with a matrix op ends
    for op in visiting_order:
        for i in range(ptr[op], ptr[op + 1]):
            other = neighbour[i]
            end_s = max(path_s[other], head_s[other] + ops.floor_s[other])
            head_s[op] = max(head_s[op], head_s[other] if may_share[i] else end_s)
            path_s[op] = max(path_s[op], path_s[other] if may_share[i] else end_s)
            matrix_s[op] = max(matrix_s[op], max(matrix_s[other], end_s if ops.is_matrix[other] else 0.0))
        if ops.is_matrix[op]:
            head_s[op] = max(head_s[op], matrix_s[op])
        path_s[op] = max(path_s[op], head_s[op]) + ops.path_s[op]
    for op in range(len(given_s)):
        path_s[op] = max(path_s[op], head_s[op] + ops.floor_s[op])
    return head_s, path_s


def _host_seconds_by_op(tables: CostTables) -> tuple[FloatArray, FloatArray]:
    """([N], [N]): for the largest input that each op reads, and the largest output that it writes."""
    input_s, output_s = np.zeros(tables.num_ops), np.zeros(tables.num_ops)
    read = tables.tensor_kind[tables.reader_tensor] == INPUT
    seconds = tables.tensor_bytes[tables.reader_tensor[read]] * tables.host_in_s_per_byte
    np.maximum.at(input_s, tables.reader_op[read], seconds)
    written = tables.tensor_is_output & (tables.tensor_producer >= 0)
    seconds = tables.tensor_bytes[written] * tables.host_out_s_per_byte
    np.maximum.at(output_s, tables.tensor_producer[written], seconds)
    return input_s, output_s


def _window_bound(floors: OpFloors, head_s: FloatArray, tail_s: FloatArray, chips: int) -> Bound:
    """The work of ops whose heads and tails are above some values, shared by all chips, and both."""
    heads, head = _levels(head_s)
    tails, tail = _levels(tail_s)

    loops = int(floors.loop.max()) + 1

    def above(amount: FloatArray) -> FloatArray:
        """[H, T, loops] of all ops from those levels on."""
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
    """At most ``GRID`` values, rising, the least of all first; and [N] the last that is no more than each."""
    values = np.unique(seconds)
    if len(values) > GRID:
        values = np.unique(np.quantile(values, np.linspace(0.0, 1.0, GRID), method="lower"))
    return values, np.searchsorted(values, seconds, side="right") - 1
