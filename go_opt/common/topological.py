"""Topological sort, with an error that names a shortest cycle."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from typing import Final

from go_opt.errors import GraphError

_MOST_STEPS: Final = 200_000  # of the search for a shortest cycle
_MOST_NAMES: Final = 12  # shown of a long cycle


def topological_order(successors: Sequence[Sequence[int]], names: Sequence[str]) -> list[int]:
    """Kahn's algorithm; among the ready ops, the one with the lowest number comes first.

    Raises:
      GraphError: there is a cycle; the message names a shortest one as ``'a' -> 'b' -> 'a'``.
    """
    left = [0] * len(successors)  # predecessors that are not in the order yet
    for readers in successors:
        for reader in readers:
            left[reader] += 1
    ready = [i for i, count in enumerate(left) if count == 0]
    order = []
    while ready:
        i = heapq.heappop(ready)
        order.append(i)
        for reader in successors[i]:
            left[reader] -= 1
            if left[reader] == 0:
                heapq.heappush(ready, reader)
    if len(order) < len(successors):
        members = {i for i, count in enumerate(left) if count}
        raise GraphError(f"the graph has a cycle: {cycle_text(successors, members, names)}.")
    return order


def strong_components(successors: Sequence[Sequence[int]]) -> list[list[int]]:
    """The sets of nodes that reach each other (Tarjan, SIAM J. Comput. 1972), without recursion."""
    number: dict[int, int] = {}  # in which nodes are found
    low: dict[int, int] = {}  # the least number that a node reaches among the open ones
    is_open = [False] * len(successors)
    stack: list[int] = []
    found: list[list[int]] = []
    for root in range(len(successors)):
        path = [] if root in number else [(root, iter(successors[root]))]
        while path:
            node, readers = path[-1]
            if node not in number:
                number[node] = low[node] = len(number)
                stack.append(node)
                is_open[node] = True
            for reader in readers:
                if reader not in number:
                    path.append((reader, iter(successors[reader])))
                    break
                if is_open[reader]:
                    low[node] = min(low[node], low[reader])
            else:
                path.pop()
                if low[node] == number[node]:
                    found.append([])
                    while is_open[node]:
                        found[-1].append(stack.pop())
                        is_open[found[-1][-1]] = False
                if path:
                    low[path[-1][0]] = min(low[path[-1][0]], low[node])
    return found


def cycle_text(successors: Sequence[Sequence[int]], members: set[int], names: Sequence[str]) -> str:
    """A cycle among ``members`` as ``'a' -> 'b' -> 'a'``, a shortest one unless they are very many."""
    import networkx as nx  # only for this error

    graph = nx.DiGraph((op, to) for op in sorted(members) for to in successors[op] if to in members)
    part_of = {op: i for i, part in enumerate(strong_components(successors)) for op in part}
    on_cycles = [(op, to) for op, to in graph.edges if part_of[op] == part_of[to]]
    tried = on_cycles[: max(1, _MOST_STEPS // len(on_cycles))]
    cycle = min((nx.shortest_path(graph, to, op) for op, to in tried), key=len)
    first = cycle.index(min(cycle))
    shown = [repr(names[op]) for op in (*cycle[first:], *cycle[:first], cycle[first])]
    if len(shown) > _MOST_NAMES:
        shown[_MOST_NAMES - 2 : -1] = [f"... ({len(cycle)} ops)"]
    return " -> ".join(shown)
