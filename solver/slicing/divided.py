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

from go_opt.common.arrays import BoolArray, FloatArray, LongArray, RecordArray, record
from go_opt.common.compiling import compiled, int64, uncounted_inner

MOST_LABELS: Final = 16  # of a piece on stages of as many replicas
ALIKE: Final = 1 / 10  # of the interval, or of a memory: latencies and bytes that count as equal
CLOSE: Final = 1 / 400  # relative distance of intervals at which the bisection ends

# A way to reach a piece: first chip of its stage, chips, node; work and bytes of each of its chips, latency,
# share of the block on the stage, longest share on stages before, most bytes of activations.
LABEL: Final = record("first_chip chips node", "work_s held_bytes latency_s share_s longest_s active_bytes")


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
    start, end = np.zeros(size + 1, LABEL), np.zeros(size + 1, LABEL)
    now, then = np.zeros(size + 1, LABEL), np.zeros(size + 1, LABEL)
    nodes = np.empty((size * len(pieces.work_s) + 1, 4), np.int64)
    number, num_start = int64(0), int64(0)
    for replicas in range(1, min(room.most_replicas, room.num_chips, room.sequences) + 1):
        start[num_start].chips, start[num_start].node = replicas, -1
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
                    nodes[number, 0], nodes[number, 1] = then[label].node, piece
                    nodes[number, 2], nodes[number, 3] = then[label].first_chip, then[label].chips
                    then[label].node = number
                    number += 1
                num_now = _copied(then, num_then, now)
            for label in range(num_now):  # the block is over
                now[label].latency_s = _latency_s(now, label)
                now[label].share_s = now[label].longest_s = 0.0
                num_end = _keep(room, interval_s, now, label, end, num_end)
        num_start = _copied(end, num_end, start)
    best, most_s = int64(-1), room.sequences * interval_s / room.latency_scale
    for label in range(num_start):
        seconds = start[label].latency_s
        if seconds <= most_s and (best < 0 or seconds < start[best].latency_s):
            best = label
    if best < 0:
        return nodes, int64(-1), 0.0
    return nodes, start[best].node, start[best].latency_s


@uncounted_inner
def _copied(source: RecordArray, number: int, to: RecordArray) -> int:
    """Copies labels; returns their number."""
    for label in range(number):
        to[label] = source[label]
    return number


@uncounted_inner
def _extend(
    pieces: Pieces,
    room: Room,
    interval_s: float,
    option: int,
    piece: int,
    ends: bool,
    now: RecordArray,
    label: int,
    then: RecordArray,
    num_then: int,
) -> int:
    """Adds a piece to a label: on its stage; if it does not fit or the stage ``ends``, on new ones.

    Returns the number of labels with the piece.
    """
    work_s, sent_s = pieces.work_s[piece], pieces.sent_s[piece]
    new = len(now) - 1  # the last place is for what is made here
    for replicas in range(min(room.most_replicas, room.num_chips, room.sequences) + 1):  # 0: on its stage
        now[new] = now[label]
        if replicas > 0:
            now[new].first_chip += now[label].chips
            now[new].chips = replicas
            now[new].work_s = now[new].held_bytes = now[new].active_bytes = 0.0
            now[new].latency_s += sent_s
            now[new].longest_s = max(now[new].share_s, now[new].longest_s)
            now[new].share_s = 0.0
        held = -(-room.sequences // now[new].chips)
        now[new].work_s += work_s * held / room.sequences
        now[new].held_bytes += pieces.weight_bytes[piece] + pieces.state_bytes[piece] * held
        if pieces.is_divided[option]:
            now[new].share_s += work_s
        else:
            now[new].latency_s += work_s
        now[new].active_bytes = max(now[new].active_bytes, pieces.activation_bytes[piece])
        fits = now[new].held_bytes + now[new].active_bytes <= room.chip_bytes
        fits &= now[new].work_s <= interval_s and now[new].first_chip + now[new].chips <= room.num_chips
        if fits:
            num_then = _keep(room, interval_s, now, new, then, num_then)
            if replicas == 0 and not ends:
                break
        if sent_s > interval_s:
            break
    return num_then


@uncounted_inner
def _keep(room: Room, interval_s: float, source: RecordArray, label: int, to: RecordArray, num: int) -> int:
    """Takes a label, unless one on as many replicas is as good; returns the number of labels."""
    used_s, latency_s = _used_s(source, label, interval_s), _latency_s(source, label)
    alike, worst, worst_share = int64(0), int64(-1), _share(room, interval_s, used_s, latency_s)
    other = int64(0)
    while other < num:
        if to[other].chips == source[label].chips:
            other_used_s, other_s = _used_s(to, other, interval_s), _latency_s(to, other)
            more_bytes = to[other].held_bytes - source[label].held_bytes
            is_alike = other_s <= latency_s + ALIKE * interval_s and more_bytes <= ALIKE * room.chip_bytes
            if other_used_s <= used_s and is_alike:
                return num  # then it has replaced none but such as are no better than this one
            if used_s <= other_used_s and latency_s <= other_s and more_bytes >= 0.0:
                num -= 1
                to[other] = to[num]
                continue
            alike += 1
            share = _share(room, interval_s, other_used_s, other_s)
            if share > worst_share:
                worst, worst_share = other, share
        other += 1
    if alike < MOST_LABELS:
        to[num] = source[label]
        return num + 1
    if worst >= 0:
        to[worst] = source[label]
    return num


@uncounted_inner
def _used_s(labels: RecordArray, label: int, interval_s: float) -> float:
    """The seconds of all chips that are taken."""
    return labels[label].first_chip * interval_s + labels[label].chips * labels[label].work_s


@uncounted_inner
def _latency_s(labels: RecordArray, label: int) -> float:
    return labels[label].latency_s + max(labels[label].share_s, labels[label].longest_s)


@uncounted_inner
def _share(room: Room, interval_s: float, used_s: float, latency_s: float) -> float:
    """How much is spent of the chips, or of the latency that is allowed if that is more."""
    return max(used_s / room.num_chips, latency_s * room.latency_scale / room.sequences) / interval_s
