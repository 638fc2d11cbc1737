"""The search of the refinement: chains of states within an interval, split until one is real.

For a candidate interval ``T`` a dynamic program over at most D levels asks whether the states
hold a chain from nothing to everything of which every segment takes at most ``T``. Each
state on a level keeps the most work ``x`` done so far:

    x(s') = max over s of min(high(s'), x(s) + T - extra(s, s')),  if it is at least low(s'),

where s and s' are compatible: what s forces in, s' does not force out (under the adjacent
rule: what s forces in with its readers and their ancestors). ``extra`` is what the segment
takes beside its work: copies of tensors that certainly pass and, where transfers do not
overlap, both cuts and inputs. No chain: every placement takes longer than ``T``. A chain of
single down-sets: a placement. Else its states are split, and so on.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

from go_opt.env.heap import heap_pop, heap_push
from go_opt.solver.passing import ADJACENT, RELAYED
from go_opt.solver.refinement_problem import UnitGraph
from go_opt.solver.refinement_states import EVERYTHING, NOTHING

NEVER: Final = -1
OUT_OF_ROOM: Final = -1


class ChainSearch(NamedTuple):
    """Scratch of the dynamic program. Axes: ``S`` states, ``Y`` labels, ``D`` chips, ``U`` units."""

    by_low: NDArray[np.int32]  # [S] states by least work, dead ones left out
    num_sorted: NDArray[np.int64]  # [2] entries of by_low; states of the pool looked at
    open_state: NDArray[np.int32]  # [S] by_low without those that no label can improve any more
    floor: NDArray[np.int64]  # [S] of open_state: least work, ascending
    low: NDArray[np.int64]  # [S] least work with what is forced on other chips
    high: NDArray[np.int64]  # [S] most
    cut: NDArray[np.int64]  # [S]
    best: NDArray[np.int64]  # [S] most work on any level so far
    label: NDArray[np.int64]  # [S] the last label
    label_state: NDArray[np.int32]  # [Y]
    label_work: NDArray[np.int64]  # [Y]
    label_reach: NDArray[np.int64]  # [Y] work, the next segment's included, less the cut
    label_before: NDArray[np.int64]  # [Y]
    queue: NDArray[np.int64]  # [Y] heap of the labels of a level
    waiting: NDArray[np.int32]  # [S] places of open_state that may be reached better
    level_end: NDArray[np.int64]  # [D + 2] labels up to and with each level; zero for levels not reached
    chain: NDArray[np.int32]  # [D + 1] states found
    context: NDArray[np.int8]  # [D + 1, U] see :mod:`go_opt.solver.refinement_splits`


def chain_search(graph: UnitGraph, capacity: int) -> ChainSearch:
    """Room for ``capacity`` states."""
    most_labels = 8 * capacity
    return ChainSearch(
        by_low=np.zeros(capacity, np.int32),
        num_sorted=np.zeros(2, np.int64),
        open_state=np.zeros(capacity, np.int32),
        floor=np.zeros(capacity, np.int64),
        low=np.zeros(capacity, np.int64),
        high=np.zeros(capacity, np.int64),
        cut=np.zeros(capacity, np.int64),
        best=np.zeros(capacity, np.int64),
        label=np.zeros(capacity, np.int64),
        label_state=np.zeros(most_labels, np.int32),
        label_work=np.zeros(most_labels, np.int64),
        label_reach=np.zeros(most_labels, np.int64),
        label_before=np.zeros(most_labels, np.int64),
        queue=np.zeros(most_labels, np.int64),
        waiting=np.zeros(capacity, np.int32),
        level_end=np.zeros(graph.num_chips + 2, np.int64),
        chain=np.zeros(graph.num_chips + 1, np.int32),
        context=np.zeros((graph.num_chips + 1, graph.num_units), np.int8),
    )


@njit(cache=True, nogil=True)
def find_chain(graph, pool, search, ticks, dead_ticks):
    """A chain within ``ticks`` with the fewest segments: its length, 0 for none, or OUT_OF_ROOM.

    States whose cut takes more than ``dead_ticks`` are forgotten for good.
    """
    _sort_by_low(pool, search, dead_ticks)
    num_open = 0
    for i in range(search.num_sorted[0]):
        state = search.by_low[i]
        if pool.cut[state] <= ticks:
            search.open_state[num_open] = state
            least = pool.low[state]
            most = pool.high[state]
            for step in range(pool.pulled_low.shape[1]):
                least = max(least, pool.pulled_low[state, step] - (step + 1) * ticks)
                most = min(most, pool.pushed_high[state, step] + (step + 1) * ticks)
            if least > most:
                continue
            search.floor[num_open] = pool.low[state]
            search.low[num_open] = least
            search.high[num_open] = most
            search.cut[num_open] = 0 if graph.overlap else pool.cut[state]
            search.best[num_open] = NEVER
            search.label[num_open] = NEVER
            num_open += 1
    search.label_state[0] = NOTHING
    search.label_work[0] = 0
    search.label_before[0] = NEVER
    for level in range(len(search.level_end)):
        search.level_end[level] = 0
    search.level_end[0] = 1
    search.label_reach[0] = ticks
    begin = 0
    end = 1
    for level in range(graph.num_chips):
        # What is not done by then cannot be done on the chips left.
        least = pool.high[EVERYTHING] - ticks * (graph.num_chips - level - 1)
        num_open = _keep_open(search, num_open, least)
        num_labels = _extend(graph, pool, search, ticks, least, num_open, begin, end)
        if num_labels < 0:
            return OUT_OF_ROOM
        if search.label_state[num_labels - 1] == EVERYTHING and num_labels > end:
            return _walk_back(search, num_labels - 1)
        begin = end
        end = num_labels
        if begin == end:
            break
        search.level_end[level + 1] = end
    return 0


@njit(cache=True, nogil=True)
def _extend(graph, pool, search, ticks, least, num_open, begin, end):
    """Labels of the next level behind labels ``begin`` … ``end``: how many there are then.

    Labels that reach furthest come first, so what one of them reaches no later one reaches
    better, and only states that do not go with it, or take extra, stay on the list.
    """
    before = pool.pulled if graph.passing == ADJACENT else pool.inside
    takes_extra = graph.passing == RELAYED or len(graph.input_ticks) > 0
    queued = 0
    for label in range(begin, end):
        queued = heap_push(search.queue, queued, label, search.label_reach)
    waiting = num_open
    for i in range(num_open):
        search.waiting[i] = i
    num_labels = end
    while queued > 0 and waiting > 0:
        label = search.queue[0]
        queued = heap_pop(search.queue, queued, search.label_reach)
        state = search.label_state[label]
        last = pool.last_inside[state]
        reach = search.label_reach[label]
        kept = 0
        for w in range(waiting):
            i = search.waiting[w]
            if search.floor[i] > reach:
                break
            done = min(search.high[i], reach - search.cut[i])
            if done <= search.best[i] or done < search.low[i] or done < least:
                continue
            after = search.open_state[i]
            may_follow = _may_follow(before, pool.outside, state, after, pool.first_outside[after], last)
            extra = _extra_ticks(graph, pool, state, after) if may_follow and takes_extra else np.int64(0)
            if extra > 0 or not may_follow:
                search.waiting[kept] = i
                kept += 1
                done = min(search.high[i], reach - search.cut[i] - extra)
                if not may_follow or done <= search.best[i] or done < search.low[i] or done < least:
                    continue
            if search.label[i] < end:
                if num_labels == len(search.label_work):
                    return OUT_OF_ROOM
                search.label[i] = num_labels
                search.label_state[num_labels] = after
                num_labels += 1
            at = search.label[i]
            search.label_work[at] = done
            search.label_before[at] = label
            search.label_reach[at] = done + ticks - search.cut[i]
            search.best[i] = done
            if after == EVERYTHING:
                return num_labels
        waiting = kept
    return num_labels


@njit(cache=True, nogil=True)
def _keep_open(search, num_open, least):
    """Drop states that are done as far as can be, and those too small from here on."""
    kept = 0
    for i in range(num_open):
        if search.best[i] < search.high[i] and search.high[i] >= least:
            search.open_state[kept] = search.open_state[i]
            search.floor[kept] = search.floor[i]
            search.low[kept] = search.low[i]
            search.high[kept] = search.high[i]
            search.cut[kept] = search.cut[i]
            search.best[kept] = search.best[i]
            search.label[kept] = search.label[i]
            kept += 1
    return kept


@njit(cache=True, nogil=True)
def _walk_back(search, label):
    """Write the chain that ends with ``label``; its length."""
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


@njit(cache=True, nogil=True)
def _sort_by_low(pool, search, dead_ticks):
    """Take in new states, drop dead ones, and sort what is nearly sorted."""
    size = 0
    for i in range(search.num_sorted[0] + pool.num_states[0] - search.num_sorted[1]):
        if i < search.num_sorted[0]:
            state = search.by_low[i]
        else:
            state = np.int32(search.num_sorted[1] + i - search.num_sorted[0])
        if pool.cut[state] > dead_ticks:
            continue
        low = pool.low[state]
        j = size
        while j > 0 and pool.low[search.by_low[j - 1]] > low:
            search.by_low[j] = search.by_low[j - 1]
            j -= 1
        search.by_low[j] = state
        size += 1
    search.num_sorted[0] = size
    search.num_sorted[1] = pool.num_states[0]


@njit(cache=True, nogil=True)
def _may_follow(before, outside, state, after, first_word, last_word):
    """Whether some down-set of ``after`` may come next to some one of ``state``.

    It takes arrays, not the pool: passing the pool costs more than the test.
    """
    for word in range(first_word, last_word + 1):  # noqa: SIM110 - compiled to a loop of its own
        if before[state, word] & outside[after, word]:
            return False
    return True


@njit(cache=True, nogil=True)
def _extra_ticks(graph, pool, state, after):
    """What any segment between the two surely takes for copies and for inputs read again."""
    extra = np.int64(0)
    if graph.passing == RELAYED:
        for word in range(pool.crosses.shape[1]):
            passed = pool.crosses[state, word] & pool.ends[after, word]
            if passed != 0:
                for bit in range(64):
                    if (passed >> bit) & 1:
                        extra += graph.relay_ticks[64 * word + bit]
    for i in range(len(graph.input_ticks)):
        begin = graph.input_ptr[i]
        end = graph.input_ptr[i + 1]
        is_read = False
        may_read = 0
        for r in range(begin, end):
            unit = graph.input_reader[r]
            word = unit >> 6
            bit = unit & 63
            is_done = (pool.inside[state, word] >> bit) & 1
            is_later = (pool.outside[after, word] >> bit) & 1
            if is_done or is_later:
                continue
            may_read += 1
            is_read |= ((pool.outside[state, word] >> bit) & 1) and ((pool.inside[after, word] >> bit) & 1)
        if is_read:
            extra += graph.input_ticks[i] - may_read * (graph.input_ticks[i] // (end - begin))
    return extra
