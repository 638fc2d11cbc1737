"""Links between chips, and the route a tensor takes from one chip to another."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final

import numpy as np

from go_opt.common.arrays import FloatArray, IntArray, LongArray

TOPOLOGIES: Final = ("ring", "chain", "mesh2d", "all_to_all", "host_star", "listed")
Link = tuple[int, int, float, float]  # source, destination, bytes per second, latency in seconds


@dataclass(frozen=True, eq=False)
class Topology:
    """Directed links of a package. Axes: ``D`` chips, ``L`` links.

    On a ``ring`` and a ``chain`` link d leaves chip d; a chain lacks the last link. A
    ``host_star`` has no links between chips. It has two links between the host and each
    chip: link 2d leaves chip d, and link 2d + 1 enters it.
    """

    kind: str
    num_chips: int
    link_src: tuple[str, ...]  # [L] names of the ends: a chip's number, or "host"
    link_dst: tuple[str, ...]  # [L]
    link_from: IntArray  # [L] chip the link leaves, -1 for the host
    link_to: IntArray  # [L] chip the link enters, -1 for the host
    rate_bytes_per_s: FloatArray  # [L]
    latency_s: FloatArray  # [L]

    @property
    def num_links(self) -> int:
        return len(self.link_src)

    @property
    def is_ring(self) -> bool:
        """Whether routes run along consecutive links, so that loads are differences of prefix sums."""
        return self.kind in ("ring", "chain")

    @cached_property
    def routes(self) -> tuple[LongArray, IntArray]:
        """CSR over pairs: row ``a * D + b`` has the links from chip a to chip b.

        Shortest routes, ties broken towards the lower link; a pair without a route, and a
        chip to itself, have empty rows. Empty for rings and chains: their routes are implied.
        """
        if self.is_ring:
            return np.zeros(1, dtype=np.int64), np.zeros(0, dtype=np.int32)
        if self.kind == "host_star":
            rows = [
                [] if a == b else [2 * a, 2 * b + 1]
                for a in range(self.num_chips)
                for b in range(self.num_chips)
            ]
        else:
            rows = [row for a in range(self.num_chips) for row in self._routes_from(a)]
        pointers = np.concatenate([[0], np.cumsum([len(row) for row in rows])]).astype(np.int64)
        return pointers, np.array([link for row in rows for link in row], dtype=np.int32)

    def has_route(self, source: int, destination: int) -> bool:
        """Whether a tensor can get from one chip to the other."""
        if self.kind == "ring" or source == destination:
            return True
        if self.kind == "chain":
            return source < destination
        pointers, _ = self.routes
        pair = source * self.num_chips + destination
        return bool(pointers[pair] < pointers[pair + 1])

    def route(self, source: int, destination: int) -> list[int]:
        """The links from one chip to the other; none if there is no route, or no need of one."""
        if not self.has_route(source, destination):
            return []
        if self.is_ring:
            hops = (destination - source) % self.num_chips
            return [(source + hop) % self.num_chips for hop in range(hops)]
        pointers, links = self.routes
        pair = source * self.num_chips + destination
        found: list[int] = links[pointers[pair] : pointers[pair + 1]].tolist()
        return found

    def _routes_from(self, source: int) -> list[list[int]]:
        """Breadth-first routes from one chip to every chip, by links in ascending order."""
        routes: list[list[int] | None] = [None] * self.num_chips
        routes[source] = []
        queue = deque([source])
        left = self.num_chips - 1  # a dense package reaches every chip long before its last link
        while queue and left:
            chip = queue.popleft()
            route = routes[chip]
            assert route is not None
            for link in self._links_leaving[chip]:
                neighbour = int(self.link_to[link])
                if routes[neighbour] is None:
                    routes[neighbour] = [*route, link]
                    left -= 1
                    queue.append(neighbour)
        return [route or [] for route in routes]

    @cached_property
    def _links_leaving(self) -> list[list[int]]:
        leaving: list[list[int]] = [[] for _ in range(self.num_chips)]
        for link, chip in enumerate(self.link_from):
            leaving[chip].append(link)
        return leaving


def build_topology(
    kind: str,
    num_chips: int,
    rate_bytes_per_s: float,
    latency_s: float,
    *,
    columns: int = 0,
    links: Sequence[Link] = (),
) -> Topology:
    """A topology by name; ``columns`` is for ``mesh2d``, ``links`` for ``listed``."""
    ends = _link_ends(kind, num_chips, columns)
    if kind != "listed":
        links = [(source, destination, rate_bytes_per_s, latency_s) for source, destination in ends]
    name = {-1: "host"}
    return Topology(
        kind=kind,
        num_chips=num_chips,
        link_src=tuple(name.get(link[0], str(link[0])) for link in links),
        link_dst=tuple(name.get(link[1], str(link[1])) for link in links),
        link_from=np.array([link[0] for link in links], dtype=np.int32),
        link_to=np.array([link[1] for link in links], dtype=np.int32),
        rate_bytes_per_s=np.array([link[2] for link in links], dtype=np.float64),
        latency_s=np.array([link[3] for link in links], dtype=np.float64),
    )


def _link_ends(kind: str, num_chips: int, columns: int) -> list[tuple[int, int]]:
    chips = range(num_chips)
    if kind == "ring":
        return [(d, (d + 1) % num_chips) for d in chips] if num_chips > 1 else []
    if kind == "chain":
        return [(d, d + 1) for d in chips[:-1]]
    if kind == "all_to_all":
        return [(a, b) for a in chips for b in chips if a != b]
    if kind == "host_star":
        return [end for d in chips for end in ((d, -1), (-1, d))]
    if kind == "mesh2d":
        return [(a, b) for a in chips for b in chips if _are_neighbours(a, b, columns)]
    return []


def _are_neighbours(a: int, b: int, columns: int) -> bool:
    rows_apart = abs(a // columns - b // columns)
    columns_apart = abs(a % columns - b % columns)
    return rows_apart + columns_apart == 1
