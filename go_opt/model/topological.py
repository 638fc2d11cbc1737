"""Topological sort, with an error that names a shortest cycle."""

from __future__ import annotations

import heapq
from collections import deque
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
    cycle = _shortest_cycle(successors, _on_cycles(successors, members))
    shown = [repr(names[i]) for i in [*cycle, cycle[0]]]
    if len(shown) > _MOST_NAMES:
        shown[_MOST_NAMES - 2 : -1] = [f"... ({len(cycle)} ops)"]
    return " -> ".join(shown)


def _on_cycles(successors: Sequence[Sequence[int]], members: set[int]) -> set[int]:
    """Members from which a cycle can be reached; the others are only downstream of one."""
    left = set(members)
    fan_out = {op: sum(reader in left for reader in successors[op]) for op in left}
    readers_of: dict[int, list[int]] = {}
    for op in left:
        for reader in successors[op]:
            readers_of.setdefault(reader, []).append(op)
    ends = [op for op in left if fan_out[op] == 0]
    while ends:
        end = ends.pop()
        left.discard(end)
        for op in readers_of.get(end, []):
            if op in left:
                fan_out[op] -= 1
                if fan_out[op] == 0:
                    ends.append(op)
    return left


def _shortest_cycle(successors: Sequence[Sequence[int]], members: set[int]) -> list[int]:
    """The ops of a shortest cycle, by breadth-first search from each member.

    After ``_MOST_STEPS`` steps it returns the shortest cycle found so far, which bounds the cost.
    """
    best: list[int] = []
    steps = 0
    for start in sorted(members):
        parent = {start: start}
        queue = deque([start])
        while queue and start not in successors[queue[0]]:
            op = queue.popleft()
            steps += 1
            for reader in successors[op]:
                if reader in members and reader not in parent:
                    parent[reader] = op
                    queue.append(reader)
        if queue:
            path = [queue[0]]
            while path[-1] != start:
                path.append(parent[path[-1]])
            if not best or len(path) < len(best):
                best = path[::-1]
        if best and (steps > _MOST_STEPS or len(best) <= 2):
            break
    return best
