"""List scheduling: the ready kernel of highest priority goes to the chip where it finishes first.

This is HEFT with insertion into gaps (Topcuoglu et al., "Performance-effective and low-complexity task
scheduling for heterogeneous computing", TPDS 2002). It also models links: a tensor leaves when its links
are free, and once for all readers on a chip.
"""

from __future__ import annotations

import numpy as np

from go_opt.common.arrays import FloatArray, IntArray
from go_opt.common.compiling import int64, uncounted, uncounted_inner
from go_opt.env.cost.tables import CostTables
from go_opt.env.kernels.numbering import number_kernels
from go_opt.env.kernels.plain_loops import heap_pop, heap_push
from go_opt.env.model.makespan import NONE, Workspace
from go_opt.solver.scheduling.lists import Lists, fill_sequence, find_slot, lists_of, take_slot
from go_opt.solver.scheduling.schedule import scheduling_workspace


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
    place[lists.sequence] = np.arange(len(place))
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
    """Place every kernel, on its ``given`` chip if it has one: fill in chips, seconds and the sequence.

    The chip of a kernel becomes that of the kernels that share it.
    """
    size = _begin(workspace, lists)
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
    fill_sequence(lists)


@uncounted_inner
def _begin(workspace: Workspace, lists: Lists) -> int:
    """Reset ``lists``, and push kernels that wait for nothing; returns the size of the heap."""
    for chip in range(len(lists.chips)):
        lists.chips[chip].first = NONE
        lists.chips[chip].last = NONE
    lists.link_free_s[:] = 0.0
    for kernel in range(len(lists.placed)):
        lists.placed[kernel].waits_for = 0
    for tensor in range(len(lists.producer)):
        for chip in range(len(lists.chips)):
            lists.there_s[tensor, chip] = np.inf
        if lists.producer[tensor] < 0:
            continue
        home = lists.ops[lists.producer[tensor]].kernel
        for r in range(workspace.tensors[tensor].readers, workspace.tensors[tensor + 1].readers):
            reader = lists.ops[workspace.readers[r]].kernel
            lists.placed[reader].waits_for += reader != home
    size = int64(0)
    for kernel in range(len(lists.placed)):
        if lists.placed[kernel].waits_for == 0:
            size = heap_push(lists.heap, size, int64(kernel), lists.priority)
    return size


@uncounted_inner
def _arrivals(workspace: Workspace, lists: Lists, kernel: int, host_s: float) -> None:
    """Fill in when all reads of a kernel would be on each chip; the host's link is free at ``host_s``."""
    num_chips = len(lists.chips)
    for chip in range(num_chips):
        lists.chips[chip].arrival_s = 0.0
        lists.chips[chip].host_s = host_s
    op = lists.kernels[kernel].first_op
    while op != NONE:
        for i in range(lists.read_ptr[op], lists.read_ptr[op + 1]):
            tensor = int64(lists.reads[i])
            producer = lists.producer[tensor]
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
    producer = lists.ops[lists.producer[tensor]].kernel
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
        for i in range(lists.read_ptr[op], lists.read_ptr[op + 1]):
            tensor = int64(lists.reads[i])
            producer = lists.producer[tensor]
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
