"""The timeline of the analytical model: the kernels and transfers of its latency, without contention.

Inferences start one interval apart and ignore each other: they may overlap on a chip or
link where simulated inferences wait.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from go_opt.common.arrays import BoolArray, FloatArray
from go_opt.env.copies.relays import expand_plan
from go_opt.env.cost import cost_tables
from go_opt.env.evaluation import evaluate_plan
from go_opt.env.model.memory import FITS
from go_opt.env.model.timeline import Timeline
from go_opt.env.simulator.package import CHIP_FLOW, HOST_IN, NONE, STREAM, Package, crosses
from go_opt.env.simulator.timeline import make_ready, timeline_of_spans
from go_opt.env.target import Target
from go_opt.env.target.simulator_parameters import EFFECTS
from go_opt.model.graph import Graph
from go_opt.model.plan import Plan

_Row = tuple[bool, int, int, int, float, float]  # of package.SPAN


def analytical_timeline(graph: Graph, target: Target, plan: Plan, inferences: int) -> Timeline:
    """The timeline of ``inferences``, each with the terms of its latency; empty if the plan does not fit.

    The plan's latency is that of the first inference, on the first chip of each stage. Others take other
    routes.
    """
    graph, plan = expand_plan(graph, target, plan)
    without = [effect for effect in EFFECTS if effect not in target.analytical_effects]
    traced = make_ready(graph, target, plan, inferences, without=without)
    metrics = evaluate_plan(graph, target, plan)
    package, latency_s = traced.assembly.package, cost_tables(graph, target).link_latency_s
    spans = package.spans[:0]
    if traced.assembly.fit.outcome == FITS:
        turns = [
            np.array([*_streams(package, i), *_one_inference(package, latency_s, i)], spans.dtype)
            for i in range(min(inferences, int(package.shared["cycle"][0])))
        ]
        runs = [turns[i % len(turns)].copy() for i in range(inferences)]
        for i, run in enumerate(runs):
            run["inference"] = i
            for field in ("start_s", "end_s"):
                run[field] += i * metrics.interval_s
        spans = np.concatenate(runs)
    return timeline_of_spans(traced, "analytical", metrics, spans)


def _turn_of(rows: NDArray, inference: int) -> BoolArray:
    """True for the chips, flows or deliveries whose turn an inference is."""
    return inference % rows["round"] % rows["replicas"] == rows["replica"]


def _streams(package: Package, inference: int) -> Iterator[_Row]:
    """Spans of streamed weights, one after the other; no kernel waits, since they are prefetched."""
    link, now_s = len(package.links) - 2, 0.0
    is_mine = (package.flows["kind"] == STREAM) & _turn_of(package.flows, inference)
    for number in np.flatnonzero(is_mine):
        end_s = now_s + package.flows[number]["size_bytes"] * package.links[link]["s_per_byte"]
        yield True, link, int(number), 0, now_s, end_s
        now_s = end_s


def _one_inference(package: Package, latency_s: FloatArray, inference: int) -> Iterator[_Row]:
    """Spans by the recursion of :func:`go_opt.env.model.latency.sample_latency_s`; ``latency_s`` [L]."""
    host_in, host_out = len(package.links) - 2, len(package.links) - 1
    free_s = np.zeros(len(package.chips))
    arrival_s = np.zeros(len(package.deliveries))
    for number in np.flatnonzero(package.flows["kind"] == HOST_IN):
        flow = package.flows[number]
        end_s = flow["size_bytes"] * package.links[host_in]["s_per_byte"]
        arrival_s[flow["delivery_begin"] : flow["delivery_end"]] = end_s
        yield True, host_in, int(number), 0, 0.0, end_s
    chip_of = np.repeat(np.arange(len(free_s)), package.chips["stage_end"] - package.chips["stage_begin"])
    # Kernels are numbered along the plan's order, so a stage comes after those it reads from.
    is_mine = _turn_of(package.chips, inference)
    for number in np.argsort(package.chip_kernel[package.stages["kernel"]]):
        stage, chip = package.stages[number], int(chip_of[number])
        if not is_mine[chip]:
            continue
        needs = package.refs[stage["needs_begin"] : stage["needs_end"]]
        start_s = max(free_s[chip], arrival_s[needs].max(initial=0.0))
        end_s = free_s[chip] = start_s + stage["seconds"]
        yield False, chip, int(number), 0, start_s, end_s
        for made in package.refs[stage["makes_begin"] : stage["makes_end"]]:
            flow = package.flows[made]
            if flow["kind"] == CHIP_FLOW:
                yield from _transfers(package, int(made), inference, end_s, latency_s, arrival_s)
            else:
                sent_s = end_s + flow["size_bytes"] * package.links[host_out]["s_per_byte"]
                yield True, host_out, int(made), 0, end_s, sent_s


def _transfers(
    package: Package,
    number: int,
    inference: int,
    made_s: float,
    latency_s: FloatArray,
    arrival_s: FloatArray,
) -> Iterator[_Row]:
    """Spans of a tensor on its links, each as slow as the slowest so far; fills ``arrival_s``."""
    flow = package.flows[number]
    begin_s, s_per_byte = {NONE: made_s}, {NONE: 0.0}
    lands = _turn_of(package.deliveries, inference)
    for i in range(flow["hop_begin"], flow["hop_end"]):
        hop = package.hops[i]
        if not crosses(package.others, hop, inference):
            continue  # no reader of this inference is behind this link
        start_s = begin_s[hop["parent"]]
        s_per_byte[i] = max(s_per_byte[hop["parent"]], package.links[hop["link"]]["s_per_byte"])
        end_s = start_s + flow["size_bytes"] * s_per_byte[i]
        begin_s[i] = start_s + latency_s[hop["link"]]
        yield True, int(hop["link"]), number, 0, start_s, end_s
        if hop["delivery"] != NONE and lands[hop["delivery"]]:
            reader = package.chips[package.deliveries[hop["delivery"]]["chip"]]
            arrival_s[hop["delivery"]] = end_s + latency_s[hop["link"]] + reader["dependency_s"]
