"""Variations of a package in size and rates, on which a policy must not rely."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, replace

from go_opt.env import Target
from go_opt.env.target.topology import build_topology


@dataclass(frozen=True)
class Variation:
    """Factors on rates and memory, and the number of chips of a ring or chain of one kind."""

    chips: int
    link_rate: float
    compute_rate: float
    sram: float


def varied_target(target: Target, variation: Variation) -> Target:
    """``target`` varied.

    Other topologies than rings and chains keep their chips, and so do mixed kinds and single chips.
    """
    links = target.topology
    kinds = tuple(
        replace(
            kind,
            sram_bytes=max(1, int(kind.sram_bytes * variation.sram)),
            matrix_flops_per_s=_scaled(kind.matrix_flops_per_s, variation.compute_rate),
            vector_flops_per_s=_scaled(kind.vector_flops_per_s, variation.compute_rate),
            flops_per_s_by_op_type={
                name: _scaled(rates, variation.compute_rate)
                for name, rates in kind.flops_per_s_by_op_type.items()
            },
        )
        for kind in target.kinds
    )
    if links.is_ring and links.num_links and len(kinds) == 1:
        kinds = (replace(kinds[0], count=variation.chips),)
        rate, latency_s = float(links.rate_bytes_per_s.mean()), float(links.latency_s.mean())
        topology = build_topology(links.kind, variation.chips, rate * variation.link_rate, latency_s)
    else:
        topology = replace(links, rate_bytes_per_s=links.rate_bytes_per_s * variation.link_rate)
    digest = hashlib.sha256(f"{target.fingerprint} {variation}".encode()).hexdigest()
    return replace(target, kinds=kinds, topology=topology, fingerprint=digest)


def _scaled(rates: Mapping[str, float], factor: float) -> dict[str, float]:
    return {name: rate * factor for name, rate in rates.items()}
