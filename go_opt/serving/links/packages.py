"""Packages that differ in links, memory or the order of their chips, as targets."""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

import numpy as np

from go_opt.env import Target, parse_target
from go_opt.env.target.toml import target_to_toml
from go_opt.env.target.topology import Topology, build_topology
from go_opt.errors import InvalidInputError

LinkEnds = tuple[int, int]  # the chips a link leaves and enters
_SHARE: Final = re.compile(r"([1-9][0-9]{0,3})\*(.+)")


def with_free_links(target: Target) -> Target:
    """The package with its links as a list, to which others may be added.

    Rules that need a ring do not hold: no triangle rule.

    Raises:
      InvalidInputError: its chips have no links among them.
    """
    if target.topology.kind == "host_star":
        raise InvalidInputError(
            f"the chips of {target.name!r} are linked to the host alone, so no link is added.", field="target"
        )
    free = replace(
        target,
        constraints=replace(target.constraints, triangle="off"),
        topology=replace(_listed(target.topology, []), num_chips=target.num_chips),
    )
    return parse_target(target_to_toml(free), target.source)


def missing_links(target: Target) -> list[LinkEnds]:
    """Pairs of chips without a link from the first to the second."""
    topology = target.topology
    there = set(zip(topology.link_from.tolist(), topology.link_to.tolist(), strict=True))
    chips = range(target.num_chips)
    return [(a, b) for a in chips for b in chips if a != b and (a, b) not in there]


def with_links(target: Target, added: Sequence[LinkEnds]) -> Target:
    """A package of :func:`with_free_links` with more links, as fast as the median of its own."""
    made = hashlib.sha256(f"{target.fingerprint}:{list(added)}".encode()).hexdigest()
    return replace(target, topology=_listed(target.topology, added), fingerprint=made)


def with_every_link(target: Target) -> Target:
    """A package on which each plan is as fast as with any links added.

    All pairs of chips have a link, and all links are as fast as the fastest.
    """
    every = with_links(target, missing_links(target))
    topology = every.topology
    fastest = replace(
        topology,
        rate_bytes_per_s=np.full_like(topology.rate_bytes_per_s, topology.rate_bytes_per_s.max()),
        latency_s=np.full_like(topology.latency_s, topology.latency_s.min()),
    )
    return replace(every, topology=fastest, fingerprint=f"{every.fingerprint}:fastest")


def with_memory(target: Target, memory_bytes: int) -> Target:
    """The package with so many bytes of memory on each chip."""
    kinds = tuple(replace(kind, sram_bytes=memory_bytes) for kind in target.kinds)
    return parse_target(target_to_toml(replace(target, kinds=kinds)), target.source)


def with_order(target: Target, order: str) -> Target:
    """The package with its chips in the order of ``2*big,4*small,2*big``.

    A kind that comes again is named anew: ``big-2``.

    Raises:
      InvalidInputError: the order has other chips than the package.
    """
    shares = [match.groups() if (match := _SHARE.fullmatch(one)) else ("1", one) for one in order.split(",")]
    counts = Counter[str]()
    for number, name in shares:
        counts[name] += int(number)
    has = {kind.name: kind.count for kind in target.kinds}
    if counts != has:
        chips = ",".join(f"{count}*{name}" for name, count in has.items())
        raise InvalidInputError(
            f"--order must have the chips {chips} in some order, not {order[:100]!r}.", field="order"
        )
    at, found, seen = {kind.name: i for i, kind in enumerate(target.kinds)}, [], Counter[str]()
    for number, name in shares:
        seen[name] += 1
        called = name if seen[name] == 1 else f"{name}-{seen[name]}"
        found.append((at[name], replace(target.kinds[at[name]], name=called, count=int(number))))
    parameters = tuple(target.simulator.kinds[i] for i, _ in found)
    ordered = replace(
        target,
        kinds=tuple(kind for _, kind in found),
        simulator=replace(target.simulator, kinds=parameters),
    )
    return parse_target(target_to_toml(ordered), target.source)


def _listed(topology: Topology, added: Sequence[LinkEnds]) -> Topology:
    rates, latencies_s = topology.rate_bytes_per_s, topology.latency_s
    links = [
        (int(a), int(b), float(rate), float(latency_s))
        for a, b, rate, latency_s in zip(
            topology.link_from, topology.link_to, rates, latencies_s, strict=True
        )
    ]
    if added:
        middle = len(links) // 2
        usual = float(np.sort(rates)[middle]), float(np.sort(latencies_s)[middle])
        links += [(a, b, *usual) for a, b in added]
    return build_topology("listed", topology.num_chips, 1.0, 0.0, links=links)
