"""The links of a package: their rates, and the bytes that they carry in a cycle of inferences."""

from __future__ import annotations

from math import gcd

import numpy as np

from go_opt.common.arrays import FloatArray, Record, RecordArray
from go_opt.common.compiling import compiled_inner, int64, uncounted_inner
from go_opt.env.cost.tables import CostTables
from go_opt.env.model.traffic import MOST_TURNS
from go_opt.env.simulator.package import CHIP_FLOW, HOST_OUT, LINK, crosses, takes


@compiled_inner
def lay_links(
    tables: CostTables,
    link_latency_s: FloatArray,
    shared: Record,
    chips: RecordArray,
    flows: RecordArray,
    hops: RecordArray,
    others: RecordArray,
) -> RecordArray:
    """LINK records of the links between chips and the host's two, filled from the flows that cross them."""
    num_links = len(link_latency_s)
    links = np.zeros(num_links + 2, LINK)
    for i in range(num_links):
        links[i].s_per_byte, links[i].latency_s = tables.link_s_per_byte[i], link_latency_s[i]
    links[num_links].s_per_byte = tables.host_in_s_per_byte
    links[num_links + 1].s_per_byte = tables.host_out_s_per_byte
    for i in range(len(links)):
        # On a ring, link i leaves chip i; it is inside if the next chip is another replica.
        is_inside = i < len(chips) and chips[i].replica + 1 < chips[i].replicas
        links[i].cycle = chips[i].in_round if is_inside else 1
        if i < num_links and not tables.is_ring:
            links[i].cycle = min(shared.cycle, MOST_TURNS)
    for i in range(len(hops)):
        flow, link = flows[hops[i].flow], links[hops[i].link]
        if tables.is_ring:
            crossings = _crossings_of_ring(chips, flow, hops[i], link.cycle)
        else:
            crossings = _crossings(others, flow, hops[i], link.cycle)
        link.round_bytes += flow.size_bytes * crossings
    host_in = links[num_links]
    for flow in flows:
        if flow.is_forwarded:
            cycle = host_in.cycle * (flow.replicas // gcd(host_in.cycle, flow.replicas))
            host_in.cycle = min(cycle, MOST_TURNS)
    for flow in flows:
        if flow.is_forwarded and flow.replica > 0:
            links[flow.chip - 1].round_bytes += flow.size_bytes
        elif flow.kind == HOST_OUT and flow.replica == 0:
            links[num_links + 1].round_bytes += flow.size_bytes
        elif flow.kind != CHIP_FLOW and flow.replica == 0:
            turns = host_in.cycle // flow.replicas if flow.is_forwarded else host_in.cycle
            host_in.round_bytes += flow.size_bytes * turns
    return links


@uncounted_inner
def _crossings(others: RecordArray, flow: Record, hop: Record, cycle: int) -> int:
    """The number of inferences of a link's cycle in which a flow crosses it."""
    crossings = int64(0)
    for inference in range(cycle):
        crossings += takes(flow, inference) and crosses(others, hop, inference)
    return crossings


@uncounted_inner
def _crossings_of_ring(chips: RecordArray, flow: Record, hop: Record, cycle: int) -> int:
    """The same on a ring, in closed form; the first replica counts for all."""
    if cycle > 1 and hop.link - chips[hop.link].replica == flow.chip - flow.replica:
        return flow.turns
    if flow.replica > 0:
        return 0
    # Inside the readers' replicas, only inferences for the later ones.
    return cycle - cycle // hop.readers * hop.nearer - min(cycle % hop.readers, hop.nearer)
