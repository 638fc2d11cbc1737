"""The time to send a tensor from one chip to another."""

from __future__ import annotations

import numpy as np

from go_opt.common.arrays import FloatArray
from go_opt.common.compiling import uncounted
from go_opt.env.cost.tables import CostTables

# Stands for infinity if there is no route; finite, so that zero bytes take zero seconds.
NO_ROUTE_S_PER_BYTE = 1e30


def hop_seconds_per_byte(tables: CostTables) -> FloatArray:
    """[D] seconds per byte from chip d to chip d + 1 on the slowest link; the last is zero."""
    num_chips = tables.num_chips
    hops = np.zeros(num_chips)
    for d in range(num_chips - 1):
        if tables.is_ring:
            hops[d] = tables.link_s_per_byte[d]
            continue
        pair = d * num_chips + d + 1
        links = tables.route_link[tables.route_ptr[pair] : tables.route_ptr[pair + 1]]
        hops[d] = tables.link_s_per_byte[links].max() if len(links) else NO_ROUTE_S_PER_BYTE
    return hops


@uncounted
def transfer_s(tables: CostTables, source: int, destination: int, size: int) -> float:
    """Seconds from one chip to another alone: set-up, hop latencies, the slowest link, the dependency.

    No bytes take no time: a collective has their exchange (:mod:`go_opt.env.cost.exchanges`).
    """
    if source == destination or size == 0:
        return 0.0
    num_chips = len(tables.chip_kind)
    setup_s = tables.dma_setup_s[tables.chip_kind[source]]
    setup_s += tables.dependency_s[tables.chip_kind[destination]]
    if tables.is_ring:
        hops = (destination - source) % num_chips
        return setup_s + hops * tables.link_latency_s[0] + size * tables.link_s_per_byte[0]
    pair = source * num_chips + destination
    latency_s = 0.0
    slowest = 0.0
    for i in range(tables.route_ptr[pair], tables.route_ptr[pair + 1]):
        latency_s += tables.link_latency_s[tables.route_link[i]]
        slowest = max(slowest, tables.link_s_per_byte[tables.route_link[i]])
    return setup_s + latency_s + size * slowest
