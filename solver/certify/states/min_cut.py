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

from typing import Final, NamedTuple

import numpy as np

from go_opt.common.arrays import CodeArray, IntArray, LongArray
from go_opt.common.compiling import int64, uncounted, uncounted_inner
from go_opt.solver.certify.problem.problem import UnitGraph

# NumPy integers as arguments, because numba compiles a function again for every literal.
FREE, INSIDE, OUTSIDE = np.arange(3)
INFINITE = np.int64(2**61)
LARGEST_FLOW: Final = 2.0**59
SOURCE, SINK = np.arange(2)


class FlowNetwork(NamedTuple):
    """Reusable arrays of one flow problem. Axes: ``V`` nodes, ``A`` arcs."""

    node_of: LongArray  # [U] node of each free unit
    tensor_seen: LongArray  # [K] stamp of the last problem that counted the tensor
    stamp: LongArray  # [1]
    first_arc: IntArray  # [V]
    next_arc: IntArray  # [A] of the same node; arc a ^ 1 is the reverse of arc a
    head: IntArray  # [A]
    room: LongArray  # [A] residual capacity
    level: IntArray  # [V]
    current: IntArray  # [V] arc to try next
    queue: IntArray  # [V]
    path: IntArray  # [V] arcs


def flow_network(graph: UnitGraph) -> FlowNetwork:
    """Returns arrays large enough for any cut of ``graph``."""
    num_units, num_tensors = graph.num_units, len(graph.tensor_bytes)
    nodes = num_units + num_tensors + 2
    arcs = 2 * (num_tensors + len(graph.reader) + len(graph.successor) + num_units) + 2
    return FlowNetwork(
        node_of=np.zeros(num_units, np.int64),
        tensor_seen=np.zeros(num_tensors, np.int64),
        stamp=np.zeros(1, np.int64),
        first_arc=np.zeros(nodes, np.int32),
        next_arc=np.zeros(arcs, np.int32),
        head=np.zeros(arcs, np.int32),
        room=np.zeros(arcs, np.int64),
        level=np.zeros(nodes, np.int32),
        current=np.zeros(nodes, np.int32),
        queue=np.zeros(nodes, np.int32),
        path=np.zeros(nodes, np.int32),
    )


@uncounted
def min_cut(
    graph: UnitGraph, network: FlowNetwork, side: CodeArray, free: IntArray, num_free: int, enough: int
) -> int:
    """Returns the bytes of the least cut, or a lower bound of at least ``enough`` bytes."""
    flow, num_nodes, _ = _build(graph, network, side, free, num_free, 1.0)
    while flow < enough and _label(network, num_nodes):
        flow += _blocking_flow(network, num_nodes)
    return flow


@uncounted
def least_work_and_cut(
    graph: UnitGraph,
    network: FlowNetwork,
    side: CodeArray,
    free: IntArray,
    num_free: int,
    ticks_per_byte: float,
    charged: int,
) -> int:
    """Returns the least ticks of a down-set's cut plus its free units on the side ``charged``."""
    traffic = int64(0)
    for k in range(len(graph.tensor_bytes)):
        traffic += graph.tensor_bytes[k]
    work = int64(0)
    for i in range(num_free):
        work += graph.unit_ticks[free[i]]
    # Scaled so that the sum of all capacities fits; rounding down keeps a lower bound.
    scale = min(1.0, LARGEST_FLOW / (1.0 + work + traffic * ticks_per_byte))
    flow, num_nodes, num_arcs = _build(
        graph, network, side, free, num_free, ticks_per_byte * scale * (1.0 - 1e-15)
    )
    for i in range(num_free):
        room = int64(graph.unit_ticks[free[i]] * scale)
        if charged == INSIDE:
            num_arcs = _add_arc(network, num_arcs, i + 2, SINK, room)
        else:
            num_arcs = _add_arc(network, num_arcs, SOURCE, i + 2, room)
    while _label(network, num_nodes):
        flow += _blocking_flow(network, num_nodes)
    return int64(flow / scale * (1.0 - 1e-15))


@uncounted_inner
def _build(
    graph: UnitGraph, network: FlowNetwork, side: CodeArray, free: IntArray, num_free: int, per_byte: float
) -> tuple[int, int, int]:
    """Builds the arcs of free units; returns the cost common to all cuts, and numbers of nodes and arcs.

    A byte costs ``per_byte``; the cost of each tensor is rounded down.
    """
    network.stamp[0] += 1
    stamp = network.stamp[0]
    for i in range(num_free):
        network.node_of[free[i]] = i + 2
    for i in range(num_free + 2):
        network.first_arc[i] = -1
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
                network.tensor_seen[k] = stamp
                break
    for i in range(num_free):
        unit = free[i]
        node = i + 2
        for e in range(graph.predecessor_ptr[unit], graph.predecessor_ptr[unit + 1]):
            before = graph.predecessor[e]
            if side[before] == FREE:
                num_arcs = _add_arc(network, num_arcs, node, network.node_of[before], INFINITE)
        for k in range(graph.produced_ptr[unit], graph.produced_ptr[unit + 1]):
            num_arcs, num_nodes = _add_tensor(graph, network, side, k, per_byte, node, num_arcs, num_nodes)
        for r in range(graph.read_ptr[unit], graph.read_ptr[unit + 1]):
            tensor = int64(graph.read[r])
            if network.tensor_seen[tensor] != stamp and side[graph.tensor_producer[tensor]] == INSIDE:
                network.tensor_seen[tensor] = stamp
                num_arcs, num_nodes = _add_tensor(
                    graph, network, side, tensor, per_byte, SOURCE, num_arcs, num_nodes
                )
    return base, num_nodes, num_arcs


@uncounted_inner
def _add_tensor(
    graph: UnitGraph,
    network: FlowNetwork,
    side: CodeArray,
    k: int,
    per_byte: float,
    tail: int,
    num_arcs: int,
    num_nodes: int,
) -> tuple[int, int]:
    """Adds the arcs of tensor ``k`` from the node ``tail``; returns the numbers of arcs and nodes."""
    size = int64(graph.tensor_bytes[k] * per_byte)
    if size == 0:
        return num_arcs, num_nodes
    count = 0
    only = int64(-1)
    for r in range(graph.reader_ptr[k + 1] - 1, graph.reader_ptr[k] - 1, -1):
        reader = graph.reader[r]
        if side[reader] == OUTSIDE:
            return _add_arc(network, num_arcs, tail, SINK, size), num_nodes
        if side[reader] == FREE:
            count += 1
            only = network.node_of[reader]
    if count == 1:
        return _add_arc(network, num_arcs, tail, only, size), num_nodes
    node = num_nodes
    network.first_arc[node] = -1
    num_arcs = _add_arc(network, num_arcs, tail, node, size)
    for r in range(graph.reader_ptr[k], graph.reader_ptr[k + 1]):
        reader = graph.reader[r]
        if side[reader] == FREE:
            num_arcs = _add_arc(network, num_arcs, node, network.node_of[reader], INFINITE)
    return num_arcs, num_nodes + 1


@uncounted_inner
def _add_arc(network: FlowNetwork, num_arcs: int, tail: int, head: int, room: int) -> int:
    network.head[num_arcs] = head
    network.room[num_arcs] = room
    network.next_arc[num_arcs] = network.first_arc[tail]
    network.first_arc[tail] = num_arcs
    network.head[num_arcs + 1] = tail
    network.room[num_arcs + 1] = 0
    network.next_arc[num_arcs + 1] = network.first_arc[head]
    network.first_arc[head] = num_arcs + 1
    return num_arcs + 2


@uncounted_inner
def _label(network: FlowNetwork, num_nodes: int) -> bool:
    """Writes breadth-first levels from the sink backwards; returns whether they reach the source."""
    for node in range(num_nodes):
        network.level[node] = -1
        network.current[node] = network.first_arc[node]
    network.level[SINK] = 0
    network.queue[0] = SINK
    begin = 0
    end = 1
    while begin < end:
        node = network.queue[begin]
        begin += 1
        arc = network.first_arc[node]
        while arc >= 0:
            tail = network.head[arc]
            if network.room[arc ^ 1] > 0 and network.level[tail] < 0:
                network.level[tail] = network.level[node] + 1
                if tail == SOURCE:
                    return True
                network.queue[end] = tail
                end += 1
            arc = network.next_arc[arc]
    return False


@uncounted_inner
def _blocking_flow(network: FlowNetwork, num_nodes: int) -> int:
    """Finds a blocking flow on shortest paths by iterative depth-first search; returns its size."""
    total = int64(0)
    depth = 0
    node = SOURCE
    while True:
        if node == SINK:
            least = network.room[network.path[0]]
            for i in range(1, depth):
                least = min(least, network.room[network.path[i]])
            total += least
            back = depth
            for i in range(depth - 1, -1, -1):
                arc = network.path[i]
                network.room[arc] -= least
                network.room[arc ^ 1] += least
                if network.room[arc] == 0:
                    back = i
            depth = back
            node = network.head[network.path[depth] ^ 1]
            continue
        arc = network.current[node]
        while arc >= 0:
            head = network.head[arc]
            if network.room[arc] > 0 and network.level[head] == network.level[node] - 1:
                break
            arc = network.next_arc[arc]
        network.current[node] = arc
        if arc >= 0:
            network.path[depth] = arc
            depth += 1
            node = network.head[arc]
        elif node == SOURCE:
            return total
        else:
            network.level[node] = num_nodes + 1  # a dead end, never visited again
            depth -= 1
            node = network.head[network.path[depth] ^ 1]
