"""Least time between the end of one op and the start of another, transfers between chips included.

Ops that an op x reaches and that reach an op y run in between. Only the chip of x may begin at once, and
only the chip of y may go on to the end: every other chip first waits for a tensor and finally sends one.
A time is too short if some op can end in time on no chip. It is also too short if the ops that can end in
time only on some chips have more work than these chips have time. This is the join bound of Fernandez and
Bussell, "Bounds on the number of processors and time for multiprocessor optimal schedules", IEEE Trans.
Comput. 1973, with transfers. Refuting times makes it sharper (Klein and Scholl, "Computing lower bounds by
destructive improvement", EJOR 1999).
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np

from go_opt.common.arrays import BoolArray, FloatArray, IntArray, LongArray, RecordArray, record
from go_opt.common.compiling import compiled, int64, uncounted_inner

LEVELS: Final = 6  # of the least times from x to an op in between, and from it to y
WINDOW: Final = 512  # most places from x to y in the default order
PRECISION: Final = 0.002  # relative, of a time between x and y
ROUNDING: Final = 1e-12
FIRST, LAST, OTHER = 1, 2, 4  # bits of a set of chips: the chip of x, the chip of y, the others

# Of an op after x: when its kernel starts and ends at the earliest, on the chip of x and off it, counted from
# the end of the kernel of x. Infinite if x does not reach it; minus infinite if possibly before that end.
REACHED: Final = record("", "start_on_s end_on_s start_off_s end_off_s")
# Of an op in between: the same of its start, and the least time from its end to the start of y; its own
# seconds. Of all ops from a level on: the least of these times, and the sum of work.
BETWEEN: Final = record("", "start_on_s start_off_s end_on_s end_off_s work_s floor_s")


class Flow(NamedTuple):
    """A graph, or the reversed one, in which op i is N - 1 - i. Axes: ``N`` ops, ``E`` edges by second op."""

    ptr: LongArray  # [N + 1]
    before: IntArray  # [E]
    may_share: BoolArray  # [E] both ends may be in one kernel
    transfer_s: FloatArray  # [E] at least, if between two chips
    floor_s: FloatArray  # [N] least seconds of an op's kernel, whatever else it holds
    path_s: FloatArray  # [N] that an op adds to its kernel, and to a path
    is_matrix: BoolArray  # [N] a kernel holds at most one matrix op


@compiled
def seconds_between(flow: Flow, reverse: Flow, pairs: LongArray, num_chips: int) -> FloatArray:
    """[P] least time from the end of the first op's kernel of each pair to the start of the second op's.

    Minus infinite if the second kernel need not start after the first ends.

    Args:
      pairs: [P, 2] ops, sorted by the second.
    """
    work_s, num_ops = flow.path_s, len(flow.path_s)
    ahead, behind = np.empty(num_ops, REACHED), np.empty(num_ops, REACHED)
    between, table = np.empty(num_ops, BETWEEN), np.empty(LEVELS * LEVELS, BETWEEN)
    seconds = np.full(len(pairs), -np.inf)
    for i in range(len(pairs)):
        first, last = pairs[i, 0], pairs[i, 1]
        if i == 0 or last != pairs[i - 1, 1]:
            _reach(reverse, num_ops - 1 - last, min(num_ops - 1, num_ops - 1 - last + WINDOW), behind)
        _reach(flow, first, last, ahead)
        low_s = min(ahead[last].start_on_s, ahead[last].start_off_s)
        if np.isinf(low_s):
            continue
        count = int64(0)
        high_s = low_s
        for op in range(first + 1, last):
            if _note(between, count, ahead, op, behind, num_ops - 1 - op):
                between[count].work_s = work_s[op]
                between[count].floor_s = flow.floor_s[op]
                high_s += work_s[op]
                count += 1
        middle_s = low_s * (1.0 + PRECISION)  # usually the time of the path is not refuted
        while high_s > low_s * (1.0 + PRECISION):
            # Both ops are on the same chip, or on two chips.
            if _fits(between, count, middle_s, FIRST, num_chips - 1, table) or (
                num_chips > 1 and _fits(between, count, middle_s, FIRST + LAST, num_chips - 2, table)
            ):
                high_s = middle_s
            else:
                low_s = middle_s
            middle_s = (low_s + high_s) / 2
        seconds[i] = low_s
    return seconds


@uncounted_inner
def _reach(flow: Flow, first: int, last: int, reached: RecordArray) -> None:
    """Fill in the times of the ops after ``first``, up to ``last``."""
    reached[first].start_on_s = -np.inf
    reached[first].end_on_s = 0.0
    reached[first].start_off_s = np.inf
    reached[first].end_off_s = np.inf
    for op in range(first + 1, last + 1):
        is_reached = False
        on_s = off_s = end_on_s = end_off_s = -np.inf
        for i in range(flow.ptr[op], flow.ptr[op + 1]):
            if flow.before[i] < first:
                continue
            before = reached[flow.before[i]]
            if before.end_on_s == np.inf:
                continue
            is_reached = True
            on_from_off_s = before.end_off_s + flow.transfer_s[i]
            off_from_on_s = before.end_on_s + flow.transfer_s[i]
            if flow.may_share[i]:  # it starts, and ends, no sooner than the other op
                on_s = max(on_s, min(before.start_on_s, on_from_off_s))
                off_s = max(off_s, min(before.start_off_s, off_from_on_s))
                end_on_s = max(end_on_s, min(before.end_on_s, on_from_off_s))
                end_off_s = max(end_off_s, min(before.end_off_s, off_from_on_s))
            else:
                on_s = max(on_s, min(before.end_on_s, on_from_off_s))
                off_s = max(off_s, min(before.end_off_s, off_from_on_s))
        if not is_reached:
            on_s = off_s = np.inf
        reached[op].start_on_s = on_s
        reached[op].start_off_s = off_s
        reached[op].end_on_s = max(end_on_s, on_s + flow.floor_s[op])
        reached[op].end_off_s = max(end_off_s, off_s + flow.floor_s[op])


@uncounted_inner
def _note(
    between: RecordArray, count: int, ahead: RecordArray, op: int, behind: RecordArray, reversed_op: int
) -> bool:
    """Fill in the times of an op; returns False unless it surely runs in between."""
    start_on_s, start_off_s = ahead[op].start_on_s, ahead[op].start_off_s
    end_on_s, end_off_s = behind[reversed_op].start_on_s, behind[reversed_op].start_off_s
    between[count].start_on_s = start_on_s
    between[count].start_off_s = start_off_s
    between[count].end_on_s = end_on_s
    between[count].end_off_s = end_off_s
    first_s, last_s = min(start_on_s, start_off_s), min(end_on_s, end_off_s)
    return bool(first_s >= 0.0 and last_s >= 0.0 and first_s + last_s < np.inf)


@uncounted_inner
def _fits(
    between: RecordArray, count: int, seconds: float, ends: int, others: int, table: RecordArray
) -> bool:
    """Whether nothing refutes ``seconds`` for all ops; ``ends`` are the chips of x and y."""
    for chips in range(1, 8):  # every set of chips
        if chips & ~(ends + OTHER) == 0 and not _fits_on(between, count, seconds, ends, others, chips, table):
            return False
    return True


@uncounted_inner
def _fits_on(
    between: RecordArray,
    count: int,
    seconds: float,
    ends: int,
    others: int,
    chips: int,
    table: RecordArray,
) -> bool:
    """Whether ``chips`` have time for the ops that can end in time only there."""
    for cell in range(LEVELS * LEVELS):
        table[cell].work_s = 0.0
        table[cell].start_on_s = np.inf
        table[cell].start_off_s = np.inf
        table[cell].end_on_s = np.inf
        table[cell].end_off_s = np.inf
    for k in range(count):
        left_s = seconds - between[k].floor_s
        fitting = int64(0)
        for chip in (FIRST, LAST, OTHER):
            is_there = (ends & chip) if chip != OTHER else others
            if is_there > 0 and _apart_s(between, k, ends, chip) <= left_s:
                fitting += chip
        if fitting == 0:
            return False
        if fitting & ~chips == 0:
            i, j = _level(between[k].start_off_s, seconds), _level(between[k].end_off_s, seconds)
            _add(table, i * LEVELS + j, between, k)
    for i in range(LEVELS - 1, -1, -1):
        for j in range(LEVELS - 1, -1, -1):
            if i + 1 < LEVELS:
                _add(table, i * LEVELS + j, table, (i + 1) * LEVELS + j)
    for i in range(LEVELS):
        for j in range(LEVELS - 1, -1, -1):
            cell = i * LEVELS + j
            if j + 1 < LEVELS:
                _add(table, cell, table, cell + 1)
            room_s = 0.0
            for chip in (FIRST, LAST, OTHER):
                if chips & chip:
                    number = others if chip == OTHER else 1
                    room_s += number * max(0.0, seconds - _apart_s(table, cell, ends, chip))
            if table[cell].work_s > room_s * (1.0 + ROUNDING):
                return False
    return True


@uncounted_inner
def _apart_s(ops: RecordArray, k: int, ends: int, chip: int) -> float:
    """Least time from x to y besides the work of op (or cell) ``k``, on a chip of the class ``chip``."""
    if chip == FIRST:
        return ops[k].start_on_s + (ops[k].end_off_s if ends & LAST else ops[k].end_on_s)
    return ops[k].start_off_s + (ops[k].end_on_s if chip == LAST else ops[k].end_off_s)


@uncounted_inner
def _level(seconds: float, all_s: float) -> int:
    return LEVELS - 1 if seconds >= all_s else int64(seconds / all_s * LEVELS)


@uncounted_inner
def _add(table: RecordArray, cell: int, ops: RecordArray, k: int) -> None:
    """Merge ``ops[k]`` into a cell: the sum of work, the least times."""
    table[cell].work_s += ops[k].work_s
    table[cell].start_on_s = min(table[cell].start_on_s, ops[k].start_on_s)
    table[cell].start_off_s = min(table[cell].start_off_s, ops[k].start_off_s)
    table[cell].end_on_s = min(table[cell].end_on_s, ops[k].end_on_s)
    table[cell].end_off_s = min(table[cell].end_off_s, ops[k].end_off_s)
