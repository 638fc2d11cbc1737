"""What a plan would cost on a slightly better package, by costing it again there."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from go_opt.common.units import format_bytes
from go_opt.env import Metrics, Target
from go_opt.env.copies.expanded_tables import plan_tables
from go_opt.env.cost import CostTables
from go_opt.env.evaluation import evaluate_plan, plan_makespan_s
from go_opt.model.graph import Graph
from go_opt.model.plan import Plan
from go_opt.result import Objective

FASTER: Final = 1.1  # ten percent
_MORE_BYTES: Final = 4_000_000


@dataclass(frozen=True)
class WhatIf:
    """One change of the package: what the same plan costs then, and what binds its interval."""

    change: str
    interval_s: float
    bottleneck: str
    makespan_s: float


def what_ifs(
    graph: Graph,
    target: Target,
    plan: Plan,
    metrics: Metrics,
    binding: Sequence[int],
    objective: Objective = "throughput",
) -> tuple[WhatIf, ...]:
    """Every change that helps the objective, the most helpful first; ``binding`` are the terms at fault.

    The plan stays as it is: another plan may make more of the change, never less. Where the plan
    waits for streamed weights, changes after which some stream still have no closed form: of these
    only more memory is tried, in the simulator.
    """

    def reached_s(of: WhatIf | Metrics) -> float:
        return of.makespan_s if objective == "latency" else of.interval_s

    placed = plan_tables(graph, target, plan)
    found: list[WhatIf] = []
    for change, changed in _changes(target, placed.tables, metrics, binding):
        better = placed._replace(tables=changed)
        terms = better.evaluate()
        if metrics.waits and objective == "throughput" and terms.stream_bytes.any():
            continue
        what_if = WhatIf(
            change,
            float(terms.interval_s[0]),
            target.bottleneck_name(int(terms.bottleneck[0])),
            plan_makespan_s(better, terms),
        )
        # Changes of one kind grow from one to the next: those that add nothing are left out.
        is_more = not found or (reached_s(what_if), what_if.bottleneck) != (
            reached_s(found[-1]),
            found[-1].bottleneck,
        )
        if reached_s(what_if) < reached_s(metrics) and is_more:
            found.append(what_if)
    if metrics.stream_bytes.any():
        roomier = evaluate_plan(graph, _roomier(target), plan)
        change = f"{format_bytes(_MORE_BYTES)} more memory on each chip"
        what_if = WhatIf(change, roomier.interval_s, roomier.bottleneck, roomier.makespan_s)
        found += [what_if] if reached_s(what_if) < reached_s(metrics) else []
    return tuple(sorted(found, key=reached_s))


def _roomier(target: Target) -> Target:
    kinds = tuple(replace(kind, sram_bytes=kind.sram_bytes + _MORE_BYTES) for kind in target.kinds)
    return replace(target, kinds=kinds)


def _changes(
    target: Target, tables: CostTables, metrics: Metrics, binding: Sequence[int]
) -> Iterator[tuple[str, CostTables]]:
    links = [i - target.num_chips for i in binding]
    links = [link for link in links if 0 <= link < target.topology.num_links]
    if links:
        seconds = tables.link_s_per_byte.copy()
        seconds[links] /= FASTER
        names = ", ".join(target.link_names[link] for link in links)
        yield f"10 % more bandwidth on {names}", tables._replace(link_s_per_byte=seconds)
    for more, times in (("10 % more", FASTER), ("twice the", 2.0)):
        faster_links = tables._replace(link_s_per_byte=tables.link_s_per_byte / times)
        yield f"{more} bandwidth on every link", faster_links
    faster_host = tables._replace(
        host_in_s_per_byte=tables.host_in_s_per_byte / FASTER,
        host_out_s_per_byte=tables.host_out_s_per_byte / FASTER,
    )
    yield "10 % more bandwidth of the host", faster_host
    yield "10 % higher compute rates", tables._replace(op_s=tables.op_s / FASTER)
    yield "10 % more SRAM bandwidth", tables._replace(sram_s_per_byte=tables.sram_s_per_byte / FASTER)
    yield "half the overhead per kernel", tables._replace(kernel_overhead_s=tables.kernel_overhead_s / 2.0)
    if metrics.stream_bytes.any():
        # Peak and all weights together are more than any chip needs at once.
        weights = int(tables.tensor_bytes[tables.weight_by_size].sum())
        roomy = np.maximum(tables.sram_bytes, metrics.peak_bytes + weights)
        yield "memory for all weights, so that none stream", tables._replace(sram_bytes=roomy)
