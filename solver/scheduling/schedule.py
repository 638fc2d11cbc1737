"""A schedule that annealing changes in place: kernels, their chips and their order.

Axes: ``N`` ops, ``K`` tensors, ``Q`` kinds of chips. The number of a kernel is one of its ops, so it is
unique and lasts as long as the kernel.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np

from go_opt.common.arrays import FloatArray, IntArray, LongArray, RecordArray, record
from go_opt.common.compiling import uncounted_inner
from go_opt.env.cost.tables import CostTables
from go_opt.env.kernels.fusion import ALONE, MATRIX_LOOP, MAX_GROUP_OPS, REDUCTION, LoopRoles
from go_opt.env.kernels.numbering import number_kernels
from go_opt.env.model.makespan import NONE, Workspace, decisions, workspace_of
from go_opt.model.graph import Graph

NO_ROUTE_S: Final = 1e30
# Of an op: where the lists of its producers and readers begin; its place in `alike`, the first place there
# with its trip count and the place after the last; its role and trip count; the first of the ops of several
# that share its chip, or NONE.
FLOW: Final = record("producers readers alike_place alike_first alike_last role elements tie")
# The number of the last sum that counted a tensor, and the tensor's bytes in that sum.
SEEN: Final = record("number read_bytes")


class ScheduleProblem(NamedTuple):
    """The constant part: costs, fusion rules, data flow; and buffers for sums over a kernel's tensors."""

    tables: CostTables
    flow: RecordArray  # [N + 1] FLOW
    producers: IntArray  # ops
    readers: IntArray  # ops
    alike: IntArray  # [N] ops by the trip count of their loop
    tied: IntArray  # [N] the next op with the same tie, or NONE
    op_lists: RecordArray  # [N + 1] as in the workspace
    outputs: IntArray
    seen: RecordArray  # [K] SEEN
    sums: LongArray  # [1] number of sums so far


class Schedule(NamedTuple):
    """The variable part; for the records see :mod:`go_opt.env.model.makespan`."""

    kernels: RecordArray  # [N] KERNEL
    ops: RecordArray  # [N] OP
    sequence: IntArray  # [N] kernels in their order; the first ``size`` count
    kind_s: FloatArray  # [N, Q] seconds of a kernel on each kind of chip
    size: LongArray  # [1] number of kernels
    changed: LongArray  # [2] the first and the last changed place


def scheduling_workspace(tables: CostTables) -> Workspace:
    """Buffers for executions; a transfer without a route takes ``NO_ROUTE_S``, longer than any schedule."""
    workspace, num_chips = workspace_of(tables), tables.num_chips
    source, destination = np.divmod(np.arange(num_chips**2), num_chips)
    has_route = np.diff(workspace.pairs["links"]) > 0
    if tables.is_ring:  # a chain has no link from its last chip to its first
        has_route = (destination > source) | (len(workspace.links) == num_chips)
    workspace.pairs["setup_s"][:-1][~has_route & (source != destination)] = NO_ROUTE_S
    return workspace


def instance_of(
    graph: Graph, tables: CostTables, roles: LoopRoles, workspace: Workspace, shared: IntArray
) -> ScheduleProblem:
    """The fixed part of the schedules of ``graph``; ops of a number of ``shared`` [N] share a chip."""
    flow = np.zeros(graph.num_ops + 1, FLOW)
    flow["producers"], producers = graph.predecessors
    flow["readers"], readers = graph.successors
    flow["role"][:-1], flow["elements"][:-1] = roles.role, roles.loop_elements
    alike = np.argsort(roles.loop_elements, kind="stable").astype(np.int32)
    flow["alike_place"][alike] = np.arange(len(alike))
    elements = roles.loop_elements[alike]
    flow["alike_first"][alike] = np.searchsorted(elements, elements, side="left")
    flow["alike_last"][alike] = np.searchsorted(elements, elements, side="right")
    flow["tie"], tied = NONE, np.full(graph.num_ops, NONE, np.int32)
    by_tie = np.argsort(shared, kind="stable").astype(np.int32)
    for ops in np.split(by_tie, np.flatnonzero(np.diff(shared[by_tie])) + 1):
        if len(ops) > 1:
            flow["tie"][ops], tied[ops[:-1]] = ops[0], ops[1:]
    seen = np.zeros(len(tables.tensor_kind), SEEN)
    lists, sums = (workspace.op_lists, workspace.outputs), np.zeros(1, np.int64)
    return ScheduleProblem(tables, flow, producers, readers, alike, tied, *lists, seen, sums)


def schedule_of(
    instance: ScheduleProblem, placement: IntArray, order: IntArray, fusion_group: IntArray
) -> Schedule:
    """The schedule of a plan, not yet priced; arguments are [N].

    The ops of a kernel are in storage order with a reduction last, whatever the plan's order.
    """
    tables, num_ops = instance.tables, instance.tables.num_ops
    numbers = number_kernels(order, fusion_group)
    is_last = instance.flow["role"][:-1] == REDUCTION
    order = np.lexsort((np.arange(num_ops), is_last, numbers)).astype(np.int32)
    first_op = order[np.unique(numbers[order], return_index=True)[1]]
    kernels, ops = decisions(order, first_op[numbers])  # numbered by their first op
    kernels["chip"] = placement
    sequence = np.full(num_ops, NONE, dtype=np.int32)
    sequence[: len(first_op)] = first_op
    kind_s = np.zeros((num_ops, len(tables.sram_s_per_byte)))
    return Schedule(kernels, ops, sequence, kind_s, np.array([len(first_op)]), np.zeros(2, np.int64))


def plan_arrays(schedule: Schedule) -> tuple[IntArray, IntArray, IntArray]:
    """``(placement, order, fusion_group)`` of a schedule, [N] each."""
    kernels, ops = schedule.kernels, schedule.ops
    following, first_op = ops["following"].tolist(), kernels["first_op"].tolist()
    order: list[int] = []
    for kernel in schedule.sequence[: schedule.size[0]].tolist():
        op = first_op[kernel]
        while op != NONE:
            order.append(op)
            op = following[op]
    placement = kernels["chip"][ops["kernel"]]
    return placement.astype(np.int32), np.array(order, dtype=np.int32), ops["kernel"].astype(np.int32)


@uncounted_inner
def copy_schedule(source: Schedule, to: Schedule) -> None:
    """Make ``to`` the same as ``source``."""
    for op in range(len(source.ops)):
        to.kernels[op] = source.kernels[op]
        to.ops[op] = source.ops[op]
        to.sequence[op] = source.sequence[op]
        for kind in range(source.kind_s.shape[1]):
            to.kind_s[op, kind] = source.kind_s[op, kind]
    to.size[0] = source.size[0]


@uncounted_inner
def restore_schedule(source: Schedule, to: Schedule, changed: LongArray) -> None:
    """Like :func:`copy_schedule`, if both differ only in ``changed`` places or in their number of kernels."""
    if to.size[0] != source.size[0]:
        copy_schedule(source, to)
        return
    for place in range(changed[0], min(changed[1] + 1, source.size[0])):
        kernel = source.sequence[place]
        to.sequence[place] = kernel
        to.kernels[kernel] = source.kernels[kernel]


@uncounted_inner
def price(instance: ScheduleProblem, schedule: Schedule, kernel: int) -> None:
    """Fill in the seconds of a kernel, as :func:`go_opt.env.kernels.numbering.kernel_seconds`."""
    tables, kernels, ops = instance.tables, schedule.kernels, schedule.ops
    instance.sums[0] += 1
    moved_bytes = 0
    op = kernels[kernel].first_op
    while op != NONE:
        moved_bytes += _bytes_of_op(instance, ops, kernel, op)
        op = ops[op].following
    for kind in range(len(tables.sram_s_per_byte)):
        compute_s = 0.0
        measured_s = 0.0
        is_modelled = False
        op = kernels[kernel].first_op
        while op != NONE:
            if np.isnan(tables.measured_s[kind, op]):
                is_modelled = True
                compute_s += tables.op_s[kind, op]
            else:
                measured_s += tables.measured_s[kind, op]
            op = ops[op].following
        if is_modelled:
            moved_s = moved_bytes * tables.sram_s_per_byte[kind]
            measured_s += max(compute_s, moved_s) + tables.kernel_overhead_s[kind]
        schedule.kind_s[kernel, kind] = measured_s
    kernels[kernel].seconds = schedule.kind_s[kernel, tables.chip_kind[kernels[kernel].chip]]


@uncounted_inner
def _bytes_of_op(instance: ScheduleProblem, ops: RecordArray, kernel: int, op: int) -> int:
    """Bytes that an op adds to the reads and writes of ``kernel`` from and to the outside."""
    tables, seen, now = instance.tables, instance.seen, instance.sums[0]
    moved_bytes = 0
    for i in range(instance.op_lists[op].outputs, instance.op_lists[op + 1].outputs):
        tensor = instance.outputs[i]
        is_stored = tables.tensor_is_output[tensor]
        for r in range(tables.reader_ptr[tensor], tables.reader_ptr[tensor + 1]):
            is_stored |= ops[tables.reader_op[r]].kernel != kernel
        if is_stored:
            moved_bytes += tables.tensor_bytes[tensor]
    for i in range(tables.op_read_ptr[op], tables.op_read_ptr[op + 1]):
        read = tables.op_read[i]
        tensor = tables.reader_tensor[read]
        producer = tables.tensor_producer[tensor]
        if producer >= 0 and ops[producer].kernel == kernel:
            continue
        if seen[tensor].number != now:
            seen[tensor].number = now
            seen[tensor].read_bytes = 0
        more_bytes = tables.read_bytes[read] - seen[tensor].read_bytes
        if more_bytes > 0:
            seen[tensor].read_bytes += more_bytes
            moved_bytes += more_bytes
    return moved_bytes


@uncounted_inner
def may_join(instance: ScheduleProblem, schedule: Schedule, one: int, other: int) -> bool:
    """Whether the ops of two kernels form one loop nest (:func:`go_opt.env.kernels.fusion.is_one_loop`)."""
    flow, kernels, ops = instance.flow, schedule.kernels, schedule.ops
    if flow[one].elements != flow[other].elements:
        return False
    size, matrices, reductions, reduction = 0, 0, 0, NONE
    for kernel in (one, other):
        op = kernels[kernel].first_op
        while op != NONE:
            role = flow[op].role
            if role == ALONE:
                return False
            size += 1
            matrices += role == MATRIX_LOOP
            if role == REDUCTION:
                reductions += 1
                reduction = op
            op = ops[op].following
    if size > MAX_GROUP_OPS or matrices > 1 or reductions > 1:
        return False
    if reduction != NONE:  # runs last: no op of the kernel may read its result
        for i in range(flow[reduction].readers, flow[reduction + 1].readers):
            reader = ops[instance.readers[i]].kernel
            if reader in (one, other):
                return False
    return True
