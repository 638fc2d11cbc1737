"""Converts measured plans to kernels on chips, for a fit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from go_opt.calibration.samples import Sample
from go_opt.common.arrays import FloatArray, IntArray
from go_opt.env import Target
from go_opt.env.copies.expanded_tables import expanded_tables, plan_tables
from go_opt.env.copies.relays import relays_of
from go_opt.env.copies.stages import size_by_chip
from go_opt.env.cost.tables import tables_with_effects
from go_opt.env.kernels.numbering import kernel_seconds, number_kernels
from go_opt.env.target.simulator_parameters import ideal_parameters
from go_opt.model.graph import Graph


@dataclass(frozen=True, eq=False)
class Observations:
    """The kernels of measured plans on their chips.

    Axes: ``E`` ops in kernels, including relays (without work); ``M`` kernels; ``R`` working
    chips of all plans; ``P`` plans.
    """

    op: IntArray  # [E] op of the graph; N: a relay
    kernel_of: IntArray  # [E]
    moved_s: FloatArray  # [M] bytes divided by the SRAM bandwidth
    row_of: IntArray  # [M]
    turns: FloatArray  # [R] chips r of its stage, each of which runs every r-th inference
    transfers_s: FloatArray  # [R] in and out over the target's links; 0 if chips compute meanwhile
    seconds: FloatArray  # [R] of an inference; NaN if only the interval was measured
    plan_of: IntArray  # [R]
    interval_s: FloatArray  # [P]

    def measured_s(self, predicted_s: FloatArray) -> FloatArray:
        """[R] measured, or NaN: an interval alone goes to the busiest chip by ``predicted_s``."""
        seconds = self.seconds.copy()
        for plan in np.unique(self.plan_of[np.isnan(seconds)]):
            rows = np.flatnonzero(self.plan_of == plan)
            if np.isnan(seconds[rows]).all():
                seconds[rows[np.argmax(predicted_s[rows])]] = self.interval_s[plan]
        return seconds


def observe(graph: Graph, target: Target, samples: Sequence[Sample]) -> Observations:
    """The observations of measured plans that run; ``target`` has one kind of chip."""
    return _joined([_observed(graph, target, sample) for sample in samples])


def _observed(graph: Graph, target: Target, sample: Sample) -> Observations:
    plan, tables = sample.plan, tables_with_effects(graph, target, ideal_parameters(1))
    # Op numbers replace op seconds; relays have none.
    numbers = tables._replace(op_s=np.arange(-graph.num_ops, 0, dtype=np.float64)[None])
    expanded, placement, order, group = expanded_tables(
        numbers, plan.placement, plan.order, plan.fusion_group, relays_of(graph, plan)
    )
    kernel_of = number_kernels(order, group)
    moved_only = expanded._replace(
        op_s=np.zeros_like(expanded.op_s),
        measured_s=np.full_like(expanded.op_s, np.nan),
        kernel_overhead_s=np.zeros(1),
    )
    moved_s = kernel_seconds(moved_only, kernel_of)[0]
    chip_of = np.empty(len(moved_s), np.int32)
    chip_of[kernel_of] = placement
    chips, row_of = np.unique(chip_of, return_inverse=True)
    seconds = sample.seconds_of_chips(target.num_chips)
    link_s = plan_tables(graph, target, plan).evaluate().link_s[0, :-2] * (not target.overlap)
    ends = np.concatenate([target.topology.link_from, target.topology.link_to])
    return Observations(
        (expanded.op_s[0] + graph.num_ops).astype(np.int32),
        kernel_of,
        moved_s,
        row_of.astype(np.int32),
        size_by_chip(plan.placement, plan.replication, target.num_chips)[chips].astype(np.float64),
        np.bincount(ends[ends >= 0], np.tile(link_s, 2)[ends >= 0], target.num_chips).astype(np.float64)[
            chips
        ],
        seconds[chips],
        np.zeros(len(chips), np.int32),
        np.array([sample.interval_s]),
    )


def _joined(parts: Sequence[Observations]) -> Observations:
    kernels = np.cumsum([0, *(len(part.moved_s) for part in parts)])
    rows = np.cumsum([0, *(len(part.turns) for part in parts)])
    numbered = list(zip(parts, kernels, rows, strict=False))
    return Observations(
        np.concatenate([part.op for part in parts]),
        np.concatenate([part.kernel_of + kernel for part, kernel, _ in numbered]),
        np.concatenate([part.moved_s for part in parts]),
        np.concatenate([part.row_of + row for part, _, row in numbered]),
        np.concatenate([part.turns for part in parts]),
        np.concatenate([part.transfers_s for part in parts]),
        np.concatenate([part.seconds for part in parts]),
        np.repeat(np.arange(len(parts)), np.diff(rows)),
        np.concatenate([part.interval_s for part in parts]),
    )
