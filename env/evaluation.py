"""Metrics of plans: the analytical terms of one plan with names and reasons."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Final

import numpy as np

from go_opt.common.arrays import FloatArray, IntArray, LongArray
from go_opt.env.copies.relays import PlanTables, plan_tables
from go_opt.env.cost.tables import CostTables
from go_opt.env.model.analytical import BatchMetrics, evaluate_batch
from go_opt.env.model.makespan import executions
from go_opt.env.model.metrics import STEP, WAITING, Fidelity, Metrics, Objective, check_fidelity
from go_opt.env.target import Target
from go_opt.model.graph import Graph
from go_opt.model.plan import Plan

Plans = IntArray  # [B, N] placements, orders or kernels of a batch of plans
# (placement, order, fusion_group) -> [B] interval_s, infinite where the plan is invalid.
Evaluate = Callable[[Plans, Plans, Plans], FloatArray]
LONGER: Final = 1.0 + 1e-6  # ratio up to which intervals are equal


def evaluate_plan(
    graph: Graph,
    target: Target,
    plan: Plan,
    *,
    fidelity: Fidelity = "analytical",
    seed: int | None = None,
    waits: bool = True,
) -> Metrics:
    """Cost one plan; ``valid`` says whether its activations fit every chip, and if simulated, it runs.

    If chips stream weights only one kernel ahead, their waiting has no closed form. The
    interval is then that of the simulator, if it is longer.

    Static constraints are checked by :mod:`go_opt.solver.verify.verifier`;
    :func:`go_opt.evaluate` does both.

    Args:
      seed: draws the noise of a simulated measurement; None: no noise.
      waits: whether waiting for weights is simulated.
    """
    check_fidelity(fidelity)
    if fidelity == "simulated":
        # The simulator loads on first use.
        from go_opt.env.simulator.simulate import simulate_plan

        return simulate_plan(graph, target, plan, seed=seed)
    placed = plan_tables(graph, target, plan)
    terms = placed.evaluate()
    reason = out_of_memory_reason(placed.tables, terms)
    interval_s, makespan_s = float(terms.interval_s[0]), plan_makespan_s(placed, terms)
    bottleneck = target.bottleneck_name(int(terms.bottleneck[0]))
    if graph.has_scope("model"):  # a step begins when the one before has ended
        interval_s, bottleneck = makespan_s, STEP
    metrics = Metrics(
        interval_s=interval_s,
        throughput_per_s=1.0 / interval_s if interval_s > 0 else float("inf"),
        latency_s=float(terms.latency_s[0]),
        makespan_s=makespan_s,
        bottleneck=bottleneck,
        compute_s=terms.compute_s[0],
        link_s=terms.link_s[0],
        stream_bytes=terms.stream_bytes[0],
        peak_bytes=terms.peak_bytes[0],
        weight_bytes=terms.weight_bytes[0],
        valid=not reason,
        reason=reason,
    )
    if reason or not waits or not may_wait(target, metrics.stream_bytes):
        return metrics
    from go_opt.env.simulator.simulate import simulate_plan

    return with_waiting(target, metrics, simulate_plan(graph, target, plan))


def with_waiting(target: Target, metrics: Metrics, simulated: Metrics) -> Metrics:
    """Analytical ``metrics`` with the simulated interval, if waiting for weights makes it longer."""
    is_longer = simulated.valid and simulated.interval_s > metrics.interval_s * LONGER
    if not (is_longer and may_wait(target, metrics.stream_bytes)):
        return metrics
    return replace(
        metrics,
        interval_s=simulated.interval_s,
        throughput_per_s=simulated.throughput_per_s,
        bottleneck=WAITING,
    )


def objectives_s(
    tables: CostTables,
    objective: Objective,
    placement: IntArray,  # [B, N], as the others
    order: IntArray,
    fusion_group: IntArray,
    replication: IntArray | None = None,
) -> tuple[FloatArray, BatchMetrics]:
    """[B] objective of each plan, infinite if it does not fit, and its terms; makespans have no replicas."""
    terms = evaluate_batch(tables, placement, order, fusion_group, replication)
    if objective == "latency":
        return makespans_s(tables, terms, placement, order, fusion_group), terms
    return np.where(terms.fits, terms.interval_s, np.inf), terms


def makespans_s(
    tables: CostTables,
    terms: BatchMetrics,
    placement: IntArray,  # [B, N]
    order: IntArray,  # [B, N]
    fusion_group: IntArray,  # [B, N]
) -> FloatArray:
    """[B] seconds of one execution of each plan alone, given their terms; infinite if it does not fit."""
    seconds, fits = np.full(len(placement), np.inf), terms.fits
    rows = placement[fits], order[fits], fusion_group[fits], terms.stream_bytes[fits]
    seconds[fits] = [ran.makespan_s for ran in executions(tables, *rows)]
    return seconds


def may_wait(target: Target, stream_bytes: LongArray) -> bool:
    """Whether chips may wait for streamed weights even if the host's link has time; ``stream_bytes`` [D]."""
    return target.overlap and not target.modelled.weight_prefetch and bool(stream_bytes.any())


def plan_makespan_s(placed: PlanTables, terms: BatchMetrics) -> float:
    """Seconds of one execution of a plan alone, given its (one-plan) terms."""
    rows = placed.placement[None], placed.order[None], placed.fusion_group[None]
    return next(executions(placed.tables, *rows, terms.stream_bytes)).makespan_s


def out_of_memory_reason(tables: CostTables, terms: BatchMetrics) -> str:
    """Why the activations of the only plan of ``terms`` do not fit; empty if they do.

    Names the fullest chip, its demand and its limit.
    """
    if terms.fits[0]:
        return ""
    peak_bytes, beside = terms.peak_bytes[0], ""
    if (peak_bytes <= tables.sram_bytes).all():
        buffer_bytes = np.where(terms.stream_bytes[0] > 0, tables.stream_buffer_bytes, 0)
        peak_bytes = peak_bytes + buffer_bytes
    excess = peak_bytes - tables.sram_bytes
    if (excess <= 0).all():
        chip = int(np.argmax(excess + terms.weight_bytes[0]))
        return (
            f"out of memory: chip {chip} needs {int(terms.weight_bytes[0, chip])} bytes for states and "
            f"{int(terms.peak_bytes[0, chip])} for activations and has {int(tables.sram_bytes[chip])}"
        )
    chip = int(np.argmax(excess))
    if terms.peak_bytes[0, chip] <= tables.sram_bytes[chip]:
        beside = f" beside a buffer of {tables.stream_buffer_bytes[chip]} bytes for streamed weights"
    return (
        f"out of memory: chip {chip} needs {int(terms.peak_bytes[0, chip])} bytes for activations{beside} "
        f"and has {int(tables.sram_bytes[chip])}"
    )
