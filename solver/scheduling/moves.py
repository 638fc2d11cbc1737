"""Moves of a schedule: another chip, another place in the sequence, kernels joined or separated.

Every move leaves a legal schedule: kernels are loop nests, each comes after its producers, and what shares a
chip moves together.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from go_opt.common.compiling import int64, uncounted_inner
from go_opt.env.kernels.fusion import ALONE, REDUCTION
from go_opt.env.model.makespan import NONE
from go_opt.solver.scheduling.schedule import Schedule, ScheduleProblem, may_join, price

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
