"""List scheduling: the ready kernel of highest priority goes to the chip where it finishes first.

This is HEFT with insertion into gaps (Topcuoglu et al., "Performance-effective and low-complexity task
scheduling for heterogeneous computing", TPDS 2002). It also models links: a tensor leaves when its links
are free, and once for all readers on a chip.

A priority is the upward rank: the longest path from the start of a kernel to the end of the graph (equation 8
there), the seconds of the kernel plus the largest sum of a transfer and its reader's rank.

*Partitions* are starts with little traffic between chips, whose chips share the work of each period.
Annealing of the seconds of all transfers plus, for each period, the sum over chips of squared work over the
mean. A period is a range of the longest paths that end at a kernel. With several, chips work at once. One is
graph partitioning (Karypis and Kumar, "A fast and high quality multilevel scheme for partitioning irregular
graphs", SIAM J. Sci. Comput. 1998).
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np

from go_opt.common.arrays import FloatArray, IntArray, LongArray, RecordArray, csr, record
from go_opt.common.compiling import compiled, int64, uncounted, uncounted_inner
from go_opt.env.cost.tables import CostTables
from go_opt.env.kernels.numbering import kernel_seconds, number_kernels
from go_opt.env.kernels.plain_loops import heap_pop, heap_push
from go_opt.env.model.makespan import NONE, Workspace, decisions
from go_opt.model.graph import NO_PRODUCER
from go_opt.model.plan import number_by_first_place
from go_opt.solver.scheduling.schedule import scheduling_workspace


def upward_ranks(tables: CostTables, order: IntArray, kernel_of: IntArray, weight: float) -> FloatArray:
    """[M] upward ranks in seconds, averaged over the kinds of chips.

    Args:
      order: [N] ops along a topological order of the kernels.
      kernel_of: [N] kernels numbered along it.
      weight: factor on transfers, whose cost is averaged over the kinds of chips and the links.
    """
    setup_s = 0.0
    if tables.num_chips > 1:
        of_chips_s = tables.dma_setup_s.mean() + tables.dependency_s.mean()
        setup_s = float(of_chips_s + tables.link_latency_s.mean())
    s_per_byte = float(tables.link_s_per_byte.mean()) if tables.num_chips > 1 else 0.0
    return _upward_ranks(
        tables,
        order,
        kernel_of,
        kernel_seconds(tables, kernel_of).mean(axis=0),
        weight * setup_s,
        weight * s_per_byte,
    )


@compiled
def _upward_ranks(
    tables: CostTables,
    order: IntArray,
    kernel_of: IntArray,
    kernel_s: FloatArray,
    setup_s: float,
    s_per_byte: float,
) -> FloatArray:
    rank = np.zeros(len(kernel_s))
    for i in range(len(order) - 1, -1, -1):
        op = order[i]
        kernel = kernel_of[op]
        if i + 1 == len(order) or kernel_of[order[i + 1]] != kernel:
            rank[kernel] += kernel_s[kernel]  # all its readers have been visited
        for j in range(tables.op_read_ptr[op], tables.op_read_ptr[op + 1]):
            tensor = tables.reader_tensor[tables.op_read[j]]
            producer = tables.tensor_producer[tensor]
            if producer == NO_PRODUCER or kernel_of[producer] == kernel:
                continue
            behind_s = rank[kernel] + setup_s + tables.tensor_bytes[tensor] * s_per_byte
            rank[kernel_of[producer]] = max(rank[kernel_of[producer]], behind_s)
    return rank


MOST_GAPS: Final = 4096

# Of a kernel: the number of reads that it waits for, its position in the order of placing, and the kernels
# before and after it on its chip, or NONE.
PLACED: Final = record("waits_for place before behind", "start_s end_s")
# Of a chip: its first and its last kernel, or NONE. For the kernel to place: when all its reads would have
# arrived, after which kernel it would run, or NONE, when it would start, and when the host's link would be
# free again.
CHIP: Final = record("first last slot_before", "arrival_s slot_s host_s")


class Lists(NamedTuple):
    """Kernels of a partition, numbered along an order; axes: ``M`` kernels, ``K`` tensors, ``D`` chips."""

    tables: CostTables
    kernels: RecordArray  # [N] KERNEL
    ops: RecordArray  # [N] OP
    placed: RecordArray  # [M] PLACED
    kind_s: FloatArray  # [Q, M] infinite if the kind cannot run an op of the kernels that share its chip
    sharing: IntArray  # [M] kernels with the same number share a chip
    home: IntArray  # [M] the chip of those with a number, or NONE
    there_s: FloatArray  # [K, D] when a tensor arrives; infinite if not sent
    link_free_s: FloatArray  # [L]
    chips: RecordArray  # [D] CHIP
    heap: LongArray  # [M]
    priority: FloatArray  # [M]
    most_gaps: int  # most gaps examined per chip, from the last one back


def lists_of(
    tables: CostTables,
    order: IntArray,
    fusion_group: IntArray,
    rank: FloatArray,
    fills_gaps: bool,
    shared: IntArray,
) -> Lists:
    """Kernels to be placed by ``rank`` [M], numbered along ``order`` [N]; ops of a number of ``shared`` [N]
    share a chip, and kernels lie within one."""
    kernel_of = number_kernels(order, fusion_group)
    kernels, ops = decisions(order, kernel_of)
    kind_s = kernel_seconds(tables, kernel_of)
    num_kernels, num_chips = kind_s.shape[1], tables.num_chips
    sharing = np.zeros(num_kernels, np.int32)
    sharing[kernel_of] = number_by_first_place(shared, order)
    kind, op = np.nonzero(~tables.can_run)
    cannot = np.zeros(kind_s.shape, np.bool_)
    cannot[kind, sharing[kernel_of[op]]] = True
    kind_s[cannot[:, sharing]] = np.inf
    chips, placed = np.zeros(num_chips, CHIP), np.zeros(num_kernels, PLACED)
    chips["first"] = chips["last"] = NONE
    producer = tables.tensor_producer[tables.reader_tensor]
    is_made = producer != NO_PRODUCER
    home, reader = kernel_of[producer[is_made]], kernel_of[tables.reader_op[is_made]]
    placed["waits_for"] = np.bincount(reader[reader != home], minlength=num_kernels)
    return Lists(
        tables=tables,
        kernels=kernels,
        ops=ops,
        placed=placed,
        kind_s=kind_s,
        sharing=sharing,
        home=np.full(num_kernels, NONE, np.int32),
        there_s=np.full((len(tables.tensor_kind), num_chips), np.inf),
        link_free_s=np.zeros(len(tables.link_s_per_byte)),
        chips=chips,
        heap=np.zeros(num_kernels, np.int64),
        priority=rank,
        most_gaps=MOST_GAPS * fills_gaps,
    )


@uncounted_inner
def find_slot(lists: Lists, kernel: int, chip: int) -> float:
    """Returns when ``kernel`` would end on ``chip``: in the earliest gap, or after all its kernels."""
    chips, placed = lists.chips, lists.placed
    seconds = lists.kind_s[lists.tables.chip_kind[chip], kernel]
    arrival_s = chips[chip].arrival_s
    behind = chips[chip].last
    start_s = arrival_s if behind == NONE else max(arrival_s, placed[behind].end_s)
    before = behind
    for _ in range(lists.most_gaps):
        if behind == NONE or placed[behind].end_s <= arrival_s:
            break
        ahead = placed[behind].before
        gap_s = arrival_s if ahead == NONE else max(arrival_s, placed[ahead].end_s)
        if gap_s + seconds <= placed[behind].start_s:
            start_s = gap_s
            before = ahead
        behind = ahead
    chips[chip].slot_s = start_s
    chips[chip].slot_before = before
    return start_s + seconds


@uncounted_inner
def take_slot(lists: Lists, kernel: int, chip: int, place: int) -> None:
    """Put ``kernel`` into the slot that :func:`find_slot` found."""
    chips, placed = lists.chips, lists.placed
    before = chips[chip].slot_before
    behind = chips[chip].first if before == NONE else placed[before].behind
    placed[kernel].before = before
    placed[kernel].behind = behind
    if before == NONE:
        chips[chip].first = kernel
    else:
        placed[before].behind = kernel
    if behind == NONE:
        chips[chip].last = kernel
    else:
        placed[behind].before = kernel
    lists.kernels[kernel].chip = chip
    lists.kernels[kernel].seconds = lists.kind_s[lists.tables.chip_kind[chip], kernel]
    placed[kernel].place = place
    placed[kernel].start_s = chips[chip].slot_s
    placed[kernel].end_s = chips[chip].slot_s + lists.kernels[kernel].seconds


def list_scheduling(
    tables: CostTables,
    order: IntArray,
    fusion_group: IntArray,
    rank: FloatArray,
    *,
    fills_gaps: bool = True,
    queues: bool = True,
    chips: IntArray | None = None,
    shared: IntArray | None = None,
) -> tuple[IntArray, IntArray, IntArray]:
    """``(placement, order, fusion_group)``, [N] each, of kernels placed by ``rank`` [M], highest first.

    Args:
      order: [N] along which the kernels of ``fusion_group`` [N] are numbered.
      fills_gaps: whether a kernel may run before kernels that were placed on its chip earlier.
      queues: whether tensors wait for links, off rings. They do so in the order in which kernels are
        placed, so a tensor of a later time may delay one of an earlier time.
      chips: [M] the chip of each kernel that can run there; None: where it finishes first.
      shared: [N] ops with the same number share the chip of the kernel of theirs that is placed first.
    """
    shared = fusion_group if shared is None else shared
    lists = lists_of(tables, order, fusion_group, rank, fills_gaps, shared)
    workspace = scheduling_workspace(tables)
    if not queues:
        workspace.pairs["links"] = 0
    given = np.full(len(lists.placed), NONE, np.int32)
    if chips is not None:
        can_run = lists.kind_s[tables.chip_kind[chips], np.arange(len(chips))] < np.inf
        given[can_run] = chips[can_run]
    _schedule(workspace, lists, given)
    kernel_of = lists.ops["kernel"].astype(np.int32)
    placement = lists.kernels["chip"][kernel_of].astype(np.int32)
    place = np.empty(len(lists.placed), np.int64)
    place[np.lexsort((lists.placed["place"], lists.placed["start_s"]))] = np.arange(len(place))
    within = np.empty(len(kernel_of), np.int64)  # ops of a kernel keep the given order
    within[order] = np.arange(len(kernel_of))
    return placement, np.lexsort((within, place[kernel_of])).astype(np.int32), kernel_of


def earliest_finish_placement(
    tables: CostTables, order: IntArray, fusion_group: IntArray, shared: IntArray | None = None
) -> IntArray:
    """[N] chip of each op if kernels, along ``order``, go where they finish first; arguments are [N]."""
    num_kernels = int(number_kernels(order, fusion_group).max()) + 1
    falling = np.arange(num_kernels, 0, -1, dtype=np.float64)
    return list_scheduling(tables, order, fusion_group, falling, fills_gaps=False, shared=shared)[0]


@uncounted
def _schedule(workspace: Workspace, lists: Lists, given: IntArray) -> None:
    """Place every kernel, on its ``given`` chip if it has one: fill in chips and seconds.

    The chip of a kernel becomes that of the kernels that share it.
    """
    size = int64(0)
    for kernel in range(len(lists.placed)):
        if lists.placed[kernel].waits_for == 0:
            size = heap_push(lists.heap, size, int64(kernel), lists.priority)
    host_s = 0.0
    place = 0
    while size > 0:
        kernel = lists.heap[0]
        size = heap_pop(lists.heap, size, lists.priority)
        _arrivals(workspace, lists, kernel, host_s)
        chip = int64(0)
        end_s = np.inf
        home = lists.home[lists.sharing[kernel]]
        if home == NONE:
            home = given[kernel]
        for other in range(len(lists.chips)):
            if home not in (NONE, other):
                continue
            other_s = find_slot(lists, kernel, int64(other))
            if other_s < end_s:
                chip = int64(other)
                end_s = other_s
        take_slot(lists, kernel, chip, place)
        lists.home[lists.sharing[kernel]] = chip
        place += 1
        host_s = lists.chips[chip].host_s
        size = _end(workspace, lists, kernel, size)


@uncounted_inner
def _arrivals(workspace: Workspace, lists: Lists, kernel: int, host_s: float) -> None:
    """Fill in when all reads of a kernel would be on each chip; the host's link is free at ``host_s``."""
    num_chips = len(lists.chips)
    for chip in range(num_chips):
        lists.chips[chip].arrival_s = 0.0
        lists.chips[chip].host_s = host_s
    op = lists.kernels[kernel].first_op
    while op != NONE:
        for i in range(lists.tables.op_read_ptr[op], lists.tables.op_read_ptr[op + 1]):
            tensor = int64(lists.tables.reader_tensor[lists.tables.op_read[i]])
            producer = lists.tables.tensor_producer[tensor]
            if producer < 0 or lists.ops[producer].kernel == kernel:
                continue
            for chip in range(num_chips):
                there_s = _there_s(workspace, lists, tensor, int64(chip), False)
                lists.chips[chip].arrival_s = max(lists.chips[chip].arrival_s, there_s)
        for i in range(workspace.op_lists[op].inputs, workspace.op_lists[op + 1].inputs):
            tensor = int64(workspace.inputs[i])
            for chip in range(num_chips):
                if lists.there_s[tensor, chip] == np.inf:
                    lists.chips[chip].host_s += (
                        workspace.tensors[tensor].size_bytes * workspace.host_s_per_byte[0]
                    )
                    lists.there_s[tensor, chip] = -lists.chips[chip].host_s  # negative until it is fetched
                there_s = abs(lists.there_s[tensor, chip])
                lists.chips[chip].arrival_s = max(lists.chips[chip].arrival_s, there_s)
        op = lists.ops[op].following


@uncounted_inner
def _there_s(workspace: Workspace, lists: Lists, tensor: int, chip: int, is_sent: bool) -> float:
    """Returns when a tensor would be on a chip if sent there; ``is_sent``: send it."""
    if lists.there_s[tensor, chip] < np.inf:
        return lists.there_s[tensor, chip]
    producer = lists.ops[lists.tables.tensor_producer[tensor]].kernel
    home, begin_s = lists.kernels[producer].chip, lists.placed[producer].end_s
    size_bytes = workspace.tensors[tensor].size_bytes
    if home == chip or size_bytes == 0:
        return begin_s
    pair = home * len(lists.chips) + chip
    for i in range(_num_links(workspace, home, chip)):
        begin_s = max(begin_s, lists.link_free_s[_link(workspace, home, chip, i)])
    there_s = begin_s + workspace.pairs[pair].setup_s + size_bytes * workspace.pairs[pair].s_per_byte
    if is_sent:
        lists.there_s[tensor, chip] = there_s
        for i in range(_num_links(workspace, home, chip)):
            link = _link(workspace, home, chip, i)
            lists.link_free_s[link] = begin_s + size_bytes * workspace.links[link].s_per_byte
    return there_s


@uncounted_inner
def _fetch(workspace: Workspace, lists: Lists, tensor: int, chip: int) -> None:
    """Keep when an input arrives on a chip, and on no other chip unless it arrives there too."""
    fetched_s = abs(lists.there_s[tensor, chip])
    for other in range(len(lists.chips)):
        if lists.there_s[tensor, other] < 0.0:
            lists.there_s[tensor, other] = fetched_s if workspace.host_multicast or other == chip else np.inf


@uncounted_inner
def _num_links(workspace: Workspace, home: int, chip: int) -> int:
    """Number of links on the route from one chip to another."""
    if workspace.is_ring:
        return (chip - home) % len(workspace.chips)
    pair = home * len(workspace.chips) + chip
    return int64(workspace.pairs[pair + 1].links - workspace.pairs[pair].links)


@uncounted_inner
def _link(workspace: Workspace, home: int, chip: int, i: int) -> int:
    if workspace.is_ring:
        return min((home + i) % len(workspace.chips), len(workspace.links) - 1)
    return int64(workspace.route_link[workspace.pairs[home * len(workspace.chips) + chip].links + i])


@uncounted_inner
def _end(workspace: Workspace, lists: Lists, kernel: int, size: int) -> int:
    """Send a kernel its reads, and push the kernels that became ready; returns the size of the heap."""
    chip = lists.kernels[kernel].chip
    op = lists.kernels[kernel].first_op
    while op != NONE:
        for i in range(lists.tables.op_read_ptr[op], lists.tables.op_read_ptr[op + 1]):
            tensor = int64(lists.tables.reader_tensor[lists.tables.op_read[i]])
            producer = lists.tables.tensor_producer[tensor]
            if producer >= 0 and lists.ops[producer].kernel != kernel:
                _there_s(workspace, lists, tensor, chip, True)
        for i in range(workspace.op_lists[op].inputs, workspace.op_lists[op + 1].inputs):
            _fetch(workspace, lists, int64(workspace.inputs[i]), int64(chip))
        for i in range(workspace.op_lists[op].outputs, workspace.op_lists[op + 1].outputs):
            tensor = int64(workspace.outputs[i])
            for r in range(workspace.tensors[tensor].readers, workspace.tensors[tensor + 1].readers):
                reader = lists.ops[workspace.readers[r]].kernel
                if reader == kernel:
                    continue
                lists.placed[reader].waits_for -= 1
                if lists.placed[reader].waits_for == 0:
                    size = heap_push(lists.heap, size, reader, lists.priority)
        op = lists.ops[op].following
    return size


HOT: Final = 4.0  # first temperature, in mean seconds of a kernel
COLD: Final = 0.01  # last temperature, as a share of the first


class Linked(NamedTuple):
    """Kernels and the transfers between them. Axes: ``M`` kernels, ``E`` ends of pairs by kernel."""

    seconds: FloatArray  # [M]
    head_s: FloatArray  # [M] longest path until each kernel starts
    ptr: LongArray  # [M + 1]
    other: IntArray  # [E]
    sent_s: FloatArray  # [E]


def linked_kernels(tables: CostTables, kernel_of: IntArray) -> Linked:
    """Of kernels [N], numbered along an order."""
    seconds = kernel_seconds(tables, kernel_of).mean(axis=0)
    tensor = tables.reader_tensor
    producer = tables.tensor_producer[tensor]
    is_made = producer != NO_PRODUCER
    source, reader = kernel_of[producer[is_made]], kernel_of[tables.reader_op[is_made]]
    pairs = np.unique(np.stack([source, reader, tensor[is_made]])[:, source != reader], axis=1)
    setup_s = float(tables.dma_setup_s.mean() + tables.dependency_s.mean() + tables.link_latency_s.mean())
    sent_s = setup_s + tables.tensor_bytes[pairs[2]] * float(tables.link_s_per_byte.mean())
    ptr, by_first = csr(np.concatenate([pairs[0], pairs[1]]), len(seconds))
    return Linked(
        seconds,
        _heads(seconds, pairs[0].astype(np.int32), pairs[1].astype(np.int32)),
        ptr,
        np.concatenate([pairs[1], pairs[0]])[by_first].astype(np.int32),
        np.tile(sent_s, 2)[by_first],
    )


def partition(
    linked: Linked, num_chips: int, periods: int, weight: float, sweeps: int, seed: int
) -> IntArray:
    """[M] the chip of each kernel, after ``sweeps`` moves for each; transfers count ``weight`` times."""
    end_s = float((linked.head_s + linked.seconds).max())
    period = np.minimum(linked.head_s / max(end_s, 1e-30) * periods, periods - 1).astype(np.int64)
    rng = np.random.default_rng(seed)
    chip = rng.integers(0, num_chips, len(linked.seconds)).astype(np.int32)
    mean_s = np.maximum(np.bincount(period, linked.seconds, periods) / num_chips, 1e-30)
    _anneal(linked, chip, period, mean_s, num_chips, weight, sweeps, rng)
    return chip


@compiled
def _heads(seconds: FloatArray, source: IntArray, reader: IntArray) -> FloatArray:
    """[M]; pairs are sorted by ``source``, and kernels numbered along an order."""
    head_s = np.zeros(len(seconds))
    for i in range(len(source)):
        head_s[reader[i]] = max(head_s[reader[i]], head_s[source[i]] + seconds[source[i]])
    return head_s


@compiled
def _anneal(
    linked: Linked,
    chip: IntArray,
    period: LongArray,
    mean_s: FloatArray,
    num_chips: int,
    weight: float,
    sweeps: int,
    rng: np.random.Generator,
) -> None:
    """Change ``chip`` in place."""
    num_kernels = len(chip)
    work_s = np.zeros((len(mean_s), num_chips))
    for kernel in range(num_kernels):
        work_s[period[kernel], chip[kernel]] += linked.seconds[kernel]
    moves = sweeps * num_kernels
    hot_s = HOT * linked.seconds.mean()
    for move in range(moves):
        kernel = int64(rng.random() * num_kernels)
        home, when, seconds = chip[kernel], period[kernel], linked.seconds[kernel]
        first, last = linked.ptr[kernel], linked.ptr[kernel + 1]
        to = int64(rng.random() * num_chips)
        if last > first and rng.random() < 0.5:
            to = int64(chip[linked.other[first + int64(rng.random() * (last - first))]])
        if to == home:
            continue
        change_s = (work_s[when, to] - work_s[when, home] + seconds) * seconds / mean_s[when]
        for i in range(first, last):
            other = chip[linked.other[i]]
            change_s += weight * linked.sent_s[i] * (int64(other == home) - int64(other == to))
        if change_s > 0.0 and rng.random() >= np.exp(-change_s / (hot_s * COLD ** (move / moves))):
            continue
        work_s[when, home] -= seconds
        work_s[when, to] += seconds
        chip[kernel] = to
