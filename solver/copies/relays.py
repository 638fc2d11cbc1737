"""Relays that make the triangle rule hold for a placement (design section 8).

A tensor with relays on chips s1 < s2 < … makes the chip dependencies home -> s1 -> s2 …,
and one from the last relay before each reader to that reader. Under the adjacent rule every
chip that the tensor passes has a relay. The other forms forbid a dependency a -> c only if it
has a detour through other chips. Then the tensor takes the shortest path from a to c along
allowed dependencies. Under the longest-path form these are the transitive reduction of all
dependencies, which contains such a path. Relays give other readers of the tensor new
dependencies, so this repeats until no dependency is forbidden. Relays are only ever added,
strictly between home and the farthest reader.
"""

from __future__ import annotations

from itertools import groupby

import numpy as np

from go_opt.common.arrays import IntArray, LongArray, WordArray
from go_opt.common.compiling import compiled, compiled_inner, int64, uint64, uncounted_inner
from go_opt.env import BatchMetrics, evaluate_batch
from go_opt.env.copies.relays import Relays, expanded_tables
from go_opt.env.cost.tables import CostTables
from go_opt.env.kernels.plain_loops import largest
from go_opt.env.target import Triangle
from go_opt.model.graph import NO_PRODUCER, Graph
from go_opt.model.plan import Relay


def needed_relays(tables: CostTables, placement: IntArray, triangle: Triangle) -> tuple[IntArray, IntArray]:
    """Returns ``(tensor[P], chip[P])`` of relays with which ``placement`` keeps the rule; ascending.

    Args:
      placement: [N] chips, ``f(u) <= f(v)`` for every edge.
      triangle: the rule of the target; ``off`` needs none.
    """
    producer = tables.tensor_producer[tables.reader_tensor]
    passed = placement[tables.reader_op] - placement[producer] > 1
    # Without a tensor that passes a chip, no kernel has to be compiled for the first plan.
    if triangle == "off" or not (passed & (producer != NO_PRODUCER)).any():
        return np.empty(0, np.int32), np.empty(0, np.int32)
    return _needed_relays(
        tables.tensor_producer,
        tables.reader_ptr,
        tables.reader_op,
        placement.astype(np.int32),  # a copy: read-only arrays would compile a second version
        triangle == "adjacent",
        triangle == "three_chip",
    )


def relayed_terms(
    tables: CostTables, placement: IntArray, order: IntArray, fusion_group: IntArray, triangle: Triangle
) -> BatchMetrics:
    """Returns the terms of one plan ([N] each) with the relays it needs; ``off`` needs none."""
    relays = Relays(*needed_relays(tables, placement, triangle))
    expanded, *plan = expanded_tables(tables, placement, order, fusion_group, relays)
    return evaluate_batch(expanded, *(row[None] for row in plan))


def relays_of_arrays(graph: Graph, tensor: IntArray, chip: IntArray) -> tuple[Relay, ...]:
    """Returns the relays of a plan: ``tensor`` [P] ascending, on ``chip`` [P]."""
    pairs = zip(tensor.tolist(), chip.tolist(), strict=True)
    return tuple(
        Relay(graph.tensor_names[k], tuple(chip for _, chip in of_tensor))
        for k, of_tensor in groupby(pairs, key=lambda pair: pair[0])
    )


@compiled
def _needed_relays(
    tensor_producer: IntArray,
    reader_ptr: LongArray,
    reader_op: IntArray,
    placement: IntArray,
    is_adjacent: bool,
    is_three_chip: bool,
) -> tuple[IntArray, IntArray]:
    num_chips = int64(largest(placement)) + 1
    num_words = (num_chips + 63) >> 6
    num_tensors = len(tensor_producer)
    near = np.zeros((num_chips, num_words), np.uint64)  # dependencies of tensors that pass no chip
    far = np.empty(num_tensors, np.int32)  # tensors that pass a chip
    home = np.empty(num_tensors, np.int64)
    last = np.empty(num_tensors, np.int64)
    num_far = 0
    for k in range(num_tensors):
        if tensor_producer[k] == NO_PRODUCER:
            continue
        home[num_far] = placement[tensor_producer[k]]
        last[num_far] = home[num_far]
        for r in range(reader_ptr[k], reader_ptr[k + 1]):
            last[num_far] = max(last[num_far], placement[reader_op[r]])
        if last[num_far] > home[num_far] + 1:
            far[num_far] = k
            num_far += 1
        elif last[num_far] > home[num_far]:
            _put(near, home[num_far], last[num_far])
    read = np.zeros((num_far, num_words), np.uint64)
    relay = np.zeros((num_far, num_words), np.uint64)
    for f in range(num_far):
        for r in range(reader_ptr[far[f]], reader_ptr[far[f] + 1]):
            _put(read, f, int64(placement[reader_op[r]]))
        for chip in range(home[f] + 1, last[f] if is_adjacent else 0):
            _put(relay, f, chip)
    if not is_adjacent:
        _relay_until_allowed(near, home, last, read, relay, is_three_chip)
    return _pairs(far, home, last, relay)


@uncounted_inner
def _put(bits: WordArray, row: int, chip: int) -> None:
    bits[row, chip >> 6] |= uint64(1) << uint64(chip & 63)


@uncounted_inner
def _has(bits: WordArray, row: int, chip: int) -> bool:
    return (bits[row, chip >> 6] >> uint64(chip & 63)) & uint64(1) != 0


@compiled_inner
def _relay_until_allowed(
    near: WordArray, home: LongArray, last: LongArray, read: WordArray, relay: WordArray, is_three_chip: bool
) -> None:
    num_chips, num_words = near.shape
    num_far = len(read)
    allowed = np.empty((num_chips, num_words), np.uint64)
    before = np.empty((num_chips, num_chips), np.int32)  # the chip before c on the shortest path from a to c
    is_known = np.empty(num_chips, np.bool_)
    while True:
        depends = near.copy()
        for f in range(num_far):
            source = home[f]
            for chip in range(home[f] + 1, last[f] + 1):
                is_relay = _has(relay, f, chip)
                if is_relay or _has(read, f, chip):
                    _put(depends, source, chip)
                if is_relay:
                    source = int64(chip)
        if not _split(depends, allowed, is_three_chip):
            return
        for chip in range(num_chips):
            is_known[chip] = False
        for f in range(num_far):
            source = home[f]
            for chip in range(home[f] + 1, last[f] + 1):
                was_relay = _has(relay, f, chip)
                if (was_relay or _has(read, f, chip)) and not _has(allowed, source, chip):
                    if not is_known[source]:
                        is_known[source] = True
                        _shortest_ways(allowed, source, before)
                    via = before[source, chip]
                    while via != source:
                        _put(relay, f, int64(via))
                        via = before[source, via]
                if was_relay:
                    source = int64(chip)


@compiled_inner
def _split(depends: WordArray, allowed: WordArray, is_three_chip: bool) -> bool:
    """Fills ``allowed`` with the dependencies without a detour; returns whether there are others."""
    num_chips, num_words = depends.shape
    further = np.zeros((num_chips, num_words), np.uint64)  # reached through other chips
    is_broken = False
    for a in range(num_chips - 1, -1, -1):
        for c in range(a + 1, num_chips):
            if _has(depends, a, c):
                for w in range(num_words):
                    further[a, w] |= depends[c, w]
                    if not is_three_chip:
                        further[a, w] |= further[c, w]
        for w in range(num_words):
            allowed[a, w] = depends[a, w] & ~further[a, w]
            is_broken |= allowed[a, w] != depends[a, w]
    return is_broken


@compiled_inner
def _shortest_ways(allowed: WordArray, source: int, before: IntArray) -> None:
    """Fills ``before[source]``: paths with the fewest chips, then through the lowest chips."""
    num_chips = len(allowed)
    unreached = num_chips
    distance = np.empty(num_chips, np.int64)
    for chip in range(num_chips):
        distance[chip] = unreached
    distance[source] = 0
    for a in range(source, num_chips):
        if distance[a] == unreached:
            continue
        for c in range(a + 1, num_chips):
            if distance[a] + 1 < distance[c] and _has(allowed, a, c):
                distance[c] = distance[a] + 1
                before[source, c] = a


@compiled_inner
def _pairs(far: IntArray, home: LongArray, last: LongArray, relay: WordArray) -> tuple[IntArray, IntArray]:
    num_pairs = 0
    for f in range(len(relay)):
        for chip in range(home[f] + 1, last[f]):
            num_pairs += _has(relay, f, chip)
    tensors = np.empty(num_pairs, np.int32)
    chips = np.empty(num_pairs, np.int32)
    at = 0
    for f in range(len(relay)):
        for chip in range(home[f] + 1, last[f]):
            if _has(relay, f, chip):
                tensors[at], chips[at] = far[f], chip
                at += 1
    return tensors, chips
