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


def cycle_text(successors: Sequence[Sequence[int]], members: set[int], names: Sequence[str]) -> str:
    """A cycle among ``members`` as ``'a' -> 'b' -> 'a'``, a shortest one unless they are very many."""
    import networkx as nx  # only for this error

    graph = nx.DiGraph((op, to) for op in sorted(members) for to in successors[op] if to in members)
    part_of = {op: i for i, part in enumerate(nx.strongly_connected_components(graph)) for op in part}
    on_cycles = [(op, to) for op, to in graph.edges if part_of[op] == part_of[to]]
    tried = on_cycles[: max(1, _MOST_STEPS // len(on_cycles))]
    cycle = min((nx.shortest_path(graph, to, op) for op, to in tried), key=len)
    first = cycle.index(min(cycle))
    shown = [repr(names[op]) for op in (*cycle[first:], *cycle[:first], cycle[first])]
    if len(shown) > _MOST_NAMES:
        shown[_MOST_NAMES - 2 : -1] = [f"... ({len(cycle)} ops)"]
    return " -> ".join(shown)
