"""A schedule that annealing changes in place: kernels, their chips and their order; and its moves.

A move puts a kernel on another chip or at another place in the sequence, joins or separates kernels. Every
move leaves a legal schedule: kernels are loop nests, each comes after its producers, and what shares a chip
moves together.

Axes: ``N`` ops, ``K`` tensors, ``Q`` kinds of chips. The number of a kernel is one of its ops, so it is
unique and lasts as long as the kernel.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np

from go_opt.common.arrays import FloatArray, IntArray, LongArray, RecordArray, record
from go_opt.common.compiling import int64, uncounted_inner
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


# Shares of the moves; the rest move one kernel to another chip.
CLUSTER: Final = 0.2  # a kernel moves with neighbours
SHIFT: Final = 0.25
JOIN: Final = 0.2
PART: Final = 0.1
MOST_ALONG: Final = 24  # neighbours that move with a kernel
FARTHEST: Final = 48  # most places of a shift


@uncounted_inner
def propose(instance: ScheduleProblem, schedule: Schedule, kernel: int, rng: np.random.Generator) -> bool:
    """Try a random move of ``kernel``; returns False if nothing changed."""
    schedule.changed[0] = schedule.size[0]
    schedule.changed[1] = -1
    drawn = rng.random()
    if drawn < CLUSTER:
        return _move_cluster(instance, schedule, kernel, rng)
    drawn -= CLUSTER
    if drawn < SHIFT:
        return _shift(instance, schedule, kernel, rng)
    drawn -= SHIFT
    if drawn < JOIN:
        return _join(instance, schedule, kernel, rng)
    drawn -= JOIN
    if drawn < PART:
        return _part(instance, schedule, kernel, rng)
    return _move(instance, schedule, kernel, _other_chip(instance, schedule, kernel, rng))


@uncounted_inner
def _other_chip(instance: ScheduleProblem, schedule: Schedule, kernel: int, rng: np.random.Generator) -> int:
    """The chip of a neighbour, or a random chip."""
    kernels, tables = schedule.kernels, instance.tables
    if rng.random() < 0.5:
        neighbour = _neighbour(instance, schedule, kernel, rng)
        if neighbour != NONE and kernels[neighbour].chip != kernels[kernel].chip:
            return int64(kernels[neighbour].chip)
    return int64(rng.random() * len(tables.chip_kind))


@uncounted_inner
def _neighbour(instance: ScheduleProblem, schedule: Schedule, kernel: int, rng: np.random.Generator) -> int:
    """A random producer or reader of ``kernel``; NONE if there is none or ``kernel`` was drawn."""
    kernels, ops = schedule.kernels, schedule.ops
    op = int64(kernels[kernel].first_op)
    while ops[op].following != NONE and rng.random() < 0.7:
        op = int64(ops[op].following)
    first, last = instance.flow[op].producers, instance.flow[op + 1].producers
    behind, end = instance.flow[op].readers, instance.flow[op + 1].readers
    number = last - first + end - behind
    if number == 0:
        return NONE
    i = int64(rng.random() * number)
    if i < last - first:
        other = int64(ops[instance.producers[first + i]].kernel)
    else:
        other = int64(ops[instance.readers[behind + i - (last - first)]].kernel)
    return NONE if other == kernel else other


@uncounted_inner
def _move(instance: ScheduleProblem, schedule: Schedule, kernel: int, chip: int) -> bool:
    """Move a kernel, with all that share its chip."""
    if schedule.kernels[kernel].chip == chip:
        return False
    tie = _tie(instance, schedule, kernel)
    if tie == NONE:
        if not _can_run(instance, schedule, kernel, chip):
            return False
        _to_chip(instance, schedule, kernel, chip)
        return True
    op = tie
    while op != NONE:
        if not _can_run(instance, schedule, int64(schedule.ops[op].kernel), chip):
            return False
        op = int64(instance.tied[op])
    op = tie
    while op != NONE:
        _to_chip(instance, schedule, int64(schedule.ops[op].kernel), chip)
        op = int64(instance.tied[op])
    return True


@uncounted_inner
def _to_chip(instance: ScheduleProblem, schedule: Schedule, kernel: int, chip: int) -> None:
    kernels = schedule.kernels
    if kernels[kernel].chip != chip:
        _touch(instance, schedule, kernel)
        kernels[kernel].chip = chip
        kernels[kernel].seconds = schedule.kind_s[kernel, instance.tables.chip_kind[chip]]


@uncounted_inner
def _tie(instance: ScheduleProblem, schedule: Schedule, kernel: int) -> int:
    """The first op of those that share a chip with ``kernel``; NONE if none do."""
    op = int64(schedule.kernels[kernel].first_op)
    while op != NONE:
        if instance.flow[op].tie != NONE:
            return int64(instance.flow[op].tie)
        op = int64(schedule.ops[op].following)
    return NONE


@uncounted_inner
def _touch(instance: ScheduleProblem, schedule: Schedule, kernel: int) -> None:
    """Mark the places of a kernel and of its producers, whose tensors may leave at other times."""
    kernels, ops, changed = schedule.kernels, schedule.ops, schedule.changed
    place = int64(kernels[kernel].place)
    changed[0] = min(changed[0], place)
    changed[1] = max(changed[1], place)
    op = kernels[kernel].first_op
    while op != NONE:
        for i in range(instance.flow[op].producers, instance.flow[op + 1].producers):
            changed[0] = min(changed[0], kernels[ops[instance.producers[i]].kernel].place)
        op = ops[op].following


@uncounted_inner
def _can_run(instance: ScheduleProblem, schedule: Schedule, kernel: int, chip: int) -> bool:
    kind = instance.tables.chip_kind[chip]
    op = schedule.kernels[kernel].first_op
    while op != NONE:
        if not instance.tables.can_run[kind, op]:
            return False
        op = schedule.ops[op].following
    return True


@uncounted_inner
def _move_cluster(
    instance: ScheduleProblem, schedule: Schedule, kernel: int, rng: np.random.Generator
) -> bool:
    """Move a kernel and random kernels connected to it on its chip."""
    kernels = schedule.kernels
    home, chip = kernels[kernel].chip, _other_chip(instance, schedule, kernel, rng)
    if not _move(instance, schedule, kernel, chip):
        return False
    at = kernel
    most = 1 + int64(rng.random() * MOST_ALONG)
    for _ in range(2 * most):
        neighbour = _neighbour(instance, schedule, at, rng)
        if neighbour == NONE:
            continue
        if kernels[neighbour].chip == home:
            if _move(instance, schedule, neighbour, chip):
                at = neighbour
                most -= 1
        elif kernels[neighbour].chip == chip:
            at = neighbour
        if most <= 0:
            break
    return True


@uncounted_inner
def _bounds(instance: ScheduleProblem, schedule: Schedule, kernel: int, other: int) -> tuple[int, int]:
    """Last place of the producers of ``kernel`` and ``other``, first place of their readers, except both."""
    kernels, ops = schedule.kernels, schedule.ops
    low, high = int64(-1), int64(schedule.size[0])
    for member in (kernel, other):
        if member == NONE:
            continue
        op = kernels[member].first_op
        while op != NONE:
            for i in range(instance.flow[op].producers, instance.flow[op + 1].producers):
                read = ops[instance.producers[i]].kernel
                if read not in (kernel, other):
                    low = max(low, int64(kernels[read].place))
            for i in range(instance.flow[op].readers, instance.flow[op + 1].readers):
                reader = ops[instance.readers[i]].kernel
                if reader not in (kernel, other):
                    high = min(high, int64(kernels[reader].place))
            op = ops[op].following
    return low, high


@uncounted_inner
def _shift(instance: ScheduleProblem, schedule: Schedule, kernel: int, rng: np.random.Generator) -> bool:
    """Move a kernel in the sequence, between its producers and its readers."""
    low, high = _bounds(instance, schedule, kernel, NONE)
    place = int64(schedule.kernels[kernel].place)
    low, high = max(low + 1, place - FARTHEST), min(high - 1, place + FARTHEST)
    if high <= low:
        return False
    to = low + int64(rng.random() * (high - low + 1))
    _to_place(schedule, kernel, to)
    return to != place


@uncounted_inner
def _to_place(schedule: Schedule, kernel: int, to: int) -> None:
    sequence, kernels = schedule.sequence, schedule.kernels
    at = kernels[kernel].place
    schedule.changed[0] = min(schedule.changed[0], at, to)
    schedule.changed[1] = max(schedule.changed[1], at, to)
    step = 1 if to > at else -1
    while at != to:
        sequence[at] = sequence[at + step]
        kernels[sequence[at]].place = at
        at += step
    sequence[to] = kernel
    kernels[kernel].place = to


@uncounted_inner
def _join(instance: ScheduleProblem, schedule: Schedule, kernel: int, rng: np.random.Generator) -> bool:
    """Join a kernel with another one, on the chip of the first."""
    kernels, ops = schedule.kernels, schedule.ops
    op = kernels[kernel].first_op
    if instance.flow[op].role == ALONE:
        return False
    if rng.random() < 0.5:
        other = _neighbour(instance, schedule, kernel, rng)
    else:  # a nearby one with the same trip count
        first, last = instance.flow[op].alike_first, instance.flow[op].alike_last
        near = int64(instance.flow[op].alike_place) + int64((rng.random() - 0.5) * 64)
        other = int64(ops[instance.alike[min(max(near, first), last - 1)]].kernel)
    if other in (NONE, kernel) or not may_join(instance, schedule, kernel, other):
        return False
    if not _can_run(instance, schedule, other, kernels[kernel].chip):
        return False
    tie = _tie(instance, schedule, other)
    if tie not in (NONE, _tie(instance, schedule, kernel)):  # what shares a chip with `other` stays there
        return False
    low, high = _bounds(instance, schedule, kernel, other)
    if high <= low:  # another kernel has to run between them
        return False
    at, behind = int64(kernels[kernel].place), int64(kernels[other].place)
    to = at  # before the kernel at that place
    if not low < to <= high:
        to = behind
    if not low < to <= high:
        to = low + 1
    to -= (at < to) + (behind < to)
    _touch(instance, schedule, kernel)
    _touch(instance, schedule, other)
    _link(instance, schedule, kernel, other)
    _to_place(schedule, other, int64(schedule.size[0]) - 1)
    schedule.size[0] -= 1
    kernels[other].place = NONE
    _to_place(schedule, kernel, to)
    price(instance, schedule, kernel)
    return True


@uncounted_inner
def _link(instance: ScheduleProblem, schedule: Schedule, kernel: int, other: int) -> None:
    """Move the ops of ``other`` into ``kernel``, in storage order with a reduction last."""
    kernels, ops = schedule.kernels, schedule.ops
    one, two = int64(kernels[kernel].first_op), int64(kernels[other].first_op)
    op = two
    while op != NONE:
        ops[op].kernel = kernel
        op = int64(ops[op].following)
    last = int64(NONE)
    while one != NONE or two != NONE:
        if two == NONE:
            takes_one = True
        elif one == NONE:
            takes_one = False
        elif (instance.flow[one].role == REDUCTION) != (instance.flow[two].role == REDUCTION):
            takes_one = instance.flow[two].role == REDUCTION
        else:
            takes_one = one < two
        op = one if takes_one else two
        if takes_one:
            one = int64(ops[one].following)
        else:
            two = int64(ops[two].following)
        if last == NONE:
            kernels[kernel].first_op = op
        else:
            ops[last].following = op
        last = op
    ops[last].following = NONE


@uncounted_inner
def _part(instance: ScheduleProblem, schedule: Schedule, kernel: int, rng: np.random.Generator) -> bool:
    """Separate a kernel into two after one of its ops."""
    kernels, ops = schedule.kernels, schedule.ops
    last = int64(kernels[kernel].first_op)
    if ops[last].following == NONE:
        return False
    _touch(instance, schedule, kernel)
    while ops[ops[last].following].following != NONE and rng.random() < 0.6:
        last = int64(ops[last].following)
    first = int64(kernels[kernel].first_op)
    behind = int64(ops[last].following)
    ops[last].following = NONE
    is_behind = False  # whether the op that numbers the kernel is in the second part
    op = behind
    while op != NONE:
        is_behind |= op == kernel
        op = int64(ops[op].following)
    number = first if is_behind else behind
    if is_behind:
        kernels[kernel].first_op = behind
    kernels[number].first_op = first if is_behind else behind
    op = int64(kernels[number].first_op)
    while op != NONE:
        ops[op].kernel = number
        op = int64(ops[op].following)
    kernels[number].chip = kernels[kernel].chip
    size = int64(schedule.size[0])
    schedule.sequence[size] = number
    kernels[number].place = size
    schedule.size[0] += 1
    at = int64(kernels[kernel].place)
    _to_place(schedule, number, at if is_behind else at + 1)
    price(instance, schedule, kernel)
    price(instance, schedule, number)
    if rng.random() < 0.5:
        _move(instance, schedule, number, _other_chip(instance, schedule, number, rng))
    return True
