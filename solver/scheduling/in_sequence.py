"""The makespan of a schedule, kernel by kernel along its sequence, from the first changed place.

If each link has one sender, as in an all-to-all package, tensors leave in the order of the sequence. The
result then equals that of :mod:`go_opt.env.model.makespan`, except for the order in which outputs cross the
host's link. Otherwise it is close if the sequence follows the ends of kernels.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np

from go_opt.common.arrays import FloatArray, RecordArray, record
from go_opt.common.compiling import int64, uncounted_inner
from go_opt.env.model.makespan import NONE, Workspace, depart, fetched_place
from go_opt.solver.scheduling.schedule import Schedule, ScheduleProblem

BLOCK: Final = 8  # places between two saved states
NEVER: Final = 1 << 40
ROUNDING: Final = 1 + 1e-9
# Of a kernel: the kernel it waited for last, or NONE; when it ends. Of an input on a chip: the place of the
# kernel that fetches it from the host; when it arrives.
TIMES: Final = record("cause", "end_s")
FETCHED: Final = record("place", "there_s")


class Progress(NamedTuple):
    """The times along a sequence. Axes: ``N`` ops, ``K`` tensors."""

    times: RecordArray  # [N] TIMES
    sent_s: FloatArray  # [K] when a tensor leaves its chip
    fetched: RecordArray  # FETCHED, as `fetched_s` of the workspace
    states: FloatArray  # [N / BLOCK, W] of chips, links and the host before each block of places


def progress_of(instance: ScheduleProblem, workspace: Workspace) -> Progress:
    """Progress before any kernel has run."""
    num_ops = instance.tables.num_ops
    width = 2 * len(workspace.chips) + len(workspace.links) + 3
    times, fetched = np.zeros(num_ops, TIMES), np.zeros(len(workspace.fetched_s), FETCHED)
    return Progress(times, np.zeros(len(workspace.sent)), fetched, np.zeros((num_ops // BLOCK + 1, width)))


@uncounted_inner
def keep_progress(workspace: Workspace, schedule: Schedule, source: Progress, to: Progress) -> None:
    """Copy the part that :func:`makespan_from` has filled in."""
    first = int64(schedule.changed[0]) // BLOCK
    for place in range(first * BLOCK, schedule.size[0]):
        kernel = schedule.sequence[place]
        to.times[kernel] = source.times[kernel]
        op = int64(schedule.kernels[kernel].first_op)
        while op != NONE:
            for i in range(workspace.op_lists[op].outputs, workspace.op_lists[op + 1].outputs):
                to.sent_s[workspace.outputs[i]] = source.sent_s[workspace.outputs[i]]
            op = int64(schedule.ops[op].following)
    for i in range(len(source.fetched)):
        to.fetched[i] = source.fetched[i]
    for block in range(first, (schedule.size[0] + BLOCK - 1) // BLOCK):
        for i in range(source.states.shape[1]):
            to.states[block, i] = source.states[block, i]


@uncounted_inner
def makespan_from(
    instance: ScheduleProblem,
    workspace: Workspace,
    schedule: Schedule,
    reached: Progress,
    progress: Progress,
    tail_s: FloatArray,
    at_most_s: float,
) -> float:
    """Returns the makespan; or infinity, as soon as a kernel shows that it is above ``at_most_s``.

    Args:
      reached: progress of the schedule before the change.
      progress: filled in from the block of the first change on.
      tail_s: [N] least time from a kernel's end to the end of all, for kernels after the last change.
    """
    kernels, ops, times, sent_s = schedule.kernels, schedule.ops, progress.times, progress.sent_s
    chips, tables = workspace.chips, instance.tables
    first, last = int64(schedule.changed[0]), int64(schedule.changed[1])
    begin = first // BLOCK * BLOCK
    place = begin
    host_in_s, host_out_s, finished_s = _resume(workspace, reached, progress, place)
    most_s = at_most_s * ROUNDING
    while place < schedule.size[0]:
        if place % BLOCK == 0:
            _keep(workspace, progress, place, host_in_s, host_out_s, finished_s)
        kernel = int64(schedule.sequence[place])
        chip = int64(kernels[kernel].chip)
        start_s, cause = chips[chip].end_s, chips[chip].running
        op = int64(kernels[kernel].first_op)
        while op != NONE:
            for i in range(workspace.op_lists[op].inputs, workspace.op_lists[op + 1].inputs):
                tensor = int64(workspace.inputs[i])
                at = fetched_place(workspace, tensor, chip)
                if progress.fetched[at].place == NEVER:
                    host_in_s += workspace.tensors[tensor].size_bytes * workspace.host_s_per_byte[0]
                    progress.fetched[at].place = place
                    progress.fetched[at].there_s = host_in_s
                start_s = max(start_s, progress.fetched[at].there_s)
            for i in range(tables.op_read_ptr[op], tables.op_read_ptr[op + 1]):
                tensor = int64(tables.reader_tensor[tables.op_read[i]])
                producer = tables.tensor_producer[tensor]
                if producer < 0:
                    continue
                read = ops[producer].kernel
                if read == kernel:
                    continue
                is_as_before = kernels[read].place < begin
                if kernels[read].chip == chip:
                    there_s = reached.times[read].end_s if is_as_before else times[read].end_s
                else:
                    there_s = reached.sent_s[tensor] if is_as_before else sent_s[tensor]
                    there_s += _on_the_way_s(workspace, int64(kernels[read].chip), chip, tensor)
                if there_s >= start_s:
                    start_s = there_s
                    cause = read
            op = int64(ops[op].following)
        end_s = start_s + kernels[kernel].seconds
        if end_s + (tail_s[kernel] if place > last else 0.0) > most_s:
            return np.inf
        times[kernel].end_s = end_s
        times[kernel].cause = cause
        chips[chip].end_s = end_s
        chips[chip].running = kernel
        finished_s = max(finished_s, end_s)
        op = int64(kernels[kernel].first_op)
        while op != NONE:
            for i in range(workspace.op_lists[op].outputs, workspace.op_lists[op + 1].outputs):
                tensor = int64(workspace.outputs[i])
                if workspace.tensors[tensor].is_output:
                    size_bytes = workspace.tensors[tensor].size_bytes
                    host_out_s = max(end_s, host_out_s) + size_bytes * workspace.host_s_per_byte[1]
                    finished_s = max(finished_s, host_out_s)
                sent_s[tensor] = depart(workspace, kernels, ops, tensor, kernel, end_s)
            op = int64(ops[op].following)
        place += 1
    return finished_s


@uncounted_inner
def _on_the_way_s(workspace: Workspace, source: int, chip: int, tensor: int) -> float:
    """Seconds from one chip to another once the links are free; no bytes take none."""
    size_bytes = workspace.tensors[tensor].size_bytes
    if size_bytes == 0:
        return 0.0
    pair = workspace.pairs[source * len(workspace.chips) + chip]
    return pair.setup_s + size_bytes * pair.s_per_byte


@uncounted_inner
def _resume(
    workspace: Workspace, reached: Progress, progress: Progress, place: int
) -> tuple[float, float, float]:
    """Restore the state at the start of a block; returns when the host's links are free, and the last end."""
    chips, links, fetched = workspace.chips, workspace.links, progress.fetched
    state = reached.states[place // BLOCK]
    num_chips = len(chips)
    for chip in range(num_chips):
        chips[chip].end_s = 0.0 if place == 0 else state[2 * chip]
        chips[chip].running = NONE if place == 0 else int64(state[2 * chip + 1])
    at = 2 * num_chips
    for link in range(len(links)):
        links[link].free_s = 0.0 if place == 0 else state[at + link]
        links[link].seen = 0
    for i in range(len(fetched)):
        fetched[i] = reached.fetched[i]
        if place == 0 or fetched[i].place >= place:
            fetched[i].place = NEVER
    if place == 0:
        return 0.0, 0.0, 0.0
    at += len(links)
    return state[at], state[at + 1], state[at + 2]


@uncounted_inner
def _keep(
    workspace: Workspace,
    progress: Progress,
    place: int,
    host_in_s: float,
    host_out_s: float,
    finished_s: float,
) -> None:
    state = progress.states[place // BLOCK]
    for chip in range(len(workspace.chips)):
        state[2 * chip] = workspace.chips[chip].end_s
        state[2 * chip + 1] = workspace.chips[chip].running
    at = 2 * len(workspace.chips)
    for link in range(len(workspace.links)):
        state[at + link] = workspace.links[link].free_s
    at += len(workspace.links)
    state[at] = host_in_s
    state[at + 1] = host_out_s
    state[at + 2] = finished_s


@uncounted_inner
def fill_tails(
    instance: ScheduleProblem, workspace: Workspace, schedule: Schedule, tail_s: FloatArray
) -> None:
    """Fill in the longest path after each kernel, over its readers, transfers and the next on its chip."""
    kernels, ops, tables, num_chips = schedule.kernels, schedule.ops, instance.tables, len(workspace.chips)
    for kernel in range(len(tail_s)):
        tail_s[kernel] = 0.0
    for chip in range(num_chips):
        workspace.chips[chip].running = NONE
    for place in range(int64(schedule.size[0]) - 1, -1, -1):
        kernel = int64(schedule.sequence[place])
        chip = int64(kernels[kernel].chip)
        behind = workspace.chips[chip].running
        if behind != NONE:
            tail_s[kernel] = max(tail_s[kernel], tail_s[behind] + kernels[behind].seconds)
        workspace.chips[chip].running = kernel
        left_s = tail_s[kernel] + kernels[kernel].seconds
        op = int64(kernels[kernel].first_op)
        while op != NONE:
            for i in range(tables.op_read_ptr[op], tables.op_read_ptr[op + 1]):
                tensor = int64(tables.reader_tensor[tables.op_read[i]])
                producer = tables.tensor_producer[tensor]
                if producer < 0 or ops[producer].kernel == kernel:
                    continue
                read = ops[producer].kernel
                sent_s = 0.0
                if kernels[read].chip != chip:
                    sent_s = _on_the_way_s(workspace, int64(kernels[read].chip), chip, tensor)
                tail_s[read] = max(tail_s[read], left_s + sent_s)
            op = int64(ops[op].following)
