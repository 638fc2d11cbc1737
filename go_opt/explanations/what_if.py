"""Costs a plan again on a slightly better package, or list-schedules its kernels with one more chip."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from go_opt.common.units import format_bytes
from go_opt.env import Metrics, Target, cost_tables
from go_opt.env.copies.expanded_tables import plan_tables
from go_opt.env.cost import CostTables
from go_opt.env.evaluation import evaluate_plan, objectives_s, plan_makespan_s
from go_opt.env.kernels.numbering import number_kernels
from go_opt.env.model.metrics import objective_s
from go_opt.env.target.topology import build_topology
from go_opt.model.graph import Graph
from go_opt.model.plan import Plan
from go_opt.result import Objective
from go_opt.solver import list_scheduling, upward_ranks

FASTER: Final = 1.1  # 10 % faster
_MORE_BYTES: Final = 4_000_000


@dataclass(frozen=True)
class WhatIf:
    """One change of the package, the cost of the same plan there, and its bottleneck."""

    change: str
    interval_s: float
    bottleneck: str
    makespan_s: float


@dataclass(frozen=True)
class OneMoreChip:
    """Makespans of a list schedule of the plan's kernels; infinite if they exceed memory."""

    makespan_s: float  # with one more chip, linked like the others
    makespan_without_s: float  # on the existing chips


def one_more_chip(graph: Graph, target: Target, plan: Plan) -> OneMoreChip | None:
    """The effect of one more chip; None if the target has static constraints, or unequal chips or links."""
    topology, rules, kind = target.topology, target.constraints, target.kinds[0]
    rates = np.unique([topology.rate_bytes_per_s, topology.latency_s], axis=1).T.tolist()
    are_alike = len(target.kinds) == len(rates) == 1 and topology.kind in ("all_to_all", "host_star")
    if not are_alike or (rules.acyclic, rules.no_skip, rules.triangle) != (False, "off", "off"):
        return None
    count = target.num_chips + 1
    links = build_topology(topology.kind, count, *rates[0])
    larger = replace(target, kinds=(replace(kind, count=count),), topology=links)
    return OneMoreChip(_listed_s(graph, larger, plan), _listed_s(graph, target, plan))


def _listed_s(graph: Graph, target: Target, plan: Plan) -> float:
    """Makespan of a list schedule of the plan's kernels by upward rank."""
    tables = cost_tables(graph, target)
    rank = upward_ranks(tables, plan.order, number_kernels(plan.order, plan.fusion_group), 1.0)
    rows = [row[None] for row in list_scheduling(tables, plan.order, plan.fusion_group, rank)]
    return float(objectives_s(tables, "latency", *rows)[0][0])


def what_ifs(
    graph: Graph,
    target: Target,
    plan: Plan,
    metrics: Metrics,
    binding: Sequence[int],
    objective: Objective = "throughput",
) -> tuple[WhatIf, ...]:
    """The changes that improve the objective, best first; ``binding`` are indices of the binding terms.

    The plan stays the same, so a new search could gain more, never less. If the plan waits for
    streamed weights, changes that leave weights streaming have no closed form. Of these,
    only more memory and more bandwidth are tried, in the simulator.
    """

    def reached_s(of: WhatIf | Metrics) -> float:
        return objective_s(of, objective)

    placed = plan_tables(graph, target, plan)
    found: list[WhatIf] = []
    waits = metrics.waits and objective == "throughput"
    for change, changed in _changes(target, placed.tables, metrics, binding):
        better = placed._replace(tables=changed)
        terms = better.evaluate()
        if waits and terms.stream_bytes.any():
            continue
        what_if = WhatIf(
            change,
            float(terms.interval_s[0]),
            target.bottleneck_name(int(terms.bottleneck[0])),
            plan_makespan_s(better, terms),
        )
        # Successive changes of one kind get larger; one that gains nothing more is left out.
        is_more = not found or (reached_s(what_if), what_if.bottleneck) != (
            reached_s(found[-1]),
            found[-1].bottleneck,
        )
        if reached_s(what_if) < reached_s(metrics) and is_more:
            found.append(what_if)
    if metrics.stream_bytes.any():
        for change, changed_target in _simulated_changes(target, waits=waits):
            then = evaluate_plan(graph, changed_target, plan)
            what_if = WhatIf(change, then.interval_s, then.bottleneck, then.makespan_s)
            found += [what_if] if reached_s(what_if) < reached_s(metrics) else []
    return tuple(sorted(found, key=reached_s))


def _simulated_changes(target: Target, *, waits: bool) -> Iterator[tuple[str, Target]]:
    kinds = tuple(replace(kind, sram_bytes=kind.sram_bytes + _MORE_BYTES) for kind in target.kinds)
    yield f"{format_bytes(_MORE_BYTES)} more memory on each chip", replace(target, kinds=kinds)
    if waits:
        links = replace(target.topology, rate_bytes_per_s=target.topology.rate_bytes_per_s * FASTER)
        yield "10 % more bandwidth on every link", replace(target, topology=links)
        into, out = target.host_in_bytes_per_s * FASTER, target.host_out_bytes_per_s * FASTER
        yield (
            "10 % more bandwidth of the host",
            replace(target, host_in_bytes_per_s=into, host_out_bytes_per_s=out),
        )


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
        # No chip needs more memory than its peak activations plus all weights.
        weights = int(tables.tensor_bytes[tables.weight_by_size].sum())
        roomy = np.maximum(tables.sram_bytes, metrics.peak_bytes + weights)
        yield "memory for all weights, so that none stream", tables._replace(sram_bytes=roomy)
