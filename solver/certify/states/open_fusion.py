"""Arrays of the refinement's chain search, and the choice of its open states.

See :mod:`go_opt.solver.certify.states.chains` for the search.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np

from go_opt.common.arrays import CodeArray, IntArray, LongArray
from go_opt.common.compiling import int32, int64, uncounted_inner
from go_opt.solver.certify.problem.problem import UnitGraph
from go_opt.solver.certify.problem.streams import spare_bytes
from go_opt.solver.certify.states.fits import FitScratch, fit_scratch, most_shed_bytes, weigh
from go_opt.solver.certify.states.states import StatePool

NEVER: Final = -1
MOST_STREAMED: Final = 2**61


class ChainSearch(NamedTuple):
    """Scratch of the dynamic program. Axes: ``S`` states, ``Y`` labels, ``D`` chips, ``U`` units."""

    by_low: IntArray  # [S] states by least work, without dead ones
    num_sorted: LongArray  # [2] entries of by_low; number of pool states already added
    near: IntArray  # [S] states of the last chains of find_chain, and states split from them
    num_near: LongArray  # [2] entries of near; number of pool states already added
    open_state: IntArray  # [S] by_low or near without states that labels cannot improve
    floor: LongArray  # [S] least work of open_state, ascending
    low: LongArray  # [S] least work, given the forced work on other chips
    high: LongArray  # [S] most work, given the forced work on other chips
    cut: LongArray  # [S]
    best: LongArray  # [S] most work on any level so far …
    best_streamed: LongArray  # [S] … streamed bytes of its label …
    best_resident: LongArray  # [S] … and its resident weight bytes
    least_streaming_work: LongArray  # [S] work of the label that streams least …
    least_streaming_bytes: LongArray  # [S] … its streamed bytes …
    least_streaming_resident: LongArray  # [S] … and its resident weight bytes
    low_bytes: LongArray  # [S] resident weight bytes required; with fewer, too many stream
    high_bytes: LongArray  # [S] most weight bytes of all chips so far
    num_labels: IntArray  # [S] on this level
    label: LongArray  # [S] the last label
    label_state: IntArray  # [Y]
    label_work: LongArray  # [Y]
    label_reach: LongArray  # [Y] work including the next segment, minus the cut
    label_before: LongArray  # [Y] previous label of the chain
    label_older: LongArray  # [Y] previous label of the same state
    label_streamed: LongArray  # [Y] bytes of all segments so far, if they share the host's link
    label_resident: LongArray  # [Y] most resident weight bytes of these segments
    label_chips: LongArray  # [Y] most chips of the next segment, with replication open
    queue: LongArray  # [Y] heap of the labels of a level
    waiting: IntArray  # [S] indices of open_state that a later label may improve
    level_end: LongArray  # [D + 2] labels up to and including each level; zero for levels not reached
    chain: IntArray  # [D + 1] states of the chain found
    context: CodeArray  # [D + 1, U] see :mod:`go_opt.solver.certify.states.splits`
    fits: FitScratch


def chain_search(graph: UnitGraph, capacity: int) -> ChainSearch:
    """Returns scratch for ``capacity`` states."""
    most_labels = 8 * capacity
    return ChainSearch(
        by_low=np.zeros(capacity, np.int32),
        num_sorted=np.zeros(2, np.int64),
        near=np.zeros(capacity, np.int32),
        num_near=np.zeros(2, np.int64),
        open_state=np.zeros(capacity, np.int32),
        floor=np.zeros(capacity, np.int64),
        low=np.zeros(capacity, np.int64),
        high=np.zeros(capacity, np.int64),
        cut=np.zeros(capacity, np.int64),
        best=np.zeros(capacity, np.int64),
        best_streamed=np.zeros(capacity, np.int64),
        least_streaming_work=np.zeros(capacity, np.int64),
        least_streaming_bytes=np.zeros(capacity, np.int64),
        best_resident=np.zeros(capacity, np.int64),
        least_streaming_resident=np.zeros(capacity, np.int64),
        low_bytes=np.zeros(capacity, np.int64),
        high_bytes=np.zeros(capacity, np.int64),
        num_labels=np.zeros(capacity, np.int32),
        label=np.zeros(capacity, np.int64),
        label_state=np.zeros(most_labels, np.int32),
        label_work=np.zeros(most_labels, np.int64),
        label_reach=np.zeros(most_labels, np.int64),
        label_chips=np.zeros(most_labels, np.int64),
        label_before=np.zeros(most_labels, np.int64),
        label_older=np.zeros(most_labels, np.int64),
        label_streamed=np.zeros(most_labels, np.int64),
        label_resident=np.zeros(most_labels, np.int64),
        queue=np.zeros(most_labels, np.int64),
        waiting=np.zeros(capacity, np.int32),
        level_end=np.zeros(graph.num_chips + 2, np.int64),
        chain=np.zeros(graph.num_chips + 1, np.int32),
        context=np.zeros((graph.num_chips + 1, graph.num_units), np.int8),
        fits=fit_scratch(graph, capacity),
    )


@uncounted_inner
def open_states(
    graph: UnitGraph, pool: StatePool, search: ChainSearch, states: IntArray, size: int, ticks: int
) -> int:
    """Writes those of ``states`` that a chain within ``ticks`` may use; returns their number."""
    is_full = graph.is_full
    shed = int64(0)
    if is_full:
        shed = most_shed_bytes(graph, spare_bytes(graph.chip, ticks))
    num_open = 0
    for i in range(size):
        state = states[i]
        if pool.cut[state] <= ticks:
            search.open_state[num_open] = state
            least = pool.low[state]
            most = pool.high[state]
            cut = int64(0) if graph.overlap else pool.cut[state]
            if not graph.replicates:
                if not graph.overlap:
                    least = max(least, pool.need[state] - cut)
                    most = min(most, pool.give[state] + cut)
                # Not with replication: a stage of any size may come next and do any work.
                for step in range(pool.pulled_low.shape[1]):
                    least = max(least, pool.pulled_low[state, step] - (step + 1) * ticks + cut)
                    most = min(most, pool.pushed_high[state, step] + (step + 1) * ticks)
            if least > most:
                continue
            search.floor[num_open] = pool.low[state]
            search.low[num_open] = least
            search.high[num_open] = most
            search.cut[num_open] = cut
            search.best[num_open] = NEVER
            search.best_streamed[num_open] = MOST_STREAMED
            search.least_streaming_work[num_open] = NEVER
            search.least_streaming_bytes[num_open] = MOST_STREAMED
            search.label[num_open] = NEVER
            search.best_resident[num_open] = NEVER
            search.least_streaming_resident[num_open] = NEVER
            search.low_bytes[num_open] = 0
            search.high_bytes[num_open] = 0
            if is_full:
                weigh(graph, pool, search.fits, state)
                search.low_bytes[num_open] = search.fits.low_bytes[state] - shed
                search.high_bytes[num_open] = search.fits.high_bytes[state]
            num_open += 1
    return num_open


@uncounted_inner
def keep_open(search: ChainSearch, num_open: int, least: int, least_resident: int, shares_link: bool) -> int:
    """Drops states that labels cannot improve or that are too small from this level on."""
    kept = 0
    for i in range(num_open):
        is_best = search.best[i] >= search.high[i]
        is_large = search.high[i] >= least
        if shares_link:
            is_best &= search.best_streamed[i] == 0 and search.best_resident[i] >= search.high_bytes[i]
            is_large &= search.high_bytes[i] >= least_resident
        if not is_best and is_large:
            search.open_state[kept] = search.open_state[i]
            search.floor[kept] = search.floor[i]
            search.low[kept] = search.low[i]
            search.high[kept] = search.high[i]
            search.cut[kept] = search.cut[i]
            search.best[kept] = search.best[i]
            search.best_streamed[kept] = search.best_streamed[i]
            search.least_streaming_work[kept] = search.least_streaming_work[i]
            search.least_streaming_bytes[kept] = search.least_streaming_bytes[i]
            if shares_link:
                search.best_resident[kept] = search.best_resident[i]
                search.least_streaming_resident[kept] = search.least_streaming_resident[i]
                search.low_bytes[kept] = search.low_bytes[i]
                search.high_bytes[kept] = search.high_bytes[i]
            search.label[kept] = search.label[i]
            kept += 1
    return kept


@uncounted_inner
def sort_by_low(pool: StatePool, states: IntArray, sizes: LongArray, dead_ticks: int) -> None:
    """Adds new states, drops dead ones, and sorts by least work (insertion sort, nearly sorted)."""
    size = 0
    for i in range(sizes[0] + pool.num_states[0] - sizes[1]):
        state = states[i] if i < sizes[0] else int32(sizes[1] + i - sizes[0])
        if pool.cut[state] > dead_ticks:
            continue
        low = pool.low[state]
        j = size
        while j > 0 and pool.low[states[j - 1]] > low:
            states[j] = states[j - 1]
            j -= 1
        states[j] = state
        size += 1
    sizes[0] = size
    sizes[1] = pool.num_states[0]


@uncounted_inner
def walk_back(search: ChainSearch, label: int) -> int:
    """Writes the chain that ends with ``label``; returns its length."""
    length = 0
    while label >= 0:
        search.chain[length] = search.label_state[label]
        label = search.label_before[label]
        length += 1
    for i in range(length // 2):
        j = length - 1 - i
        state = search.chain[i]
        search.chain[i] = search.chain[j]
        search.chain[j] = state
    return length


@uncounted_inner
def adds_nothing(search: ChainSearch, i: int, done: int, streamed: int, resident: int) -> bool:
    """Returns whether a noted label does as much work, streams no more and has as many resident bytes."""
    return (
        done <= search.best[i] and streamed >= search.best_streamed[i] and resident <= search.best_resident[i]
    ) or (
        done <= search.least_streaming_work[i]
        and streamed >= search.least_streaming_bytes[i]
        and resident <= search.least_streaming_resident[i]
    )


@uncounted_inner
def note_label(
    search: ChainSearch, i: int, done: int, streamed: int, resident: int, shares_link: bool
) -> None:
    """Notes a new label if it does the most work, or streams the least."""
    if done > search.best[i] or (
        done == search.best[i]
        and (
            streamed < search.best_streamed[i]
            or (shares_link and streamed == search.best_streamed[i] and resident > search.best_resident[i])
        )
    ):
        search.best[i] = done
        search.best_streamed[i] = streamed
        if shares_link:
            search.best_resident[i] = resident
    if shares_link and (
        streamed < search.least_streaming_bytes[i]
        or (
            streamed == search.least_streaming_bytes[i]
            and (
                resident > search.least_streaming_resident[i]
                or (resident == search.least_streaming_resident[i] and done > search.least_streaming_work[i])
            )
        )
    ):
        search.least_streaming_work[i] = done
        search.least_streaming_bytes[i] = streamed
        search.least_streaming_resident[i] = resident
