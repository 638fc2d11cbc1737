"""The most tokens per second that flow through given ranges: a maximum flow, by shortest augmenting paths.

A flow's vertices are the entry and the exit of each node. Exits lead to the entries of nodes whose range
begins where theirs ends. Edges stand in no list of their own: nodes are chained by where they begin and end.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np

from go_opt.common.arrays import FloatArray, LongArray
from go_opt.common.compiling import uncounted, uncounted_inner

LEAST_PER_S: Final = 1e-6  # a smaller flow is none


class Network(NamedTuple):
    """What nodes and links pass, in tokens per second. Axis ``N``: nodes; then the source and the sink."""

    node_per_s: FloatArray  # [N, most layers + 1]
    link_per_s: FloatArray  # [N + 2, N + 2]
    most_held: LongArray  # [N]
    layers: int


class Work(NamedTuple):
    """Arrays that a flow is made in."""

    flow: FloatArray  # [N + 2, N + 2]: tokens per second of links
    through: FloatArray  # [N]: of nodes
    limit: FloatArray  # [N]
    first: LongArray  # [2, layers + 1]: a node that begins, and one that ends, at a layer; -1: none
    next: LongArray  # [2, N]: the next such node
    parent: LongArray  # [2 N + 2]: entries, exits, source, sink
    queue: LongArray  # [2 N + 2]
    held: FloatArray  # [layers + 1]: rate of the nodes that hold a layer, less that of the one before


def new_work(network: Network) -> Work:
    nodes = len(network.most_held)
    return Work(
        np.zeros((nodes + 2, nodes + 2)),
        np.zeros(nodes),
        np.zeros(nodes),
        np.zeros((2, network.layers + 1), np.int64),
        np.zeros((2, nodes), np.int64),
        np.zeros(2 * nodes + 2, np.int64),
        np.zeros(2 * nodes + 2, np.int64),
        np.zeros(network.layers + 1),
    )


@uncounted
def max_flow(starts: LongArray, ends: LongArray, network: Network, work: Work) -> float:
    """The maximum flow of ranges ``[start, end)``; ``work`` then holds the flow of each link and node."""
    _begin(starts, ends, network, work)
    total = 0.0
    while _reaches_sink(starts, ends, network, work):
        total += _augment(network, work)
    return total


@uncounted_inner
def _begin(starts: LongArray, ends: LongArray, network: Network, work: Work) -> None:
    nodes = starts.size
    for layer in range(network.layers + 1):
        work.first[0, layer] = work.first[1, layer] = -1
    for node in range(nodes):
        work.limit[node] = network.node_per_s[node, ends[node] - starts[node]]
        work.next[0, node] = work.first[0, starts[node]]
        work.first[0, starts[node]] = node
        work.next[1, node] = work.first[1, ends[node]]
        work.first[1, ends[node]] = node
        work.through[node] = 0.0
        for other in range(nodes + 2):
            work.flow[node, other] = 0.0
        work.flow[nodes, node] = 0.0


@uncounted_inner
def _reaches_sink(starts: LongArray, ends: LongArray, network: Network, work: Work) -> bool:
    """Whether the residual network has a path; ``work.parent`` then has it. Breadth first."""
    nodes, parent, link, flow = starts.size, work.parent, network.link_per_s, work.flow
    source, sink = 2 * nodes, 2 * nodes + 1
    for vertex in range(2 * nodes + 2):
        parent[vertex] = -1
    parent[source] = work.queue[0] = source
    head, tail = 0, 1
    while head < tail:
        vertex = work.queue[head]
        head += 1
        if vertex < nodes:  # to the node's exit, and back to the exits that its flow comes from
            tail = _visit(vertex, nodes + vertex, work.limit[vertex] - work.through[vertex], work, tail)
            other = work.first[1, starts[vertex]]
            while other >= 0:
                tail = _visit(vertex, nodes + other, flow[other, vertex], work, tail)
                other = work.next[1, other]
            continue
        node, end = vertex - nodes, 0  # the source is node N
        if vertex != source:
            end = ends[node]
            if end == network.layers:
                tail = _visit(vertex, sink, link[node, nodes + 1] - flow[node, nodes + 1], work, tail)
                if parent[sink] >= 0:
                    return True
            tail = _visit(vertex, node, work.through[node], work, tail)
        if end < network.layers:  # to the entries that follow
            other = work.first[0, end]
            while other >= 0:
                tail = _visit(vertex, other, link[node, other] - flow[node, other], work, tail)
                other = work.next[0, other]
    return False


@uncounted_inner
def _visit(before: int, vertex: int, left_per_s: float, work: Work, tail: int) -> int:
    """Queues a vertex that was not reached, if the edge to it still passes something."""
    if left_per_s > LEAST_PER_S and work.parent[vertex] < 0:
        work.parent[vertex] = before
        work.queue[tail] = vertex
        tail += 1
    return tail


@uncounted_inner
def _augment(network: Network, work: Work) -> float:
    """Sends as much as the path of ``work.parent`` passes."""
    nodes = work.through.size
    sent = np.inf
    vertex = 2 * nodes + 1
    while vertex != 2 * nodes:
        before = work.parent[vertex]
        sent = min(sent, _left(before, vertex, network, work))
        vertex = before
    vertex = 2 * nodes + 1
    while vertex != 2 * nodes:
        before = work.parent[vertex]
        _send(before, vertex, sent, work)
        vertex = before
    return sent


@uncounted_inner
def _left(before: int, vertex: int, network: Network, work: Work) -> float:
    """What an edge of the residual network still passes."""
    nodes = work.through.size
    if before < nodes:
        if vertex == nodes + before:
            return float(work.limit[before] - work.through[before])
        return float(work.flow[vertex - nodes, before])
    if vertex == before - nodes:
        return float(work.through[vertex])
    sender = before - nodes  # the source is node N
    receiver = nodes + 1 if vertex == 2 * nodes + 1 else vertex
    return float(network.link_per_s[sender, receiver] - work.flow[sender, receiver])


@uncounted_inner
def _send(before: int, vertex: int, sent: float, work: Work) -> None:
    nodes = work.through.size
    if before < nodes:
        if vertex == nodes + before:
            work.through[before] += sent
        else:
            work.flow[vertex - nodes, before] -= sent
    elif vertex == before - nodes:
        work.through[vertex] -= sent
    else:
        work.flow[before - nodes, nodes + 1 if vertex == 2 * nodes + 1 else vertex] += sent
