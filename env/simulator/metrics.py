"""Simulates one plan; its metrics have names and reasons."""

from __future__ import annotations

from collections.abc import Collection
from functools import lru_cache

import numpy as np

from go_opt.common.arrays import FloatArray
from go_opt.env.copies.relays import expand_plan
from go_opt.env.model.metrics import STEP, Metrics, Simulation
from go_opt.env.simulator.package import NONE, STREAM_WAIT
from go_opt.env.simulator.simulate import (
    DEADLOCKED,
    FRAGMENTED,
    TOO_LARGE,
    VALID,
    SimulatedBatch,
    simulate_batch,
)
from go_opt.env.target import Target
from go_opt.model.graph import Graph
from go_opt.model.plan import Plan


def simulate_plan(
    graph: Graph,
    target: Target,
    plan: Plan,
    *,
    seed: int | None = None,
    without: Collection[str] = (),
) -> Metrics:
    """Run one plan to steady state; ``seed`` draws the noise of the measurement, None: no noise.

    A plan that does not run has an infinite interval, ``valid`` False and the reason.
    """
    return _simulated(graph, target, plan, seed, tuple(without))


@lru_cache(maxsize=8)  # the plans that a search has simulated are simulated for its answer
def _simulated(
    graph: Graph, target: Target, plan: Plan, seed: int | None, without: tuple[str, ...]
) -> Metrics:
    graph, plan = expand_plan(graph, target, plan)
    rows = (plan.placement, plan.order, plan.fusion_group, plan.replication)
    batch = simulate_batch(
        graph, target, *(row[None] for row in rows), forwards=plan.forwards, without=without
    )
    outcome = int(batch.outcome[0])
    is_step = graph.has_scope("model")  # which begins when the one before has ended
    interval_s = float((batch.makespan_s if is_step else batch.interval_s)[0]) * _noise(target, seed, without)
    return Metrics(
        interval_s=interval_s,
        throughput_per_s=1.0 / interval_s if interval_s > 0 else float("inf"),
        latency_s=float(batch.latency_s[0]),
        makespan_s=float(batch.makespan_s[0]),
        bottleneck=(STEP if is_step else _bottleneck(graph, target, batch)) if outcome == VALID else "",
        compute_s=batch.compute_s[0],
        link_s=batch.link_s[0],
        stream_bytes=batch.stream_bytes[0],
        peak_bytes=batch.peak_bytes[0],
        weight_bytes=batch.weight_bytes[0],
        valid=outcome == VALID,
        reason=_reason(graph, target, batch),
        simulation=Simulation(
            utilisation=_share(batch.compute_s[0], interval_s),
            stall_s=batch.stall_s[0],
            link_utilisation=_share(batch.link_s[0], interval_s),
            link_wait_s=batch.link_wait_s[0],
            period=int(batch.period[0]),
            inferences=int(batch.rounds[0]),
        ),
    )


def _share(busy_s: FloatArray, interval_s: float) -> FloatArray:
    return busy_s / interval_s if interval_s > 0 else np.zeros_like(busy_s)


def _noise(target: Target, seed: int | None, without: Collection[str]) -> float:
    """The noise factor of a measurement; log-normal, so that it stays above zero."""
    if seed is None or "noise" in without:
        return 1.0
    return float(np.exp(target.simulator.noise * np.random.default_rng(seed).standard_normal()))


def _bottleneck(graph: Graph, target: Target, batch: SimulatedBatch) -> str:
    """The busiest chip or link; a chip that waits for streamed weights counts as busy."""
    link_s = batch.link_s[0] * target.overlap  # else their time is that of chips
    busy_s = np.concatenate([batch.busy_s[0] + batch.stall_s[0, :, STREAM_WAIT], link_s])
    if graph.has_scope("sequence") and busy_s.max() < batch.interval_s[0] * (1.0 - 1e-6):
        return target.bottleneck_name(len(busy_s))
    return target.bottleneck_name(int(np.argmax(busy_s)))


def _reason(graph: Graph, target: Target, batch: SimulatedBatch) -> str:
    outcome, culprit = int(batch.outcome[0]), batch.culprit[0]
    if outcome == TOO_LARGE:
        chip = int(culprit[0])
        needs, has = int(batch.peak_bytes[0, chip]), int(target.chip_sram_bytes[chip])
        streams = " beside the buffer for streamed weights" if needs <= has else ""
        return f"out of memory: chip {chip} needs {needs} bytes for activations{streams} and has {has}"
    if outcome == FRAGMENTED:
        chip = int(culprit[0])
        return (
            f"out of memory: activations on chip {chip} reach up to byte {int(batch.peak_bytes[0, chip])} of "
            f"{int(target.chip_sram_bytes[chip])}, though their sizes add up to less"
        )
    if outcome == DEADLOCKED:
        link, tensor, inference = (int(value) for value in culprit)
        if link == NONE:  # only plans that break a rule: no route, or an invalid order
            return "deadlock: every chip waits for a tensor that never comes"
        return (
            f"deadlock: {target.link_names[link]} is stopped by tensor {graph.tensor_names[tensor]!r} of "
            f"inference {inference}, whose reader has no buffer free and waits for what is behind it"
        )
    return ""
