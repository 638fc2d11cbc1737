"""The timeline of the analytical model: the kernels and transfers of its latency, without contention.

Inferences start one interval apart and ignore each other: they may overlap on a chip or
link where simulated inferences wait.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from go_opt.env.copies.relays import expand_plan
from go_opt.env.cost.tables import cost_tables
from go_opt.env.evaluation import evaluate_plan
from go_opt.env.model.memory import FITS
from go_opt.env.model.timeline import Timeline
from go_opt.env.simulator.engine import run
from go_opt.env.simulator.package import HOST_OUT, NONE, STREAM, UNBOUNDED, Package
from go_opt.env.simulator.timeline import make_ready, timeline_of_spans
from go_opt.env.target import Target
from go_opt.env.target.kinds import EFFECTS
from go_opt.model.graph import Graph
from go_opt.model.plan import Plan


def analytical_timeline(graph: Graph, target: Target, plan: Plan, inferences: int) -> Timeline:
    """The timeline of ``inferences``, each with the terms of its latency; empty if the plan does not fit.

    The plan's latency is that of the first inference, on the first chip of each stage. Others take other
    routes.
    """
    graph, plan = expand_plan(graph, target, plan)
    without = [effect for effect in EFFECTS if effect not in target.analytical_effects]
    traced = make_ready(graph, target, plan, inferences, without=without)
    metrics = evaluate_plan(graph, target, plan)
    package = traced.assembly.package
    spans = package.spans[:0]
    if traced.assembly.fit.outcome == FITS:
        package.links["latency_s"][:-2] = cost_tables(graph, target).link_latency_s
        spans = np.concatenate([_streams(package, inferences), _undisturbed(package, inferences)])
        for field in ("start_s", "end_s"):
            spans[field] += spans["inference"] * metrics.interval_s
    return timeline_of_spans(traced, "analytical", metrics, spans)


def _undisturbed(package: Package, inferences: int) -> NDArray:
    """Spans from the entry of each inference on, as in :func:`go_opt.env.model.analytical.sample_latency_s`.

    An inference enters when the one before it has left, and no transfer waits for another one. Weights are
    prefetched, and outputs leave without set-up.
    """
    shared = package.shared
    shared["window"], shared["queues"], shared["packet_bytes"], shared["prefetch_all"] = 1, 0, 0, 0
    package.chips["engines"] = UNBOUNDED
    package.stages["stream"] = NONE
    package.flows["setup_s"][package.flows["kind"] == HOST_OUT] = 0.0
    run(package, inferences, UNBOUNDED)
    spans = package.spans[: shared["num_spans"][0]].copy()
    entered_s = np.concatenate([[0.0], package.rounds["completion_s"][:-1]])[spans["inference"]]
    for field in ("start_s", "end_s"):
        spans[field] -= entered_s
    return spans


def _streams(package: Package, inferences: int) -> NDArray:
    """Spans of streamed weights, one after the other; no kernel waits, since they are prefetched."""
    rows = []
    for inference in range(inferences):
        turn_of = inference % package.flows["in_round"] % package.flows["replicas"]
        is_turn = package.flows["replica"] == turn_of
        flows = np.flatnonzero((package.flows["kind"] == STREAM) & is_turn)
        spans, link = np.zeros(len(flows), package.spans.dtype), len(package.links) - 2
        spans["is_link"], spans["resource"], spans["subject"], spans["inference"] = 1, link, flows, inference
        spans["end_s"] = np.cumsum(package.flows["size_bytes"][flows] * package.links["s_per_byte"][link])
        spans["start_s"][1:] = spans["end_s"][:-1]
        rows.append(spans)
    return np.concatenate(rows)
