"""Lower bounds of the makespan and of a sample's latency, sound for every decision a request leaves open.

An op's *head* is the least time before its kernel starts, its *tail* the least time after its kernel ends.
Heads and tails follow from paths, on which ops that may share a kernel share its overhead and start
together. All ops with a head of at least a and a tail of at least b run between a and the makespan minus b:
all chips share their work (energetic reasoning; Baptiste, Le Pape, Nuijten, "Constraint-based scheduling",
2001, chapter 3). Transfers between chips count from forks to joins.

*Forks and joins*: the least time between the end of one op and the start of another, transfers included. Ops
that an op x reaches and that reach an op y run in between. Only the chip of x may begin at once, and only
the chip of y may go on to the end: every other chip first waits for a tensor and finally sends one. A time
is too short if some op can end in time on no chip. It is also too short if the ops that can end in time only
on some chips have more work than these chips have time. This is the join bound of Fernandez and Bussell,
"Bounds on the number of processors and time for multiprocessor optimal schedules", IEEE Trans. Comput. 1973,
with transfers. Refuting times makes it sharper (Klein and Scholl, "Computing lower bounds by destructive
improvement", EJOR 1999).

*Gates*, where results go to no lower chip, are ops that are never split, each behind the one before. What
lies between two gates in every plan runs on the chips from that of the first to that of the second: n of
them share its work. Chips only rise, so the sum of n - 1 over all gates is below D. The bound is the least
sum of work / n.

Of an op that may be split, all parts are behind a gate if each reads something behind it, and before a gate
if all that they write is read before it. No kernel holds ops that count before a gate and ops that count
behind it: a gate that is not a matrix op ends its kernel, and behind a matrix op only others count.
"""

from __future__ import annotations

import heapq
from typing import Final, NamedTuple

import numpy as np

from go_opt.common.arrays import BoolArray, FloatArray, IntArray, LongArray, RecordArray, csr, record
from go_opt.common.compiling import compiled, int64, uncounted_inner
from go_opt.env.cost.tables import CostTables
from go_opt.env.kernels.fusion import ALONE, MATRIX_LOOP, REDUCTION, LoopRoles, may_share
from go_opt.env.model.makespan import workspace_of
from go_opt.model.graph import INPUT, NO_PRODUCER, Graph
from go_opt.solver.certify.bounds import Bound, OpFloors, host_seconds, op_floors

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


def gated_bound(
    graph: Graph, tables: CostTables, roles: LoopRoles, floors: OpFloors, is_split: BoolArray
) -> Bound:
    """The least latency of a sample on chips along a ring or chain; ``is_split`` [N]: may be split."""
    gates, behind = _gates(graph, roles, is_split)
    between = _before(graph, tables, is_split, gates) == behind + 1
    between[gates] = False
    # Kernels hold at most one matrix op, and end with a reduction.
    is_apart = (roles.role == MATRIX_LOOP) | (roles.role == ALONE)
    is_behind_matrix = np.append(False, roles.role[gates] == MATRIX_LOOP)  # [W] of windows between gates
    ends_apart = np.append(is_apart[gates], False)
    between &= is_apart | ~is_behind_matrix[behind + 1]
    gate_s = np.append(floors.op_s[gates], 0.0)
    gate_s[is_behind_matrix & ~ends_apart] = 0.0  # one kernel may hold both gates

    def work_s(counts: BoolArray) -> FloatArray:
        """[W] least seconds of the kernels of these ops in each window."""
        found = np.zeros(len(gate_s))
        for window in np.unique(behind[counts] + 1).tolist():
            ops = np.flatnonzero(counts & (behind + 1 == window))
            sums = [np.bincount(floors.loop[ops], weights=row[ops]) for row in floors.parts]
            found[window] = floors.work_s(np.array(sums))
        return found

    all_s, before_gate_s = work_s(between), work_s(between & is_apart & ends_apart[behind + 1])
    seconds = _least_sum_s(all_s, before_gate_s, gate_s, tables.num_chips)
    return Bound(seconds, f"{len(gates)} ops follow one another, and chips share what lies between two")


def _least_sum_s(work_s: FloatArray, before_gate_s: FloatArray, gate_s: FloatArray, num_chips: int) -> float:
    """The least seconds of all windows: one more chip goes where it saves most, as each saves less."""

    def seconds(window: int, chips: int) -> float:
        return max(work_s[window] / chips, before_gate_s[window] / chips + gate_s[window])

    windows = range(len(work_s))
    saves = [(seconds(window, 2) - seconds(window, 1), window, 2) for window in windows]
    heapq.heapify(saves)
    total_s = sum(seconds(window, 1) for window in windows)
    for _ in range(num_chips - 1):
        saved_s, window, chips = saves[0]
        total_s += saved_s
        saved_s = seconds(window, chips + 1) - seconds(window, chips)
        heapq.heapreplace(saves, (saved_s, window, chips + 1))
    return float(total_s)


def _gates(graph: Graph, roles: LoopRoles, is_split: BoolArray) -> tuple[LongArray, LongArray]:
    """The longest chain of gates, and [N] the last one that all parts of an op are behind; -1: none."""
    may_be_gate = ~is_split & np.isin(roles.role, (ALONE, MATRIX_LOOP, REDUCTION))
    behind = [0] * graph.num_ops  # sets of possible gates, in bits
    length, last = np.zeros(graph.num_ops, np.int64), np.full(graph.num_ops, NO_PRODUCER)
    longest = np.full(
        graph.num_ops, NO_PRODUCER
    )  # the gate, of those an op is behind, with the longest chain
    for op in range(graph.num_ops):
        for k, _ in graph.reads_of(op):
            source = int(graph.tensor_producer[k])
            if source == NO_PRODUCER or (is_split[op] and not _reads_some(graph, op, k)):
                continue
            behind[op] |= behind[source] | (int(may_be_gate[source]) << source)
            ends = source if may_be_gate[source] else int(longest[source])
            if ends != NO_PRODUCER and (longest[op] == NO_PRODUCER or length[ends] > length[longest[op]]):
                longest[op] = ends
        last[op] = longest[op]
        length[op] = 1 + (length[last[op]] if last[op] != NO_PRODUCER else 0)
    chain, at = [], max(np.flatnonzero(may_be_gate).tolist(), key=length.__getitem__, default=NO_PRODUCER)
    while at != NO_PRODUCER:
        chain.append(at)
        at = int(last[at])
    gates = np.array(chain[::-1], np.int64)
    mask = sum(1 << gate for gate in chain)
    return gates, np.array([(one & mask).bit_count() - 1 for one in behind], np.int64)


def _before(graph: Graph, tables: CostTables, is_split: BoolArray, gates: LongArray) -> LongArray:
    """[N] the number of the first gate that all parts of an op are before; that of the gates: none."""
    number = {op: i for i, op in enumerate(gates.tolist())}
    before = np.full(graph.num_ops, len(gates), np.int64)
    for op in range(graph.num_ops)[::-1]:
        of_results = []
        for k in graph.outputs_of(op):
            reads = range(tables.reader_ptr[k], tables.reader_ptr[k + 1])
            sure = [r for r in reads if not is_split[op] or tables.read_bytes[r] >= tables.tensor_bytes[k]]
            readers = [int(tables.reader_op[r]) for r in sure]
            of_results.append(min((number.get(one, int(before[one])) for one in readers), default=len(gates)))
        before[op] = (max if is_split[op] else min)(of_results, default=len(gates))
    return before


def _reads_some(graph: Graph, op: int, tensor: int) -> bool:
    """Whether each part of an op reads something of a tensor: no part lies in the padding of a window."""
    known = graph.rule_of(op)
    if known is None:
        return False
    return tensor in known.operands and all(factor.kind != "window" for factor in known.rule.factors)


PAIRS: Final = 1 << 13  # most pairs of a fork and a join
GRID: Final = 48  # most heads, and most tails, that bound windows


def latency_bound(
    graph: Graph,
    tables: CostTables,
    roles: LoopRoles,
    *,
    fusion_is_open: bool,
    is_alone: bool = True,
    divisible: BoolArray | None = None,
    counts_transfers: bool = True,
    rises: bool = False,
) -> Bound:
    """A lower bound of the makespan: paths, windows and host traffic.

    Args:
      is_alone: False for the latency of a sample among others, whose bound has no host traffic.
      divisible: [N] ops that may be split, at best into one part per chip; None: no op.
      counts_transfers: False: tensors reach other chips in no time.
      rises: True: results go to no lower chip.
    """
    floors = op_floors(tables, roles, fusion_is_open=fusion_is_open, divisible=divisible)
    is_split = np.zeros(graph.num_ops, np.bool_) if divisible is None else divisible
    chips = tables.num_chips if is_split.any() else min(tables.num_chips, graph.num_ops)
    of_ops = _ops(tables, roles, floors, is_split, fusion_is_open)
    input_s, output_s = _host_seconds_by_op(tables)
    output_s[is_split] /= tables.num_chips  # each part has its own
    if graph.has_scope("model"):  # whose inputs are handed out in parts
        input_s[is_split] /= tables.num_chips
    forward, reverse = _flows(
        graph, tables, roles, of_ops, is_split, counts_transfers=counts_transfers, fuses=fusion_is_open
    )
    pairs = _pairs(forward, reverse)
    between_s = seconds_between(forward, reverse, pairs, chips)
    head_s, path_s = _heads(forward, input_s, pairs[:, 0], pairs[:, 1], between_s)
    pairs = graph.num_ops - 1 - pairs
    tail_s, _ = _heads(reverse, output_s[::-1].copy(), pairs[:, 1], pairs[:, 0], between_s)
    tail_s = tail_s[::-1].copy()
    last = int(np.argmax(path_s + tail_s))
    bounds = [
        Bound(float((path_s + tail_s)[last]), f"the critical path, on which op {graph.op_names[last]!r} is"),
        _window_bound(floors, head_s, tail_s, chips),
    ]
    if rises:
        bounds.append(gated_bound(graph, tables, roles, floors, is_split))
    if is_alone:
        host_in_s, host_out_s = host_seconds(tables)
        bounds += [
            Bound(host_in_s, "the inputs cross the host's link in"),
            Bound(host_out_s, "the outputs cross the host's link out"),
        ]
    return max(bounds, key=lambda bound: bound.seconds)


def _ops(
    tables: CostTables, roles: LoopRoles, floors: OpFloors, is_split: BoolArray, fusion_is_open: bool
) -> tuple[FloatArray, FloatArray, BoolArray]:
    """``(floor_s, path_s, is_matrix)`` of the flow, [N] each."""
    is_alone, is_matrix = roles.role == ALONE, roles.role == MATRIX_LOOP
    floor_s = path_s = floors.op_s
    if fusion_is_open:
        # A kernel lasts at least as long as the compute of its ops on the path. Only matrix ops and
        # ops that never fuse surely have an overhead that no other op of the path counts.
        compute_s = np.where(tables.can_run, tables.own_s(), np.inf).min(axis=0)
        overhead_s = float(tables.kernel_overhead_s.min())
        path_s = np.where(is_alone | tables.is_measured(), floors.op_s, compute_s + overhead_s * is_matrix)
    share = np.where(is_split, 1.0 / tables.num_chips, 1.0)
    floor_s, path_s = floor_s * share, path_s * share
    if fusion_is_open:
        # Whatever its parts are, each of those that need each other has a kernel of its own.
        launched_s = np.where(is_split & ~is_alone & ~tables.is_measured(), (1.0 - share) * overhead_s, 0.0)
        floor_s, path_s = floor_s + launched_s, path_s + launched_s * is_matrix
    return floor_s, path_s, is_matrix & ~is_split


def _flows(
    graph: Graph,
    tables: CostTables,
    roles: LoopRoles,
    of_ops: tuple[FloatArray, FloatArray, BoolArray],
    is_split: BoolArray,
    *,
    counts_transfers: bool,
    fuses: bool,
) -> tuple[Flow, Flow]:
    """The graph and the reversed one.

    Parts of a split op may share kernels with all its neighbours; but nothing follows a reduction in its
    kernel.
    """
    first, second, last = graph.edge_src, graph.edge_dst, graph.num_ops - 1
    is_in_parts = is_split[first] | is_split[second]
    ends = roles.role == REDUCTION
    shares = (may_share(roles, first, second) | (is_in_parts & ~ends[first])) & fuses
    sent_s = np.where(~is_in_parts & counts_transfers, _transfer_s(tables, first, second), 0.0)

    def flow(before: IntArray, behind: IntArray, step: int) -> Flow:
        ptr, by = csr(behind, graph.num_ops)
        floor_s, path_s = (seconds[::step].copy() for seconds in of_ops[:2])
        return Flow(ptr, before[by], shares[by], sent_s[by], floor_s, path_s, of_ops[2][::step].copy())

    return flow(first, second, 1), flow(last - second, last - first, -1)


def _transfer_s(tables: CostTables, first: IntArray, second: IntArray) -> FloatArray:
    """[E] least seconds of each edge's largest tensor between two chips."""
    if tables.num_chips == 1:
        return np.zeros(len(first))
    pairs = workspace_of(tables).pairs[:-1][~np.eye(tables.num_chips, dtype=np.bool_).ravel()]
    is_made = tables.tensor_producer[tables.reader_tensor] != NO_PRODUCER
    tensor, reader = tables.reader_tensor[is_made], tables.reader_op[is_made].astype(np.int64)
    edges, edge = np.unique(
        tables.tensor_producer[tensor].astype(np.int64) * tables.num_ops + reader, return_inverse=True
    )
    seconds = np.zeros(len(edges))
    size = tables.tensor_bytes[tensor]
    sent_s = np.where(size > 0, pairs["setup_s"].min() + size * pairs["s_per_byte"].min(), 0.0)
    np.maximum.at(seconds, edge, sent_s)
    of_edges: FloatArray = seconds[np.searchsorted(edges, first.astype(np.int64) * tables.num_ops + second)]
    return of_edges


def _pairs(forward: Flow, reverse: Flow) -> LongArray:
    """[P, 2] forks and later joins, sorted by join: the nearest forks of each, at most ``PAIRS`` pairs."""
    joins = np.flatnonzero(_joins(forward))
    forks = len(forward.floor_s) - 1 - np.flatnonzero(_joins(reverse))[::-1]
    end = np.searchsorted(forks, joins)
    begin = np.maximum(
        np.searchsorted(forks, joins - WINDOW, side="right"), end - PAIRS // max(1, len(joins))
    )
    count = end - begin
    within = np.arange(count.sum()) - np.repeat(np.cumsum(count) - count, count)
    return np.stack([forks[np.repeat(begin, count) + within], np.repeat(joins, count)], axis=1)


@compiled
def _joins(flow: Flow) -> BoolArray:
    """[N] ops with several incoming edges, and readers of a kernel that such an op may share with others."""
    num_ops = len(flow.floor_s)
    is_join = np.zeros(num_ops, np.bool_)
    may_share_join = np.zeros(num_ops, np.bool_)
    for op in range(num_ops):
        is_join[op] = flow.ptr[op + 1] - flow.ptr[op] > 1
        for i in range(flow.ptr[op], flow.ptr[op + 1]):
            if flow.may_share[i]:
                may_share_join[op] |= is_join[op] or may_share_join[flow.before[i]]
            else:
                is_join[op] |= may_share_join[flow.before[i]]
    return is_join


def _heads(
    flow: Flow, given_s: FloatArray, first: LongArray, last: LongArray, seconds: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """([N], [N]): the least time before each op's kernel starts, and until it ends.

    On the reversed graph: the least time after its end, and from its start on.

    Args:
      seconds: [P] at least, between the ops ``first`` and ``last`` [P].
    """
    ptr, by = csr(last, len(given_s))
    return _heads_along(flow, given_s, ptr, first[by], seconds[by])


@compiled
def _heads_along(
    flow: Flow, given_s: FloatArray, pair_ptr: LongArray, first: LongArray, between_s: FloatArray
) -> tuple[FloatArray, FloatArray]:
    head_s = given_s.copy()
    path_s = given_s.copy()
    matrix_s = np.zeros(len(given_s))  # until the last earlier kernel with a matrix op ends
    for op in range(len(given_s)):
        for i in range(flow.ptr[op], flow.ptr[op + 1]):
            other, may_share = flow.before[i], flow.may_share[i]
            end_s = max(path_s[other], head_s[other] + flow.floor_s[other])
            head_s[op] = max(head_s[op], head_s[other] if may_share else end_s)
            path_s[op] = max(path_s[op], path_s[other] if may_share else end_s)
            matrix_s[op] = max(matrix_s[op], max(matrix_s[other], end_s if flow.is_matrix[other] else 0.0))
        if flow.is_matrix[op]:
            head_s[op] = max(head_s[op], matrix_s[op])
        for i in range(pair_ptr[op], pair_ptr[op + 1]):
            other = first[i]
            end_s = max(path_s[other], head_s[other] + flow.floor_s[other])
            head_s[op] = max(head_s[op], end_s + between_s[i])
        path_s[op] = max(path_s[op], head_s[op]) + flow.path_s[op]
    for op in range(len(given_s)):
        path_s[op] = max(path_s[op], head_s[op] + flow.floor_s[op])
    return head_s, path_s


def _host_seconds_by_op(tables: CostTables) -> tuple[FloatArray, FloatArray]:
    """([N], [N]): seconds of the largest input that each op reads, and of the largest output it writes."""
    input_s, output_s = np.zeros(tables.num_ops), np.zeros(tables.num_ops)
    read = tables.tensor_kind[tables.reader_tensor] == INPUT
    seconds = tables.tensor_bytes[tables.reader_tensor[read]] * tables.host_in_s_per_byte
    np.maximum.at(input_s, tables.reader_op[read], seconds)
    written = tables.tensor_is_output & (tables.tensor_producer >= 0)
    seconds = tables.tensor_bytes[written] * tables.host_out_s_per_byte
    np.maximum.at(output_s, tables.tensor_producer[written], seconds)
    return input_s, output_s


def _window_bound(floors: OpFloors, head_s: FloatArray, tail_s: FloatArray, chips: int) -> Bound:
    """The best window: a head, a tail, and between them the work of all ops with no smaller ones."""
    heads, head = _levels(head_s)
    tails, tail = _levels(tail_s)

    loops = int(floors.loop.max()) + 1

    def above(amount: FloatArray) -> FloatArray:
        """[H, T, loops] sums over all ops from those levels on."""
        sums = np.zeros((len(heads), len(tails), loops))
        np.add.at(sums, (head, tail, floors.loop), amount)
        return sums[::-1, ::-1].cumsum(axis=0).cumsum(axis=1)[::-1, ::-1]

    work_s = floors.work_s(np.array([above(row) for row in floors.parts]))
    seconds = heads[:, None] + tails[None, :] + work_s / chips
    seconds[work_s == 0.0] = 0.0
    i, j = np.unravel_index(int(np.argmax(seconds)), seconds.shape)
    reason = f"{work_s[i, j] * 1e6:.4g} us of work share {chips} chips"
    if heads[i] + tails[j] > 0.0:
        reason += f", after {heads[i] * 1e6:.4g} us and before {tails[j] * 1e6:.4g} us of others"
    return Bound(float(seconds[i, j]), reason)


def _levels(seconds: FloatArray) -> tuple[FloatArray, LongArray]:
    """At most ``GRID`` rising values, the least first; and [N] the index of the last one not above each."""
    values = np.unique(seconds)
    if len(values) > GRID:
        values = np.unique(np.quantile(values, np.linspace(0.0, 1.0, GRID), method="lower"))
    return values, np.searchsorted(values, seconds, side="right") - 1
