"""The domain store: the open chips of each unit, with a trail for backtracking.

Axes: ``U`` units, ``D`` chips, ``W`` 64-bit words of a set of chips, ``V`` most decisions,
``C`` limits. Chip ``c`` is bit ``c % 64`` of word ``c // 64``.

Only :func:`write` narrows domains: it trails, counts and enqueues, so that the search can
undo every change and the propagators see every change. :func:`restore` is its inverse. A contradiction
is noted in ``state[CONTRADICTION]``; until it is undone, domains may still be narrowed, without effect.
"""

from __future__ import annotations

from typing import Annotated, Final, NamedTuple

import numpy as np

from go_opt.common.arrays import BoolArray, FloatArray, IntArray, LongArray, WordArray, allocated
from go_opt.common.compiling import int64, uint64, uncounted, uncounted_inner

# Fields of ``Store.state``.
(
    TRAIL_SIZE, NUM_DECIDED, NUM_DECISIONS, QUEUE_HEAD, QUEUE_SIZE, HIGHEST_LOW,
    NUM_LINKED, SUPPORT_FELL, LINKS_CHANGED, NUM_RESTORES, BACKTRACKS, MAX_BACKTRACKS, CONTRADICTION,
) = range(13)  # fmt: skip

UNLIMITED: Final = 2**62
WORD_BITS: Final = 64
NO_BITS: Final = uint64(0)
ONE_BIT: Final = uint64(1)
ALL_BITS: Final = uint64(2**64 - 1)


class Store(NamedTuple):
    """The mutable state of one search. Everything is allocated once."""

    domain: WordArray  # open chips of each unit
    low: Annotated[LongArray, "U"]  # lowest chip of the domain; stale while the domain is empty
    high: Annotated[LongArray, "U"]  # highest chip, likewise
    size: Annotated[LongArray, "U"]  # chips in the domain
    support: Annotated[LongArray, "D"]  # units to which the chip is open
    occupied: Annotated[LongArray, "D"]  # units to which only this chip is open
    decided: Annotated[LongArray, "U"]  # units with one open chip, in the order in which they were decided
    trail_unit: Annotated[IntArray, "T"]  # unit, word and old bits of each write
    trail_word: Annotated[IntArray, "T"]
    trail_bits: Annotated[WordArray, "T"]
    mark: Annotated[LongArray, "V + 1, 3"]  # trail size, decided units, highest low before a decision
    choice_unit: Annotated[LongArray, "V"]  # the unit of each decision
    choice: Annotated[WordArray, "V, W"]  # the chips of each decision
    queue: Annotated[LongArray, "U"]  # ring of units whose domain changed
    is_queued: Annotated[BoolArray, "U"]
    is_linked: Annotated[BoolArray, "U"]  # True if the chip graph contains the unit
    link_edges: Annotated[LongArray, "D, D"]  # edges from a unit decided on a to one decided on b
    links: Annotated[WordArray, "D, W"]  # the chips b of row a with such an edge, without a itself
    reach: Annotated[WordArray, "D, W"]  # chips that a leads to
    far: Annotated[WordArray, "D, W"]  # chips that a reaches by a detour, so a direct dependency is forbidden
    into: Annotated[WordArray, "D, W"]  # chips that lead to b
    far_into: Annotated[WordArray, "D, W"]  # the inverse of far
    above: Annotated[WordArray, "U, W"]  # chips of the decided ancestors of each unit
    below: Annotated[WordArray, "U, W"]  # chips of the decided descendants of each unit
    long_links: Annotated[LongArray, "D^2 / 2, 2"]  # links a -> b that skip at least one chip
    server: Annotated[LongArray, "D"]  # the unit matched to the chip, or -1: a hint, not trailed
    served: Annotated[LongArray, "U"]  # the chip matched to the unit, or -1
    asked_by: Annotated[LongArray, "U"]  # scratch of the search for a server
    chip_queue: Annotated[LongArray, "D"]  # scratch, likewise
    limit_seen: Annotated[LongArray, "C, 3"]  # support, occupied and restores at the last check of each limit
    state: Annotated[LongArray, "13"]  # the fields named above


def new_store(
    allowed: WordArray, num_chips: int, max_decisions: int | None = None, num_limits: int = 0
) -> Store:
    """Returns a store with the domains ``allowed`` [U, W]; ``max_decisions`` defaults to two per unit."""
    num_units, num_words = allowed.shape
    num_decisions = 2 * num_units if max_decisions is None else max_decisions
    store = allocated(
        Store,
        # Every write removes a chip, so the trail never exceeds T; untouched pages cost nothing.
        {"U": num_units, "D": num_chips, "W": num_words, "T": num_units * num_chips, "C": num_limits}
        | {"V": num_decisions, "V + 1": num_decisions + 1, "D^2 / 2": num_chips * num_chips // 2},
        domain=allowed.copy(),
        server=np.full(num_chips, -1, np.int64),
        served=np.full(num_units, -1, np.int64),
        limit_seen=np.full((num_limits, 3), -1, np.int64),
    )
    store.state[MAX_BACKTRACKS] = UNLIMITED
    _count(store)
    return store


@uncounted
def _count(store: Store) -> None:
    """Fills the fields that follow from the domains, and enqueues every unit."""
    state = store.state
    for unit in range(len(store.size)):
        store.low[unit] = len(store.support)
        for word in range(store.domain.shape[1]):
            bits = store.domain[unit, word]
            while bits != NO_BITS:
                chip = word * WORD_BITS + lowest_bit(bits)
                bits &= bits - ONE_BIT
                store.support[chip] += 1
                store.size[unit] += 1
                store.low[unit] = min(store.low[unit], chip)
                store.high[unit] = chip
        state[HIGHEST_LOW] = max(state[HIGHEST_LOW], store.low[unit])
        if store.size[unit] == 1:
            _decided(store, unit)
        enqueue(store, unit)
    state[SUPPORT_FELL] = 1


@uncounted_inner
def write(store: Store, unit: int, word: int, keep: int) -> None:
    """Keeps the chips ``keep`` of one word of a domain; no other function narrows domains."""
    old = store.domain[unit, word]
    new = old & keep
    if new == old:
        return
    state = store.state
    at = state[TRAIL_SIZE]
    store.trail_unit[at] = unit
    store.trail_word[at] = word
    store.trail_bits[at] = old
    state[TRAIL_SIZE] = at + 1
    store.domain[unit, word] = new
    gone = old ^ new
    while gone != NO_BITS:
        chip = word * WORD_BITS + lowest_bit(gone)
        gone &= gone - ONE_BIT
        store.support[chip] -= 1
        store.size[unit] -= 1
        if store.support[chip] <= 1:
            state[SUPPORT_FELL] = 1
    if store.size[unit] == 0:
        state[CONTRADICTION] = 1
        return
    _tighten_bounds(store, unit)
    state[HIGHEST_LOW] = max(state[HIGHEST_LOW], store.low[unit])
    if store.size[unit] == 1:
        _decided(store, unit)
    enqueue(store, unit)


@uncounted
def narrow_range(store: Store, unit: int, low: int, high: int) -> None:
    """Keeps the chips ``low … high``."""
    if low > store.low[unit] or high < store.high[unit]:
        for word in range(store.domain.shape[1]):
            write(store, unit, word, range_bits(word, low, high))


@uncounted
def narrow_to(store: Store, unit: int, chips: WordArray) -> None:
    """Keeps the chips of the set ``chips`` [W]."""
    for word in range(store.domain.shape[1]):
        write(store, unit, word, chips[word])


@uncounted
def remove(store: Store, unit: int, chips: WordArray) -> None:
    """Removes the chips of the set ``chips`` [W]."""
    for word in range(store.domain.shape[1]):
        write(store, unit, word, ~chips[word])


@uncounted_inner
def remove_range(store: Store, unit: int, low: int, high: int) -> None:
    """Removes the chips ``low … high``."""
    if low <= high and low <= store.high[unit] and high >= store.low[unit]:
        for word in range(low // WORD_BITS, high // WORD_BITS + 1):
            write(store, unit, word, ~range_bits(word, low, high))


@uncounted
def restore(store: Store, trail_size: int, num_decided: int, highest_low: int) -> None:
    """Undoes every write since the trail had ``trail_size`` entries."""
    state = store.state
    state[NUM_RESTORES] += 1
    state[CONTRADICTION] = 0
    while state[NUM_DECIDED] > num_decided:
        state[NUM_DECIDED] -= 1
        store.occupied[store.low[store.decided[state[NUM_DECIDED]]]] -= 1
    while state[TRAIL_SIZE] > trail_size:
        state[TRAIL_SIZE] -= 1
        at = state[TRAIL_SIZE]
        unit = int64(store.trail_unit[at])
        word = int64(store.trail_word[at])
        back = store.trail_bits[at] ^ store.domain[unit, word]
        store.domain[unit, word] = store.trail_bits[at]
        while back != NO_BITS:
            chip = word * WORD_BITS + lowest_bit(back)
            back &= back - ONE_BIT
            store.support[chip] += 1
            store.size[unit] += 1
            store.low[unit] = min(store.low[unit], chip)
            store.high[unit] = max(store.high[unit], chip)
    state[HIGHEST_LOW] = highest_low
    while state[QUEUE_SIZE] > 0:
        dequeue(store)


@uncounted_inner
def enqueue(store: Store, unit: int) -> None:
    """Appends ``unit`` to the work list, unless it is already there."""
    if store.is_queued[unit]:
        return
    store.is_queued[unit] = True
    place = store.state[QUEUE_HEAD] + store.state[QUEUE_SIZE]
    store.queue[place % len(store.queue)] = unit
    store.state[QUEUE_SIZE] += 1


@uncounted
def dequeue(store: Store) -> int:
    """Takes the next unit off the work list, which must not be empty."""
    unit = store.queue[store.state[QUEUE_HEAD]]
    store.state[QUEUE_HEAD] = (store.state[QUEUE_HEAD] + 1) % len(store.queue)
    store.state[QUEUE_SIZE] -= 1
    store.is_queued[unit] = False
    return unit


@uncounted_inner
def has_chip(chips: WordArray, chip: int) -> bool:
    """Returns whether the set ``chips`` [W] contains ``chip``."""
    return (chips[chip // WORD_BITS] >> uint64(chip % WORD_BITS)) & ONE_BIT != NO_BITS


@uncounted_inner
def chip_bit(chip: int) -> int:
    """Returns the bit of ``chip`` in its word."""
    return ONE_BIT << uint64(chip % WORD_BITS)


@uncounted_inner
def range_bits(word: int, low: int, high: int) -> int:
    """Returns the bits of the chips ``low … high`` in ``word``."""
    start = max(low - word * WORD_BITS, 0)
    end = min(high - word * WORD_BITS, WORD_BITS - 1)
    if start > end:
        return NO_BITS
    return (ALL_BITS >> uint64(WORD_BITS - 1 - end)) & (ALL_BITS << uint64(start))


@uncounted_inner
def lowest_bit(bits: int) -> int:
    """Returns the number of the lowest bit set; ``bits`` must not be 0."""
    place = 0
    for step in (32, 16, 8, 4, 2, 1):
        if bits & ((ONE_BIT << uint64(step)) - ONE_BIT) == NO_BITS:
            bits >>= uint64(step)
            place += step
    return place


@uncounted_inner
def highest_bit(bits: int) -> int:
    """Returns the number of the highest bit set; ``bits`` must not be 0."""
    place = 0
    for step in (32, 16, 8, 4, 2, 1):
        if bits >> uint64(step) != NO_BITS:
            bits >>= uint64(step)
            place += step
    return place


@uncounted_inner
def _tighten_bounds(store: Store, unit: int) -> None:
    word = store.low[unit] // WORD_BITS
    while store.domain[unit, word] == NO_BITS:
        word += 1
    store.low[unit] = word * WORD_BITS + lowest_bit(store.domain[unit, word])
    word = store.high[unit] // WORD_BITS
    while store.domain[unit, word] == NO_BITS:
        word -= 1
    store.high[unit] = word * WORD_BITS + highest_bit(store.domain[unit, word])


@uncounted_inner
def _decided(store: Store, unit: int) -> None:
    store.decided[store.state[NUM_DECIDED]] = unit
    store.state[NUM_DECIDED] += 1
    store.occupied[store.low[unit]] += 1


@uncounted_inner
def draw_chip(chips: WordArray, low: int, high: int, row: FloatArray, uniform: float) -> int:
    """Draws a chip of the set ``chips`` [W], all within ``low … high``.

    ``row`` [D] holds log-probabilities on any scale. If it has no mass on the set, the draw is uniform.
    """
    top = -np.inf
    for chip in range(low, high + 1):
        if has_chip(chips, chip):
            top = max(top, row[chip])
    total = 0.0
    for chip in range(low, high + 1):
        if has_chip(chips, chip):
            total += 1.0 if top == -np.inf else np.exp(row[chip] - top)
    left = uniform * total
    drawn = low
    for chip in range(low, high + 1):
        if has_chip(chips, chip):
            weight = 1.0 if top == -np.inf else np.exp(row[chip] - top)
            if weight > 0.0:
                drawn = chip
                left -= weight
                if left < 0.0:
                    break
    return drawn


def pack_chips(open_chips: BoolArray) -> WordArray:
    """Packs sets of chips into words [..., W]; ``open_chips`` [..., D] is True for chips in the set."""
    num_chips = open_chips.shape[-1]
    num_words = -(-num_chips // WORD_BITS)
    padded = np.zeros((*open_chips.shape[:-1], num_words * WORD_BITS), np.bool_)
    padded[..., :num_chips] = open_chips
    as_bytes = np.packbits(padded, axis=-1, bitorder="little")
    return np.ascontiguousarray(as_bytes).view("<u8").astype(np.uint64)


def unpack_chips(words: WordArray, num_chips: int) -> BoolArray:
    """Unpacks words [..., W] to [..., D], the inverse of :func:`pack_chips`."""
    as_bytes = np.ascontiguousarray(words.astype("<u8")).view(np.uint8)
    return np.unpackbits(as_bytes, axis=-1, bitorder="little")[..., :num_chips].astype(np.bool_)
