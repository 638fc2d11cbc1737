"""Metrics of plans: the analytical terms of one plan with names and reasons."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from go_opt.env.analytical import BatchMetrics, evaluate_batch
from go_opt.env.cost import cost_tables
from go_opt.env.expanded_tables import PlanTables, plan_tables
from go_opt.env.kernels import kernel_seconds, number_kernels
from go_opt.env.makespan import makespan_s
from go_opt.env.metrics import Fidelity, Metrics, check_fidelity
from go_opt.env.target import Target
from go_opt.graph import Graph
from go_opt.plan import Plan


def evaluate_plan(
    graph: Graph,
    target: Target,
    plan: Plan,
    *,
    fidelity: Fidelity = "analytical",
    seed: int | None = None,
) -> Metrics:
    """Cost one plan; ``valid`` says whether its activations fit every chip, and it runs.

    Static constraints are the solver's to judge (:func:`go_opt.solver.verify`);
    :func:`go_opt.evaluate` joins both. ``seed`` draws the noise of a simulated measurement;
    without one it is exact.
    """
    check_fidelity(fidelity)
    if fidelity == "simulated":
        # The simulator loads where it is asked for.
        from go_opt.env.simulator import simulate_plan

        return simulate_plan(graph, target, plan, seed=seed)
    placed = plan_tables(graph, target, plan)
    terms = placed.evaluate()
    reason = out_of_memory_reason(target, terms.peak_bytes[0])
    interval_s = float(terms.interval_s[0])
    return Metrics(
        interval_s=interval_s,
        throughput_per_s=1.0 / interval_s if interval_s > 0 else float("inf"),
        latency_s=float(terms.latency_s[0]),
        makespan_s=_makespan_s(placed, terms),
        bottleneck=target.bottleneck_name(int(terms.bottleneck[0])),
        compute_s=terms.compute_s[0],
        link_s=terms.link_s[0],
        stream_bytes=terms.stream_bytes[0],
        peak_bytes=terms.peak_bytes[0],
        weight_bytes=terms.weight_bytes[0],
        valid=not reason,
        reason=reason,
    )


class PlanCosts(NamedTuple):
    """What :func:`go_opt.env.reward` asks of a batch of plans. Axis: ``B`` plans."""

    interval_s: NDArray[np.float64]  # [B]
    valid: NDArray[np.bool_]  # [B] True where activations fit every chip, and the plan runs


def evaluate_plans(
    graph: Graph,
    target: Target,
    placement: NDArray[np.int32],  # [B, N]
    order: NDArray[np.int32],  # [B, N]
    fusion_group: NDArray[np.int32],  # [B, N]
    replication: NDArray[np.int32] | None = None,  # [B, N]; by default none is replicated
    *,
    fidelity: Fidelity = "analytical",
) -> PlanCosts:
    """Cost a batch of plans in one call, at either fidelity."""
    check_fidelity(fidelity)
    if fidelity == "simulated":
        from go_opt.env.simulator import simulate_batch
        from go_opt.env.simulator.simulate import VALID

        simulated = simulate_batch(graph, target, placement, order, fusion_group, replication)
        return PlanCosts(simulated.interval_s, simulated.outcome == VALID)
    terms = evaluate_batch(cost_tables(graph, target), placement, order, fusion_group, replication)
    return PlanCosts(terms.interval_s, terms.fits)


def _makespan_s(placed: PlanTables, terms: BatchMetrics) -> float:
    """Seconds of one execution of a plan alone, given its (one-plan) terms."""
    tables, order = placed.tables, placed.order
    kernel_of = number_kernels(order, placed.fusion_group)
    kernel_chip = np.empty(int(kernel_of.max()) + 1, dtype=np.int32)
    kernel_chip[kernel_of] = placed.placement
    by_kind = kernel_seconds(tables, kernel_of)
    kernel_s = by_kind[tables.chip_kind[kernel_chip], np.arange(len(kernel_chip))]
    return makespan_s(tables, order, kernel_of, kernel_chip, kernel_s, terms.stream_bytes[0])


def out_of_memory_reason(target: Target, peak_bytes: NDArray[np.int64]) -> str:
    """Why the activations do not fit: the fullest chip, its demand and its limit; empty if they do."""
    excess = peak_bytes - target.chip_sram_bytes
    chip = int(np.argmax(excess))
    if excess[chip] <= 0:
        return ""
    return (
        f"out of memory: chip {chip} needs {int(peak_bytes[chip])} bytes for activations "
        f"and has {int(target.chip_sram_bytes[chip])}"
    )
