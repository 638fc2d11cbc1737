"""Which links to add to a package: plans and links in turn.

As TopoOpt (Wang et al., NSDI 2023) does for clusters: a plan for the links, then links for the traffic of the
plan, then a plan for these, until nothing is gained. It is begun with the plan of the package as it is, and
with that of the package with a link between each two chips, whose lower bound holds for all choices of links.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np

from go_opt.common.arrays import FloatArray
from go_opt.common.units import format_duration, format_ratio
from go_opt.env import Target, evaluate_plan
from go_opt.env.copies.splits import planned_graph
from go_opt.env.model.metrics import objective_s
from go_opt.errors import InvalidInputError
from go_opt.model.graph import NO_PRODUCER, Graph
from go_opt.model.plan import Plan
from go_opt.model.start import Start
from go_opt.result import OptimizeResult, Request
from go_opt.result_json import finite
from go_opt.search.bounds import bound_over_states
from go_opt.search.final_simulation import on_package
from go_opt.search.optimizer import optimize_request
from go_opt.search.rewriting.choices import open_graphs
from go_opt.search.splits.ways import divisible_ops
from go_opt.serving.links.packages import (
    LinkEnds,
    missing_links,
    with_every_link,
    with_free_links,
    with_links,
)
from go_opt.solver import Bound
from go_opt.solver.verify.verifier import verify

ROUNDS: Final = 3  # plans at most from each beginning
MOST_LOOKED_AT: Final = 64  # links for a plan: those between chips with the most traffic
LONGER: Final = 1.0 + 1e-9  # ratio up to which times are equal
_LINKS: Final = re.compile(r"\+?([1-9][0-9]{0,3}) links?")


@dataclass(frozen=True, eq=False)
class Design:
    """A package, its best plan, and what was added to come there."""

    target: Target
    added: tuple[LinkEnds, ...]
    before: OptimizeResult  # without added links
    result: OptimizeResult
    bound: Bound  # of every plan with any links added
    searches: int

    @property
    def gap(self) -> float:
        """How far the plan is from the bound; infinite without one."""
        return self.result.objective_s / self.bound.seconds - 1.0 if self.bound.seconds else math.inf


def design_links(
    graph: Graph,
    target: Target,
    number: int,
    request: Request,
    *,
    ports: int | None = None,
    on_plan: Callable[[int, OptimizeResult], None] = lambda links, found: None,
    should_stop: Callable[[], bool] = lambda: False,
) -> Design:
    """At most ``number`` links, each in one direction, that make the best plan the fastest.

    Args:
      number: with 0 the package is planned as it is, with all its rules.
      request: the budget is for each plan.
      ports: links that leave, and that enter, a chip at most, where links are added.
      on_plan: called with the links added and the plan of each search.

    Raises:
      InfeasibleError: the package as it is has no plan.
      InvalidInputError: no link can be added.
    """
    base = with_free_links(target) if number else target
    missing = missing_links(base) if number else []
    if number and not missing:
        raise InvalidInputError(f"all chips of {target.name!r} have links already.", field="target")
    searches = 0

    def plan_for(links: Sequence[LinkEnds], on: Target, start: OptimizeResult | None) -> OptimizeResult:
        nonlocal searches
        searches += 1
        asked = request
        if start is not None:
            names = planned_graph(graph, start.plan).op_names
            asked = replace(request, start=Start.of_plan(start.plan, names))
        found = optimize_request(graph, on, asked, should_stop=should_stop)
        on_plan(len(links), found)
        return found

    before = plan_for((), base, None)
    if not number:
        return Design(base, (), before, before, Bound(before.lower_bound_s, before.bound_reason), searches)
    every = with_every_link(base)
    bounds = (
        bound_over_states(one, every, request, divisible_ops(one, every, request))
        for one in open_graphs(graph, every, request)
    )
    bound = min(bounds, key=lambda one: one.seconds)
    best, best_links = before, tuple[LinkEnds, ...]()

    def is_over() -> bool:
        return should_stop() or best.objective_s <= bound.seconds * LONGER

    for on, start in ((base, None), (every, before), (every, None)):
        if is_over():
            break
        last = before if on is base else plan_for(missing, on, start)
        tried: set[tuple[LinkEnds, ...]] = {()} if on is base else set()
        for _ in range(ROUNDS):
            links = links_for(graph, base, last.plan, missing, number, request, ports)
            if is_over() or links in tried:
                break
            tried.add(links)
            last = plan_for(links, with_links(base, links), last)
            if last.objective_s * LONGER < best.objective_s:
                best, best_links = last, links
    needed = _needed(graph, base, best, best_links, request)
    made = with_links(base, needed)
    result = on_package(graph, made, request, best)
    return Design(made, needed, before if needed else result, result, bound, searches)


def links_for(
    graph: Graph,
    base: Target,
    plan: Plan,
    missing: Sequence[LinkEnds],
    number: int,
    request: Request,
    ports: int | None = None,
) -> tuple[LinkEnds, ...]:
    """The links, sorted, that make ``plan`` the fastest: one after another, then each against all others."""
    planned = planned_graph(graph, plan)
    traffic = _traffic(planned, base.num_chips, plan)
    looked_at = _with_most_traffic(base, traffic, missing)
    pairs = np.argwhere(traffic > 0).tolist()

    def cost(links: Sequence[LinkEnds]) -> tuple[float, ...]:
        """Pairs of chips without a route, the objective, then the loads of links, the largest first."""
        package = with_links(base, links)
        apart = sum(not package.topology.has_route(a, b) for a, b in pairs)
        metrics = evaluate_plan(planned, package, plan, waits=False)
        loads_s = sorted(metrics.link_s.tolist(), reverse=True)
        return float(apart), objective_s(metrics, request.minimised), *loads_s

    chosen: list[LinkEnds] = []
    least = cost(chosen)

    def add_best() -> bool:
        nonlocal least
        others = [one for one in looked_at if one not in chosen and _have_ports(base, [*chosen, one], ports)]
        costs = [(cost([*chosen, one]), one) for one in others]
        if not costs or min(costs)[0] >= least:
            return False
        least = min(costs)[0]
        chosen.append(min(costs)[1])
        return True

    while len(chosen) < number and add_best():
        pass
    for one in tuple(chosen):  # replaced by a better one, or by itself
        kept, reached = list(chosen), least
        chosen.remove(one)
        least = cost(chosen)
        if not add_best() or least >= reached:
            chosen[:], least = kept, reached
    return tuple(sorted(chosen))


def _have_ports(base: Target, links: Sequence[LinkEnds], ports: int | None) -> bool:
    """Whether no chip of the links has more than ``ports`` on either side."""
    ends = base.topology.link_from, base.topology.link_to
    return ports is None or all(
        int((ends[side] == link[side]).sum()) + sum(one[side] == link[side] for one in links) <= ports
        for link in links
        for side in (0, 1)
    )


def _with_most_traffic(base: Target, traffic: FloatArray, missing: Sequence[LinkEnds]) -> Sequence[LinkEnds]:
    """Of many missing links, those between chips with the most traffic times links on the way."""
    if len(missing) <= MOST_LOOKED_AT:
        return missing
    hops = np.diff(base.topology.routes[0]).reshape(traffic.shape)
    by_traffic = sorted(missing, key=lambda ends: -traffic[ends] * max(int(hops[ends]), 1))
    return [ends for ends in by_traffic[:MOST_LOOKED_AT] if traffic[ends] > 0]


def _traffic(graph: Graph, num_chips: int, plan: Plan) -> FloatArray:
    """[D, D] elements that one chip sends another for each inference; replicas share them equally."""
    sent = np.zeros((num_chips, num_chips))
    first, size = plan.placement, plan.replication
    for tensor in np.flatnonzero(graph.tensor_producer != NO_PRODUCER).tolist():
        source = int(graph.tensor_producer[tensor])
        for reader in graph.readers_of(tensor):
            a, b = (slice(first[op], first[op] + size[op]) for op in (source, reader))
            sent[a, b] += max(graph.tensor_elements[tensor], 1) / (size[source] * size[reader])
    np.fill_diagonal(sent, 0.0)
    return sent


def _needed(
    graph: Graph, base: Target, best: OptimizeResult, links: tuple[LinkEnds, ...], request: Request
) -> tuple[LinkEnds, ...]:
    """The links without those that the plan is as fast without."""
    for one in links:
        fewer = tuple(other for other in links if other != one)
        there = on_package(graph, with_links(base, fewer), request, best)
        is_as_fast = there.objective_s <= best.objective_s * LONGER
        if is_as_fast and not verify(planned_graph(graph, there.plan), with_links(base, fewer), there.plan):
            links = fewer
    return links


def parse_links(text: str) -> int:
    """The number of ``+8 links``.

    Raises:
      InvalidInputError: it is another text.
    """
    match = _LINKS.fullmatch(text.strip())
    if match is None:
        raise InvalidInputError(
            f"--budget must be links to add, such as '+8 links', not {text[:100]!r}.", field="budget"
        )
    return int(match[1])


def design_to_dict(name: str, design: Design) -> dict[str, Any]:
    """A package as ``design --json`` has it; ``name`` says what was asked of it."""
    result = design.result
    return {
        "package": name,
        "links": [{"source": a, "destination": b} for a, b in design.added],
        "before_s": design.before.objective_s,
        "objective_s": result.objective_s,
        "simulated_interval_s": None
        if result.simulated_interval_s is None
        else finite(result.simulated_interval_s),
        "latency_s": result.metrics.latency_s,
        "bottleneck": result.metrics.bottleneck,
        "lower_bound_s": design.bound.seconds,
        "bound_reason": design.bound.reason,
        "gap": finite(design.gap),
        "chips_used": result.plan.chips_used,
        "searches": design.searches,
    }


def design_lines(designs: Sequence[tuple[str, Design]], best: int) -> Iterator[str]:
    """Each package, and what to add to the best."""
    for name, design in designs:
        gap = format_ratio(design.gap)
        yield (
            f"{name}: {format_duration(design.result.objective_s)}, by {design.result.metrics.bottleneck}; "
            f"no choice below {format_duration(design.bound.seconds)}, gap {gap}"
        )
    name, design = designs[best]
    if len(designs) > 1:
        yield f"best        {name}"
    after_s, before_s = design.result.objective_s, design.before.objective_s
    if design.added:
        links = ", ".join(f"{a}->{b}" for a, b in design.added)
        yield f"add         {links}"
        yield f"gain        {format_duration(before_s)} to {format_duration(after_s)}"
    elif design.searches > 1 or after_s <= design.bound.seconds:
        yield "add         no link: none of those tried makes a plan faster"
