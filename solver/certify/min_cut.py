"""Least traffic of a cut: the cheapest down-set between units forced in and units forced out.

A down-set ``I`` with ``A <= I``, ``B`` outside, costs the bytes of the tensors produced in ``I``
and read outside. The least cost is a minimum cut whose source side is ``I``:

* a tensor with one reader is an arc ``producer -> reader`` of its bytes;
* with several readers it is a node: ``producer -> tensor`` of its bytes, ``tensor -> reader``
  infinite, so it is cut once as soon as any reader is outside;
* closure is an infinite arc ``reader -> producer``. (Not reader -> tensor: the tensor may
  be outside while one of its readers is in.)

Only free units are nodes: ``A`` is merged into the source, ``B`` into the sink. The maximum flow
is Dinic's algorithm (E. A. Dinic, 1970); stopped early, it still gives a lower bound.
"""

from __future__ import annotations

from typing import Annotated, Final, NamedTuple

import numpy as np

from go_opt.common.arrays import BoolArray, CodeArray, IntArray, LongArray, allocated
from go_opt.common.compiling import int64, uncounted, uncounted_inner
from go_opt.solver.certify.problem import UnitGraph

# NumPy integers as arguments, because numba compiles a function again for every literal.
FREE, INSIDE, OUTSIDE = np.arange(3)
INFINITE = np.int64(2**61)
LARGEST_FLOW: Final = 2.0**59
SOURCE, SINK = np.arange(2)


class Workspace(NamedTuple):
    """Scratch of splitting, and of one flow problem. Axes: ``U`` units, ``V`` nodes, ``A`` arcs."""

    side: Annotated[CodeArray, "U"]  # FREE, INSIDE or OUTSIDE
    free: Annotated[IntArray, "U"]  # the free units first
    mark: Annotated[LongArray, "U"]  # stamp of the last walk that reached the unit
    stack: Annotated[IntArray, "U"]
    is_taken: Annotated[BoolArray, "U"]
    context_units: Annotated[LongArray, "4"]  # free units by their context …
    context_ticks: Annotated[LongArray, "4"]  # … and their work
    node_of: Annotated[LongArray, "U"]  # node of each free unit
    tensor_seen: Annotated[LongArray, "K"]  # stamp of the last flow problem that counted the tensor
    stamp: Annotated[LongArray, "1"]
    first_arc: Annotated[IntArray, "V"]
    next_arc: Annotated[IntArray, "A"]  # of the same node; arc a ^ 1 is the reverse of arc a
    head: Annotated[IntArray, "A"]
    room: Annotated[LongArray, "A"]  # residual capacity
    level: Annotated[IntArray, "V"]
    current: Annotated[IntArray, "V"]  # arc to try next
    queue: Annotated[IntArray, "V"]
    path: Annotated[IntArray, "V"]  # arcs


def workspace(graph: UnitGraph) -> Workspace:
    """Returns arrays large enough for any cut of ``graph``."""
    num_units, num_tensors = graph.num_units, len(graph.tensor_bytes)
    nodes = num_units + num_tensors + 2
    arcs = 2 * (num_tensors + len(graph.reader) + len(graph.successor) + num_units) + 2
    return allocated(Workspace, {"U": num_units, "K": num_tensors, "V": nodes, "A": arcs})


@uncounted
def min_cut(graph: UnitGraph, work: Workspace, num_free: int, enough: int) -> int:
    """Returns the bytes of the least cut, or a lower bound of at least ``enough`` bytes."""
    flow, num_nodes, _ = _build(graph, work, num_free, 1.0)
    while flow < enough and _label(work, num_nodes):
        flow += _blocking_flow(work, num_nodes)
    return flow


@uncounted
def least_work_and_cut(
    graph: UnitGraph, work: Workspace, num_free: int, ticks_per_byte: float, charged: int
) -> int:
    """Returns the least ticks of a down-set's cut plus its free units on the side ``charged``."""
    traffic = int64(0)
    for k in range(len(graph.tensor_bytes)):
        traffic += graph.tensor_bytes[k]
    ticks = int64(0)
    for i in range(num_free):
        ticks += graph.unit_ticks[work.free[i]]
    # Scaled so that the sum of all capacities fits; rounding down keeps a lower bound.
    scale = min(1.0, LARGEST_FLOW / (1.0 + ticks + traffic * ticks_per_byte))
    flow, num_nodes, num_arcs = _build(graph, work, num_free, ticks_per_byte * scale * (1.0 - 1e-15))
    for i in range(num_free):
        room = int64(graph.unit_ticks[work.free[i]] * scale)
        if charged == INSIDE:
            num_arcs = _add_arc(work, num_arcs, i + 2, SINK, room)
        else:
            num_arcs = _add_arc(work, num_arcs, SOURCE, i + 2, room)
    while _label(work, num_nodes):
        flow += _blocking_flow(work, num_nodes)
    return int64(flow / scale * (1.0 - 1e-15))


@uncounted_inner
def _build(graph: UnitGraph, work: Workspace, num_free: int, per_byte: float) -> tuple[int, int, int]:
    """Builds the arcs of free units; returns the cost common to all cuts, and numbers of nodes and arcs.

    A byte costs ``per_byte``; the cost of each tensor is rounded down.
    """
    side, free = work.side, work.free
    work.stamp[0] += 1
    stamp = work.stamp[0]
    for i in range(num_free):
        work.node_of[free[i]] = i + 2
    for i in range(num_free + 2):
        work.first_arc[i] = -1
    base = int64(0)
    num_arcs = int64(0)
    num_nodes = num_free + 2
    for k in range(len(graph.tensor_bytes)):
        producer = graph.tensor_producer[k]
        if side[producer] != INSIDE:
            continue
        # Readers ascend, and late ones are mostly outside.
        for r in range(graph.reader_ptr[k + 1] - 1, graph.reader_ptr[k] - 1, -1):
            if side[graph.reader[r]] == OUTSIDE:
                base += int64(graph.tensor_bytes[k] * per_byte)
                work.tensor_seen[k] = stamp
                break
    for i in range(num_free):
        unit = free[i]
        node = i + 2
        for e in range(graph.predecessor_ptr[unit], graph.predecessor_ptr[unit + 1]):
            before = graph.predecessor[e]
            if side[before] == FREE:
                num_arcs = _add_arc(work, num_arcs, node, work.node_of[before], INFINITE)
        for k in range(graph.produced_ptr[unit], graph.produced_ptr[unit + 1]):
            num_arcs, num_nodes = _add_tensor(graph, work, k, per_byte, node, num_arcs, num_nodes)
        for r in range(graph.read_ptr[unit], graph.read_ptr[unit + 1]):
            tensor = int64(graph.read[r])
            if work.tensor_seen[tensor] != stamp and side[graph.tensor_producer[tensor]] == INSIDE:
                work.tensor_seen[tensor] = stamp
                num_arcs, num_nodes = _add_tensor(graph, work, tensor, per_byte, SOURCE, num_arcs, num_nodes)
    return base, num_nodes, num_arcs


@uncounted_inner
def _add_tensor(
    graph: UnitGraph, work: Workspace, k: int, per_byte: float, tail: int, num_arcs: int, num_nodes: int
) -> tuple[int, int]:
    """Adds the arcs of tensor ``k`` from the node ``tail``; returns the numbers of arcs and nodes."""
    size = int64(graph.tensor_bytes[k] * per_byte)
    if size == 0:
        return num_arcs, num_nodes
    count = 0
    only = int64(-1)
    for r in range(graph.reader_ptr[k + 1] - 1, graph.reader_ptr[k] - 1, -1):
        reader = graph.reader[r]
        if work.side[reader] == OUTSIDE:
            return _add_arc(work, num_arcs, tail, SINK, size), num_nodes
        if work.side[reader] == FREE:
            count += 1
            only = work.node_of[reader]
    if count == 1:
        return _add_arc(work, num_arcs, tail, only, size), num_nodes
    node = num_nodes
    work.first_arc[node] = -1
    num_arcs = _add_arc(work, num_arcs, tail, node, size)
    for r in range(graph.reader_ptr[k], graph.reader_ptr[k + 1]):
        reader = graph.reader[r]
        if work.side[reader] == FREE:
            num_arcs = _add_arc(work, num_arcs, node, work.node_of[reader], INFINITE)
    return num_arcs, num_nodes + 1


@uncounted_inner
def _add_arc(work: Workspace, num_arcs: int, tail: int, head: int, room: int) -> int:
    work.head[num_arcs] = head
    work.room[num_arcs] = room
    work.next_arc[num_arcs] = work.first_arc[tail]
    work.first_arc[tail] = num_arcs
    work.head[num_arcs + 1] = tail
    work.room[num_arcs + 1] = 0
    work.next_arc[num_arcs + 1] = work.first_arc[head]
    work.first_arc[head] = num_arcs + 1
    return num_arcs + 2


@uncounted_inner
def _label(work: Workspace, num_nodes: int) -> bool:
    """Writes breadth-first levels from the sink backwards; returns whether they reach the source."""
    for node in range(num_nodes):
        work.level[node] = -1
        work.current[node] = work.first_arc[node]
    work.level[SINK] = 0
    work.queue[0] = SINK
    begin = 0
    end = 1
    while begin < end:
        node = work.queue[begin]
        begin += 1
        arc = work.first_arc[node]
        while arc >= 0:
            tail = work.head[arc]
            if work.room[arc ^ 1] > 0 and work.level[tail] < 0:
                work.level[tail] = work.level[node] + 1
                if tail == SOURCE:
                    return True
                work.queue[end] = tail
                end += 1
            arc = work.next_arc[arc]
    return False


@uncounted_inner
def _blocking_flow(work: Workspace, num_nodes: int) -> int:
    """Finds a blocking flow on shortest paths by iterative depth-first search; returns its size."""
    total = int64(0)
    depth = 0
    node = SOURCE
    while True:
        if node == SINK:
            least = work.room[work.path[0]]
            for i in range(1, depth):
                least = min(least, work.room[work.path[i]])
            total += least
            back = depth
            for i in range(depth - 1, -1, -1):
                arc = work.path[i]
                work.room[arc] -= least
                work.room[arc ^ 1] += least
                if work.room[arc] == 0:
                    back = i
            depth = back
            node = work.head[work.path[depth] ^ 1]
            continue
        arc = work.current[node]
        while arc >= 0:
            head = work.head[arc]
            if work.room[arc] > 0 and work.level[head] == work.level[node] - 1:
                break
            arc = work.next_arc[arc]
        work.current[node] = arc
        if arc >= 0:
            work.path[depth] = arc
            depth += 1
            node = work.head[arc]
        elif node == SOURCE:
            return total
        else:
            work.level[node] = num_nodes + 1  # a dead end, never visited again
            depth -= 1
            node = work.head[work.path[depth] ^ 1]
