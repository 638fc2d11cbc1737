"""The independent check of ranges: plain loops, and the maximum flow of networkx."""

from __future__ import annotations

from collections.abc import Iterator

import networkx as nx

from go_opt.serving.mixed.search import RangePlan
from go_opt.solver import Violation

_TOLERANCE = 1e-6  # relative, of a flow


def check_ranges(plan: RangePlan) -> list[Violation]:
    """What the plan breaks: ranges, rates of nodes and links, and whether the flow is what it claims."""
    return [*_ranges(plan), *_flows(plan)] or [*_throughput(plan)]


def _ranges(plan: RangePlan) -> Iterator[Violation]:
    for name, start, end, most in zip(
        plan.case.cluster.node_names, plan.starts, plan.ends, plan.case.most_held, strict=True
    ):
        if not 0 <= start <= end <= plan.case.layers:
            yield Violation("layers", f"node {name} holds layers {start} to {end} of {plan.case.layers}.")
        elif end - start > most:
            yield Violation("layers", f"node {name} holds {end - start} layers, at most {most} fit.")


def _flows(plan: RangePlan) -> Iterator[Violation]:
    names, nodes = plan.case.cluster.node_names, plan.case.cluster.num_nodes
    for i, j in zip(*plan.flow_per_s.nonzero(), strict=True):
        flow = plan.flow_per_s[i, j]
        ends = (0 if i == nodes else plan.ends[i]), (plan.case.layers if j > nodes else plan.starts[j])
        named = f"{names[i] if i < nodes else 'source'} to {names[j] if j < nodes else 'sink'}"
        if ends[0] != ends[1]:
            yield Violation("flow", f"{named}: layers {ends[0]} and {ends[1]} do not follow each other.")
        if not 0.0 <= flow <= plan.case.link_per_s[i, j] * (1 + _TOLERANCE):
            yield Violation("link", f"{named}: {flow:.6g} tokens/s of {plan.case.link_per_s[i, j]:.6g}.")
    for node, name in enumerate(names):
        passed, left = plan.flow_per_s[:, node].sum(), plan.flow_per_s[node].sum()
        most = plan.case.node_per_s[node, plan.ends[node] - plan.starts[node]]
        if abs(passed - left) > _TOLERANCE * max(passed, left):
            yield Violation("flow", f"node {name}: {passed:.6g} tokens/s enter, {left:.6g} leave.")
        if passed > most * (1 + _TOLERANCE):
            yield Violation("node", f"node {name}: {passed:.6g} tokens/s of {most:.6g}.")


def _throughput(plan: RangePlan) -> Iterator[Violation]:
    most = networkx_flow(plan)
    if abs(most - plan.throughput_per_s) > _TOLERANCE * most:
        yield Violation("flow", f"{plan.throughput_per_s:.6g} tokens/s, the ranges pass {most:.6g}.")
    if most > plan.bound_per_s * (1 + _TOLERANCE):
        yield Violation("bound", f"{most:.6g} tokens/s, above the bound {plan.bound_per_s:.6g}.")


def networkx_flow(plan: RangePlan) -> float:
    """The maximum flow of the plan's ranges."""
    case, nodes = plan.case, plan.case.cluster.num_nodes
    graph = nx.DiGraph()
    graph.add_nodes_from([(nodes, "out"), (nodes + 1, "in")])
    ends, starts = [*plan.ends.tolist(), 0], [*plan.starts.tolist(), -1, case.layers]
    for i in range(nodes):
        if ends[i] > starts[i]:
            graph.add_edge((i, "in"), (i, "out"), capacity=float(case.node_per_s[i, ends[i] - starts[i]]))
    for i in range(nodes + 1):
        for j in range(nodes + 2):
            if ends[i] == starts[j] and case.link_per_s[i, j] > 0.0:
                graph.add_edge((i, "out"), (j, "in"), capacity=float(case.link_per_s[i, j]))
    return float(nx.maximum_flow_value(graph, (nodes, "out"), (nodes + 1, "in")))
