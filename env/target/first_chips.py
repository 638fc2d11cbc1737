"""Smaller packages: the first chips of a target, with the links among them."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from itertools import product

from go_opt.env.target.definition import Target
from go_opt.env.target.topology import Topology
from go_opt.errors import TargetError


def first_chips(target: Target, count: int) -> Target:
    """The package of chips 0 to ``count - 1``; a plan for it is one for ``target`` too.

    Raises:
      TargetError: the target has fewer chips, its plans must use all of them, or routes among
        the first chips pass through others.
    """
    if not 1 <= count <= target.num_chips:
        raise TargetError(
            f"{count} chips of {target.name!r}, which has 1 to {target.num_chips}.", field="chips"
        )
    if count == target.num_chips:
        return target
    if target.constraints.no_skip == "all":
        raise TargetError(f"plans for {target.name!r} use all of its chips.", field="constraints.no_skip")
    kinds, left = [], count
    for kind in target.kinds:
        kinds.append(replace(kind, count=min(kind.count, left)))
        left -= kinds[-1].count
    return replace(
        target,
        kinds=tuple(kinds),
        topology=_among_first(target, count),
        fingerprint=hashlib.sha256(f"{target.fingerprint}:{count} chips".encode()).hexdigest(),
    )


def _among_first(target: Target, count: int) -> Topology:
    topology = target.topology
    if topology.kind == "ring" and not target.goes_forward:
        raise TargetError(
            f"results of {target.name!r} go around the whole ring, so it needs all chips.", field="topology"
        )
    kept = (topology.link_from < count) & (topology.link_to < count)
    part = replace(
        topology,
        kind="chain" if topology.kind == "ring" else topology.kind,  # no result crosses the last link
        num_chips=count,
        link_src=tuple(name for name, keeps in zip(topology.link_src, kept, strict=True) if keeps),
        link_dst=tuple(name for name, keeps in zip(topology.link_dst, kept, strict=True) if keeps),
        link_from=topology.link_from[kept],
        link_to=topology.link_to[kept],
        rate_bytes_per_s=topology.rate_bytes_per_s[kept],
        latency_s=topology.latency_s[kept],
    )
    if part.is_ring:
        return part
    for chip, other in product(range(count), repeat=2):
        if topology.has_route(chip, other) and not part.has_route(chip, other):
            raise TargetError(
                f"the route from chip {chip} to chip {other} of {target.name!r} uses later chips.",
                field="topology",
            )
    return part
