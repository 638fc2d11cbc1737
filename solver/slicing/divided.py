"""SLICE for sequences in flight where blocks may be divided: parts, stages and cuts are decided together.

The sample runs through *segments*, one after the other: what is never divided, and blocks. A block has
options, one for each number of its parts, and each option has *pieces*, which are never cut. A stage of r
chips holds pieces that follow each other: each chip has the weights of all of them, and the states of
``ceil(S / r)`` sequences. Parts of a block beside each other on several stages shorten the latency: the
block then takes as long as the longest of its shares.

For a candidate interval T, stages are filled one after the other, each as far as it goes within T; if that
finds none, stages may also end before that between parts, which shortens the latency. Labels are the ways to
reach a piece: of those that end on as many replicas, none is worse than another in chips and work, in latency
and in memory. Only the best few are kept, and latency and memory are estimates: a plan has to be evaluated.
``latency_scale`` corrects the latency by that of such a plan.
"""

from __future__ import annotations

import math
from typing import Final, NamedTuple

import numpy as np

from go_opt.common.arrays import BoolArray, FloatArray, LongArray
from go_opt.common.compiling import compiled, compiled_inner, int64, uncounted_inner

MOST_LABELS: Final = 16  # of a piece on stages of as many replicas
ALIKE: Final = 1 / 10  # of the interval, or of a memory: latencies and bytes that count as equal
CLOSE: Final = 1 / 400  # relative distance of intervals at which the bisection ends


class Pieces(NamedTuple):
    """Segments, their options and the pieces of these. Axes: ``G`` segments, ``O`` options, ``I`` pieces."""

    option_ptr: LongArray  # [G + 1]
    piece_ptr: LongArray  # [O + 1]
    is_divided: BoolArray  # [O] whether the pieces may run beside each other
    work_s: FloatArray  # [I]
    weight_bytes: FloatArray  # [I] that no piece before it in its segment reads
    state_bytes: FloatArray  # [I] of one sequence
    activation_bytes: FloatArray  # [I] while it runs
    sent_s: FloatArray  # [I] of a link if a stage ends before the piece; infinite: none may


class Room(NamedTuple):
    """What stages have to fit into."""

    num_chips: int
    chip_bytes: float
    sequences: int
    most_replicas: int
    latency_scale: float = 1.0


class DividedSlicing(NamedTuple):
    """The least interval found. Axis ``P`` pieces of the options that were taken, in order."""

    interval_s: float
    latency_s: float  # before it is scaled
    option: LongArray  # [G] of each segment
    piece: LongArray  # [P]
    first_chip: LongArray  # [P] of its stage
    replicas: LongArray  # [P]


class _Labels(NamedTuple):
    """Ways to reach a piece, ``L`` at most."""

    counts: LongArray  # [3, L] first chip of the stage, its chips, node
    # [6, L] work and bytes of each of its chips, latency, share of the block, longest share of stages before,
    # most bytes of activations
    amount: FloatArray


def slice_divided(pieces: Pieces, room: Room, lower_s: float, upper_s: float) -> DividedSlicing | None:
    """Returns the slicing of nearly the least interval between two, by bisection; None if none is found."""
    found = _found(pieces, room, upper_s)
    if found is None:
        return None
    while upper_s > lower_s * (1.0 + CLOSE):
        interval_s = math.sqrt(lower_s * upper_s)
        closer = _found(pieces, room, interval_s)
        if closer is None:
            lower_s = interval_s
        else:
            upper_s, found = interval_s, closer
    nodes, last, latency_s = found
    rows = []
    while last >= 0:
        rows.append(nodes[last])
        last = int(nodes[last, 0])
    piece, first_chip, replicas = np.array(rows[::-1])[:, 1:].T
    option = np.unique(np.searchsorted(pieces.piece_ptr, piece, side="right") - 1)
    return DividedSlicing(upper_s, latency_s, option, piece, first_chip, replicas)


def _found(pieces: Pieces, room: Room, interval_s: float) -> tuple[LongArray, int, float] | None:
    for ends_early in (False, True):
        nodes, last, latency_s = _reach(pieces, room, interval_s, ends_early)
        if last >= 0:
            return nodes, last, latency_s
    return None


@compiled
def _reach(pieces: Pieces, room: Room, interval_s: float, ends_early: bool) -> tuple[LongArray, int, float]:
    """Returns nodes [*, 4] (node before, piece, first chip, replicas), the last or -1, and its latency."""
    size = room.most_replicas * MOST_LABELS
    start, end, now, then = _labels(size), _labels(size), _labels(size), _labels(size)
    nodes = np.empty((size * len(pieces.work_s) + 1, 4), np.int64)
    number, num_start = int64(0), int64(0)
    for replicas in range(1, min(room.most_replicas, room.num_chips, room.sequences) + 1):
        start.counts[0, num_start], start.counts[1, num_start], start.counts[2, num_start] = 0, replicas, -1
        for row in range(6):
            start.amount[row, num_start] = 0.0
        num_start += 1
    for segment in range(len(pieces.option_ptr) - 1):
        num_end = int64(0)
        for option in range(pieces.option_ptr[segment], pieces.option_ptr[segment + 1]):
            num_now = _copied(start, num_start, now)
            ends = ends_early and pieces.is_divided[option]
            for piece in range(pieces.piece_ptr[option], pieces.piece_ptr[option + 1]):
                num_then = int64(0)
                for label in range(num_now):
                    num_then = _extend(
                        pieces, room, interval_s, option, piece, ends, now, label, then, num_then
                    )
                for label in range(num_then):
                    nodes[number, 0], nodes[number, 1] = then.counts[2, label], piece
                    nodes[number, 2], nodes[number, 3] = then.counts[0, label], then.counts[1, label]
                    then.counts[2, label] = number
                    number += 1
                num_now = _copied(then, num_then, now)
            for label in range(num_now):  # the block is over
                now.amount[2, label] += max(now.amount[3, label], now.amount[4, label])
                now.amount[3, label] = now.amount[4, label] = 0.0
                num_end = _keep(room, interval_s, now, label, end, num_end)
        num_start = _copied(end, num_end, start)
    best, most_s = int64(-1), room.sequences * interval_s / room.latency_scale
    for label in range(num_start):
        if start.amount[2, label] <= most_s and (best < 0 or start.amount[2, label] < start.amount[2, best]):
            best = label
    if best < 0:
        return nodes, int64(-1), 0.0
    return nodes, start.counts[2, best], start.amount[2, best]


@compiled_inner
def _labels(size: int) -> _Labels:
    return _Labels(np.zeros((3, size + 1), np.int64), np.zeros((6, size + 1), np.float64))


@uncounted_inner
def _copied(source: _Labels, number: int, to: _Labels) -> int:
    """Copies labels; returns their number."""
    for label in range(number):
        _copy(source, label, to, label)
    return number


@uncounted_inner
def _copy(source: _Labels, label: int, to: _Labels, at: int) -> None:
    for row in range(3):
        to.counts[row, at] = source.counts[row, label]
    for row in range(6):
        to.amount[row, at] = source.amount[row, label]


@uncounted_inner
def _extend(
    pieces: Pieces,
    room: Room,
    interval_s: float,
    option: int,
    piece: int,
    ends: bool,
    now: _Labels,
    label: int,
    then: _Labels,
    num_then: int,
) -> int:
    """Adds a piece to a label: on its stage; if it does not fit or the stage ``ends``, on new ones.

    Returns the number of labels with the piece.
    """
    work_s, sent_s = pieces.work_s[piece], pieces.sent_s[piece]
    new = now.counts.shape[1] - 1  # the last place is for what is made here
    for replicas in range(min(room.most_replicas, room.num_chips, room.sequences) + 1):  # 0: on its stage
        _copy(now, label, now, new)
        if replicas > 0:
            now.counts[0, new] += now.counts[1, label]
            now.counts[1, new] = replicas
            now.amount[0, new] = now.amount[1, new] = now.amount[5, new] = 0.0
            now.amount[2, new] += sent_s
            now.amount[4, new] = max(now.amount[3, new], now.amount[4, new])
            now.amount[3, new] = 0.0
        held = -(-room.sequences // now.counts[1, new])
        now.amount[0, new] += work_s * held / room.sequences
        now.amount[1, new] += pieces.weight_bytes[piece] + pieces.state_bytes[piece] * held
        now.amount[3 if pieces.is_divided[option] else 2, new] += work_s
        now.amount[5, new] = max(now.amount[5, new], pieces.activation_bytes[piece])
        fits = now.amount[1, new] + now.amount[5, new] <= room.chip_bytes
        fits &= now.amount[0, new] <= interval_s and now.counts[0, new] + now.counts[1, new] <= room.num_chips
        if fits:
            num_then = _keep(room, interval_s, now, new, then, num_then)
            if replicas == 0 and not ends:
                break
        if sent_s > interval_s:
            break
    return num_then


@uncounted_inner
def _keep(room: Room, interval_s: float, source: _Labels, label: int, to: _Labels, number: int) -> int:
    """Takes a label, unless one on as many replicas is as good; returns the number of labels."""
    used_s, latency_s = _used_s(source, label, interval_s), _latency_s(source, label)
    alike, worst, worst_share = int64(0), int64(-1), _share(room, interval_s, used_s, latency_s)
    other = int64(0)
    while other < number:
        if to.counts[1, other] == source.counts[1, label]:
            other_used_s, other_s = _used_s(to, other, interval_s), _latency_s(to, other)
            more_bytes = to.amount[1, other] - source.amount[1, label]
            is_alike = other_s <= latency_s + ALIKE * interval_s and more_bytes <= ALIKE * room.chip_bytes
            if other_used_s <= used_s and is_alike:
                return number  # then it has replaced none but such as are no better than this one
            if used_s <= other_used_s and latency_s <= other_s and more_bytes >= 0.0:
                number -= 1
                _copy(to, number, to, other)
                continue
            alike += 1
            share = _share(room, interval_s, other_used_s, other_s)
            if share > worst_share:
                worst, worst_share = other, share
        other += 1
    if alike < MOST_LABELS:
        _copy(source, label, to, number)
        return number + 1
    if worst >= 0:
        _copy(source, label, to, worst)
    return number


@uncounted_inner
def _used_s(labels: _Labels, label: int, interval_s: float) -> float:
    """The seconds of all chips that are taken."""
    return labels.counts[0, label] * interval_s + labels.counts[1, label] * labels.amount[0, label]


@uncounted_inner
def _latency_s(labels: _Labels, label: int) -> float:
    return labels.amount[2, label] + max(labels.amount[3, label], labels.amount[4, label])


@uncounted_inner
def _share(room: Room, interval_s: float, used_s: float, latency_s: float) -> float:
    """How much is spent of the chips, or of the latency that is allowed if that is more."""
    return max(used_s / room.num_chips, latency_s * room.latency_scale / room.sequences) / interval_s
