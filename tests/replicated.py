"""Plans with replicated stages to test with."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from go_opt.common.arrays import IntArray
from go_opt.env import CostTables, Target, evaluate_batch
from go_opt.env.copies.stages import size_by_chip, stages_of_sizes, with_sharers
from go_opt.model.graph import Graph
from go_opt.model.plan import Plan


def replicated_plan(
    graph: Graph,
    target: Target,
    stage_of_op: NDArray[np.integer],
    sizes: NDArray[np.integer],
    *,
    order: IntArray | None = None,
    fusion_group: IntArray | None = None,
) -> Plan:
    """A plan of stages of ``sizes`` chips, one behind the other; each op a kernel by default."""
    default = np.arange(graph.num_ops, dtype=np.int32)
    stages = stages_of_sizes(sizes)
    return Plan.create(
        graph,
        target.source,
        target.fingerprint,
        placement=stages.first_chip[stage_of_op],
        order=default if order is None else order,
        fusion_group=default if fusion_group is None else fusion_group,
        replication=stages.size[stage_of_op],
        provenance="by hand",
    )


def random_stages(
    rng: np.random.Generator, order: IntArray, fusion_group: IntArray, num_chips: int
) -> tuple[IntArray, IntArray]:
    """``(stage of each op [N], chips of each stage [S])`` of cuts between groups along the order."""
    group = fusion_group[order]
    kernel = np.concatenate([[0], np.cumsum(group[1:] != group[:-1])])
    num_stages = int(rng.integers(1, min(num_chips, kernel[-1] + 1) + 1))
    starts = np.sort(rng.permutation(kernel[-1])[: num_stages - 1] + 1)
    stage_of_op = np.empty(len(order), dtype=np.int32)
    stage_of_op[order] = np.searchsorted(starts, kernel, side="right")
    sizes = np.ones(num_stages, dtype=np.int32)
    for _ in range(int(rng.integers(0, num_chips - num_stages + 1))):
        sizes[rng.integers(num_stages)] += 1
    return stage_of_op, sizes


def keeping_states(
    graph: Graph, stage_of_op: NDArray[np.integer], sizes: NDArray[np.integer]
) -> tuple[IntArray, IntArray]:
    """The same stages, joined where the ops that touch a state are on several."""
    stage_of_op = stage_of_op.astype(np.int32)
    for state in graph.states:
        stages = stage_of_op[graph.readers_of(state.read)]
        if len(stages):
            stage_of_op[(stage_of_op > stages.min()) & (stage_of_op <= stages.max())] = stages.min()
    kept, number = np.unique(stage_of_op, return_inverse=True)
    return number.astype(np.int32), sizes[kept]


def random_forwards(rng: np.random.Generator, target: Target, plan: Plan) -> Plan:
    """``plan`` with weights that some of its replicated stages forward, where the target may."""
    if not (target.goes_forward and target.overlap):
        return plan
    first = np.unique(plan.placement[plan.replication > 1])
    return replace(plan, forwards=tuple(first[rng.random(len(first)) < 0.7].tolist()))


def forwarding_s(
    tables: CostTables, placement: IntArray, order: IntArray, fusion_group: IntArray, replication: IntArray
) -> Iterator[float]:
    """Intervals of plans [B, N] whose replicated stages all forward weights; infinite where none fits."""
    for chip, *plan, size in zip(placement, order, fusion_group, replication, strict=True):
        sizes = size_by_chip(chip, size, tables.num_chips)
        on_tables = with_sharers(tables, set(chip[size > 1].tolist()), sizes)
        terms = evaluate_batch(on_tables, chip[None], *(row[None] for row in plan), size[None])
        yield float(terms.interval_s[0]) if terms.fits[0] else np.inf


def anywhere(rng: np.random.Generator, target: Target, plan: Plan, *, of_one_kind: bool = True) -> Plan:
    """``plan`` with chips that are neighbours by number joined to stages, here and there."""
    first = np.arange(target.num_chips, dtype=np.int32)
    for chip in range(1, target.num_chips):
        is_alike = target.chip_kind[chip] == target.chip_kind[chip - 1]
        if (is_alike or not of_one_kind) and rng.random() < 0.6:
            first[chip] = first[chip - 1]
    size = np.bincount(first, minlength=target.num_chips).astype(np.int32)
    placement = first[plan.placement]
    return replace(plan, placement=placement, replication=size[placement])
