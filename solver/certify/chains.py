"""The search of the refinement: chains of states within an interval, split until one is a plan.

For a candidate interval ``T``, a dynamic program over at most D levels checks whether the states
contain a chain from nothing to everything in which every segment takes at most ``T``. Each
state on a level keeps the most work ``x`` done so far:

    x(s') = max over s of min(high(s'), x(s) + T - extra(s, s')),  if it is at least low(s'),

where s and s' are compatible: s' forces out no unit that s forces in (under the adjacent rule:
nor readers of these units, nor the readers' ancestors). ``extra`` is the time of the segment
besides its work: copies of tensors that certainly pass and, without overlap, both cuts and
inputs. (Without overlap, a segment from I to J takes ``work(J) + cut(J)`` minus
``work(I) - cut(I)``. Then x bounds ``work(I) - cut(I) + cut(s)``, and is clipped to the extremes of both.)
If there is no chain, every placement takes longer than ``T``. A chain of single down-sets is a
placement. Any other chain has its states split, and the search repeats.

The search first tries the states that the last chains were split into, because these must be
refuted in any case. Only then does it try all states.

With replication open, levels still count chips, and a segment may take several. A label stays
for all later levels, and each level gives its next segment ``T`` more. Without overlap, the
entering traffic is subtracted: chip q of r carries ``((2 r - 2 q + 1) in + (2 q - 1) out) / r`` of
the borders' traffic, ``in + out`` on average, so r chips do at most ``r (T - in) - out`` of work.
Segments that certainly do not fit a chip's memory are excluded.
"""

from __future__ import annotations

from typing import Annotated, Final, NamedTuple

from go_opt.common.arrays import CodeArray, IntArray, LongArray, allocated
from go_opt.common.compiling import int32, int64, uncounted, uncounted_inner
from go_opt.env.kernels.plain_loops import heap_pop, heap_push
from go_opt.solver.certify.fits import FitScratch, fit_scratch, known_streamed, most_shed_bytes, weigh
from go_opt.solver.certify.problem import NEVER_FITS, UnitGraph, forwarded_bytes, spare_bytes
from go_opt.solver.certify.states import EVERYTHING, NOTHING, StatePool
from go_opt.solver.problem.forwarding_mode import ADJACENT, RELAYED

NEVER: Final = -1
MOST_STREAMED: Final = 2**61


class ChainSearch(NamedTuple):
    """Scratch of the dynamic program. Axes: ``S`` states, ``Y`` labels, ``D`` chips, ``U`` units."""

    by_low: Annotated[IntArray, "S"]  # states by least work, without dead ones
    num_sorted: Annotated[LongArray, "2"]  # entries of by_low; number of pool states already added
    near: Annotated[IntArray, "S"]  # states of the last chains of find_chain, and states split from them
    num_near: Annotated[LongArray, "2"]  # entries of near; number of pool states already added
    open_state: Annotated[IntArray, "S"]  # by_low or near without states that labels cannot improve
    floor: Annotated[LongArray, "S"]  # least work of open_state, ascending
    low: Annotated[LongArray, "S"]  # least work, given the forced work on other chips
    high: Annotated[LongArray, "S"]  # most work, given the forced work on other chips
    cut: Annotated[LongArray, "S"]
    best: Annotated[LongArray, "S"]  # most work on any level so far …
    best_streamed: Annotated[LongArray, "S"]  # … streamed bytes of its label …
    best_resident: Annotated[LongArray, "S"]  # … and its resident weight bytes
    least_streaming_work: Annotated[LongArray, "S"]  # work of the label that streams least …
    least_streaming_bytes: Annotated[LongArray, "S"]  # … its streamed bytes …
    least_streaming_resident: Annotated[LongArray, "S"]  # … and its resident weight bytes
    low_bytes: Annotated[LongArray, "S"]  # resident weight bytes required; with fewer, too many stream
    high_bytes: Annotated[LongArray, "S"]  # most weight bytes of all chips so far
    num_labels: Annotated[IntArray, "S"]  # on this level
    label: Annotated[LongArray, "S"]  # the last label
    label_state: Annotated[IntArray, "Y"]
    label_work: Annotated[LongArray, "Y"]
    label_reach: Annotated[LongArray, "Y"]  # work including the next segment, minus the cut
    label_before: Annotated[LongArray, "Y"]  # previous label of the chain
    label_older: Annotated[LongArray, "Y"]  # previous label of the same state
    label_streamed: Annotated[LongArray, "Y"]  # bytes of all segments so far, if they share the host's link
    label_resident: Annotated[LongArray, "Y"]  # most resident weight bytes of these segments
    label_chips: Annotated[LongArray, "Y"]  # most chips of the next segment, with replication open
    queue: Annotated[LongArray, "Y"]  # heap of the labels of a level
    waiting: Annotated[IntArray, "S"]  # indices of open_state that a later label may improve
    level_end: Annotated[LongArray, "D + 2"]  # labels up to each level; zero for those not reached
    chain: Annotated[IntArray, "D + 1"]  # states of the chain found
    context: Annotated[CodeArray, "D + 1, U"]  # see :mod:`go_opt.solver.certify.states`
    fits: FitScratch


def chain_search(graph: UnitGraph, capacity: int) -> ChainSearch:
    """Returns scratch for ``capacity`` states."""
    return allocated(
        ChainSearch,
        {"S": capacity, "Y": 8 * capacity, "U": graph.num_units}
        | {"D + 1": graph.num_chips + 1, "D + 2": graph.num_chips + 2},
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


@uncounted_inner
def may_follow(
    before: LongArray, outside: LongArray, state: int, after: int, first_word: int, last_word: int
) -> bool:
    """Returns whether some down-set of ``after`` may follow some down-set of ``state``.

    The arguments are arrays, because passing the pool costs more than the test.
    """
    for word in range(first_word, last_word + 1):  # noqa: SIM110 - compiled to a loop of its own
        if before[state, word] & outside[after, word]:
            return False
    return True


@uncounted_inner
def extra_ticks(graph: UnitGraph, pool: StatePool, state: int, after: int) -> int:
    """Returns the least ticks of any segment between the two for copies and for shared inputs."""
    extra = int64(0)
    if graph.forwarding == RELAYED:
        for word in range(pool.crosses.shape[1]):
            passed = pool.crosses[state, word] & pool.ends[after, word]
            if passed != 0:
                for bit in range(64):
                    if (passed >> bit) & 1:
                        extra += graph.relay_ticks[64 * word + bit]
    for i in range(len(graph.input_ticks)):
        begin = graph.input_reader_ptr[i]
        end = graph.input_reader_ptr[i + 1]
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


GONE: Final = -(2**62)  # reach of a label replaced by a later label of its state
FURTHEST: Final = 2**61
# Labels per state and level that trade work for less streaming. Further labels are merged.
MOST_LABELS: Final = 2
OUT_OF_ROOM: Final = -1
NEAR_SHARE: Final = 4  # `near` is unused beyond 1 / NEAR_SHARE of all states


@uncounted
def find_chain(graph: UnitGraph, pool: StatePool, search: ChainSearch, ticks: int, dead_ticks: int) -> int:
    """Finds a chain within ``ticks``; returns its length, 0 for none, or OUT_OF_ROOM.

    The chain has the fewest chips. States whose cut exceeds ``dead_ticks`` are dropped for good.
    """
    sort_by_low(pool, search.by_low, search.num_sorted, dead_ticks)
    num_open = open_states(graph, pool, search, search.by_low, search.num_sorted[0], ticks)
    length = _chain(graph, pool, search, ticks, num_open)
    num_near = search.num_near[0]
    if num_near * NEAR_SHARE > pool.num_states[0]:
        num_near = 0
    for i in range(length):
        is_new = True
        for j in range(num_near):
            is_new &= search.near[j] != search.chain[i]
        if is_new:
            search.near[num_near] = search.chain[i]
            num_near += 1
    search.num_near[0], search.num_near[1] = num_near, pool.num_states[0]
    return length


@uncounted
def find_near(graph: UnitGraph, pool: StatePool, search: ChainSearch, ticks: int, dead_ticks: int) -> int:
    """Like :func:`find_chain`, but only among the states that its last chains were split into.

    Returns 0 without a search once there are too many of these states.
    """
    if search.num_near[0] * NEAR_SHARE > pool.num_states[0]:
        return 0
    sort_by_low(pool, search.near, search.num_near, dead_ticks)
    num_open = open_states(graph, pool, search, search.near, search.num_near[0], ticks)
    return _chain(graph, pool, search, ticks, num_open)


@uncounted_inner
def _chain(graph: UnitGraph, pool: StatePool, search: ChainSearch, ticks: int, num_open: int) -> int:
    """Finds a chain of open states; returns its length, 0 for none, or OUT_OF_ROOM."""
    shares_link, is_full = _shares_link(graph), graph.is_full
    shed = int64(0)
    if is_full:
        shed = most_shed_bytes(graph, spare_bytes(graph.chip, ticks))
    search.label_state[0] = NOTHING
    search.label_work[0] = 0
    search.label_streamed[0] = 0
    search.label_resident[0] = 0
    search.label_chips[0] = 1
    search.label_before[0] = NEVER
    for level in range(len(search.level_end)):
        search.level_end[level] = 0
    search.level_end[0] = 1
    search.label_reach[0] = ticks
    begin, end = int64(0), int64(1)
    for level in range(graph.num_chips):
        # With less work done by this level, the remaining chips cannot finish.
        chips_left = graph.num_chips - level - 1
        least = pool.high[EVERYTHING] - ticks * chips_left
        least_resident = int64(0)
        if is_full:
            all_bytes = search.fits.high_bytes[EVERYTHING]
            least_resident = all_bytes - shed - graph.chip.sram_bytes * chips_left
        num_open = keep_open(search, num_open, least, least_resident, shares_link)
        num_labels = _extend(graph, pool, search, ticks, least, least_resident, num_open, begin, end)
        if num_labels < 0:
            return OUT_OF_ROOM
        if search.label_state[num_labels - 1] == EVERYTHING and num_labels > end:
            return walk_back(search, num_labels - 1)
        if graph.replicates:
            _carry(graph, pool, search, ticks, num_open, end, num_labels)
        elif num_labels == end:
            break
        begin = end
        end = num_labels
        search.level_end[level + 1] = end
    return 0


@uncounted_inner
def _shares_link(graph: UnitGraph) -> bool:
    """Returns whether streamed bytes of chips add up; those of stages count one by one."""
    return graph.chip.stream_bytes_per_tick > 0.0 and not graph.replicates


@uncounted_inner
def _carry(
    graph: UnitGraph,
    pool: StatePool,
    search: ChainSearch,
    ticks: int,
    num_open: int,
    end: int,
    num_labels: int,
) -> None:
    """Lets the segment after each label take one more chip; labels from ``end`` on are new."""
    for label in range(end, num_labels):
        if search.label_older[label] >= 0:
            search.label_reach[search.label_older[label]] = GONE
    for label in range(end):
        if search.label_reach[label] != GONE:
            enters = int64(0) if graph.overlap else pool.cut[search.label_state[label]]
            search.label_reach[label] = min(search.label_reach[label] + ticks - enters, FURTHEST)
            search.label_chips[label] += 1
    for i in range(num_open):
        if search.label[i] >= 0:
            search.best[i] = min(search.best[i] + ticks - search.cut[i], FURTHEST)


@uncounted_inner
def _extend(
    graph: UnitGraph,
    pool: StatePool,
    search: ChainSearch,
    ticks: int,
    least: int,
    least_resident: int,
    num_open: int,
    begin: int,
    end: int,
) -> int:
    """Adds the labels of the next level after labels ``begin`` … ``end``; returns the number of labels.

    Labels are expanded in order of falling reach, so the first to reach a state at no extra cost
    is the best. States stay on the list if they are incompatible or need extra ticks or streaming.
    """
    before = pool.pulled if graph.forwarding == ADJACENT else pool.inside
    takes_extra = graph.forwarding == RELAYED or len(graph.input_ticks) > 0
    shares_link, chip = _shares_link(graph), graph.chip
    spare, a_chip = spare_bytes(chip, ticks), forwarded_bytes(chip, ticks)
    ticks_per_byte = chip.stream_ticks_per_byte * (1.0 - 1e-15)
    queued = int64(0)
    for label in range(0 if graph.replicates else begin, end):
        if search.label_reach[label] != GONE:
            queued = heap_push(search.queue, queued, label, search.label_reach)
    waiting = num_open
    for i in range(num_open):
        search.waiting[i] = i
        search.num_labels[i] = 0
    num_labels = end
    while queued > 0 and waiting > 0:
        label = search.queue[0]
        queued = heap_pop(search.queue, queued, search.label_reach)
        state = search.label_state[label]
        last = pool.last_inside[state]
        low = pool.low[state]
        reach = search.label_reach[label]
        before_streamed = search.label_streamed[label] if shares_link else int64(0)
        before_resident = search.label_resident[label] if shares_link else int64(0)
        kept = 0
        for w in range(waiting):
            i = search.waiting[w]
            if search.floor[i] > reach:
                break
            done = min(search.high[i], reach - search.cut[i])
            if done < search.low[i] or done < least:
                continue
            if shares_link and search.high[i] < low:
                search.waiting[kept] = i
                kept += 1
                continue
            resident = int64(0)
            if graph.is_full:
                resident = min(before_resident + chip.sram_bytes, search.high_bytes[i])
            is_no_better = done <= search.best[i] and before_streamed >= search.best_streamed[i]
            if shares_link:
                is_no_better = adds_nothing(search, i, done, before_streamed, resident)
            if is_no_better:
                # Later labels may stream less, or have more resident weights.
                if before_streamed > 0 or (shares_link and resident < search.high_bytes[i]):
                    search.waiting[kept] = i
                    kept += 1
                continue
            after = search.open_state[i]
            follows = may_follow(before, pool.outside, state, after, pool.first_outside[after], last)
            streamed = int64(0)
            if graph.counts_memory and follows:
                streamed, stays = known_streamed(graph, pool, search.fits, state, after)
                may_stream = spare - before_streamed
                if graph.replicates:
                    may_stream += (search.label_chips[label] - 1) * a_chip
                follows = streamed != NEVER_FITS and streamed <= may_stream
                if graph.is_full:
                    resident = min(before_resident + stays, resident)
                    follows &= resident >= search.low_bytes[i] and resident >= least_resident
            so_far = before_streamed + streamed if shares_link else int64(0)
            extra = extra_ticks(graph, pool, state, after) if follows and takes_extra else int64(0)
            if follows and streamed > 0:
                extra += int64(streamed * ticks_per_byte)
            if extra > 0 or not follows or (shares_link and (so_far > 0 or resident < search.high_bytes[i])):
                search.waiting[kept] = i
                kept += 1
                done = min(search.high[i], reach - search.cut[i] - extra)
                if not follows or done < search.low[i] or done < least:
                    continue
                is_no_better = done <= search.best[i] and so_far >= search.best_streamed[i]
                if shares_link:
                    is_no_better = adds_nothing(search, i, done, so_far, resident)
                if is_no_better:
                    continue
            is_another = shares_link and search.num_labels[i] < MOST_LABELS
            if search.label[i] < end or is_another:
                if num_labels == len(search.label_work):
                    return OUT_OF_ROOM
                search.label_older[num_labels] = search.label[i]
                # The new label replaces the older one, so it keeps the older one's chips.
                older_chips = search.label_chips[search.label[i]] if search.label[i] >= 0 else int64(0)
                search.label_chips[num_labels] = older_chips + 1
                search.label[i] = num_labels
                search.num_labels[i] += 1
                search.label_state[num_labels] = after
                search.label_work[num_labels] = NEVER
                search.label_streamed[num_labels] = so_far
                search.label_resident[num_labels] = resident
                num_labels += 1
            at = search.label[i]
            if shares_link:
                done = max(done, search.label_work[at])
                so_far = min(so_far, search.label_streamed[at])
                resident = max(resident, search.label_resident[at])
                search.label_streamed[at] = so_far
                search.label_resident[at] = resident
            search.label_work[at] = done
            search.label_before[at] = label
            search.label_reach[at] = done + ticks - search.cut[i]
            note_label(search, i, done, so_far, resident, shares_link)
            if after == EVERYTHING:
                return num_labels
        waiting = kept
    return num_labels
