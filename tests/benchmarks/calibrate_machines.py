"""Simulated machines drawn at random, for bench_calibrate.py.

A machine is mcm-6x6 with tiles, lanes, fill, DMA, packets, buffers, prefetch and allocator drawn by its
number; those with an odd number also have an efficiency for each type of op and shape.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

import go_opt
from go_opt.agents.training.problems.environment import Evaluations, LocalEnvironment
from go_opt.env import Target, load_target
from go_opt.env.cost.shapes import product_shapes, shaped_op_seconds
from go_opt.env.cost.tables import tables
from go_opt.env.simulator.simulate import simulate_plan
from go_opt.env.target.kinds import KindParameters, SimulatorParameters
from go_opt.errors import InfeasibleError
from go_opt.model.graph import Graph
from go_opt.model.plan import Candidate, Plan

EVALUATIONS = 20
MACHINES = (1, 0, 3, 2, 4)
GRAPHS = (  # one of each family of the test split, up to 1,300 ops
    "densenet121",
    "nasnet_mobile",
    "clip_b32",
    "detr_r50",
    "unet_segmentation",
    "whisper_base",
    "gpt2",
    "egnn",
    "gat",
    "dlrm_kaggle",
)
SHEET = load_target("mcm-6x6")
OpSeconds = Callable[[Graph, NDArray], NDArray]  # of a graph, given what the target says [Q, N]


@contextmanager
def op_seconds(of: OpSeconds) -> Iterator[None]:
    """Ops take the seconds ``of`` says, where a graph is costed that was not costed before."""
    tables.shaped_op_seconds = lambda graph, op_s, kinds: of(graph, shaped_op_seconds(graph, op_s, kinds))
    try:
        yield
    finally:
        tables.shaped_op_seconds = shaped_op_seconds


@dataclass(frozen=True, eq=False)
class Machine:
    """A simulated machine, as an environment; ``target`` has its parameters."""

    number: int
    target: Target

    def op_s(self, graph: Graph, shaped_s: NDArray) -> NDArray:
        """[1, N] seconds of compute that ops take here."""
        if self.number % 2 == 0:
            return shaped_s
        rng = np.random.default_rng([7, self.number])
        shapes = np.log2(np.array(product_shapes(graph)))
        waves = rng.normal(size=(3, 4)) @ shapes / 2 + rng.uniform(0, 6, 3)[:, None]
        types = {
            name: np.random.default_rng([self.number, *name.encode()]).normal() for name in {*graph.op_types}
        }
        of_type = np.array([types[name] for name in graph.op_types])
        return shaped_s * np.exp(0.15 * np.sin(waves).sum(axis=0) + 0.2 * of_type)

    def open(self, graph: Graph, target: Target) -> _Session:
        return _Session(self, replace(graph))

    def interval_s(self, graph: Graph, plan: Plan) -> float:
        """Seconds of an inference; infinite where the plan does not run."""
        with op_seconds(self.op_s):
            plan = replace(plan, target_fingerprint=self.target.fingerprint)
            return simulate_plan(replace(graph), self.target, plan).interval_s


@dataclass(frozen=True)
class _Session:
    machine: Machine
    graph: Graph

    def evaluate_plans(self, plans: Sequence[Plan]) -> Evaluations:
        there = [replace(plan, target_fingerprint=self.machine.target.fingerprint) for plan in plans]
        with op_seconds(self.machine.op_s):
            session = LocalEnvironment("simulated").open(self.graph, self.machine.target)
            return session.evaluate_plans(there)

    def evaluate(self, placement: NDArray, order: NDArray, fusion_group: NDArray) -> Evaluations:
        rows = zip(placement, order, fusion_group, strict=True)
        candidates = (Candidate("drawn", *row) for row in rows)
        return self.evaluate_plans([one.plan(self.graph, self.machine.target) for one in candidates])

    def close(self) -> None:
        pass


def drawn(number: int) -> Machine:
    rng = np.random.default_rng([2026, number])
    kind = KindParameters(
        tile_rows=int(2 ** rng.integers(2, 8)),
        tile_inner=int(2 ** rng.integers(3, 8)),
        tile_columns=int(2 ** rng.integers(3, 8)),
        tiles_at_once=int(2 ** rng.integers(0, 4)),
        fill_s=float(10 ** rng.uniform(-7.5, -6.3)),
        vector_lanes=int(2 ** rng.integers(4, 11)),
        dma_engines=int(rng.integers(1, 9)),
        dma_setup_s=float(10 ** rng.uniform(-7.5, -6)),
        alignment_bytes=int(2 ** rng.integers(6, 17)),
        stream_buffer_bytes=int(2 ** rng.integers(18, 22)),
    )
    package = SimulatorParameters(
        kinds=(kind,),
        buffers=int(rng.integers(2, 4)),
        packet_bytes=int(rng.choice([64, 128, 240, 496])),
        packet_header_bytes=int(rng.choice([8, 16, 32])),
        host_multicast=bool(rng.integers(2)),
        weight_prefetch=bool(rng.integers(2)),
        fit_by_size=False,
    )
    kinds = (replace(SHEET.kinds[0], simulator=kind),)
    name = f"machine {number}"
    return Machine(number, replace(SHEET, kinds=kinds, simulator=package, fingerprint=name, source=name))


def planned(
    graph: Graph, on: Target, of: OpSeconds | None = None, seed: int = 0, most: int = EVALUATIONS
) -> Plan:
    options: dict[str, Any] = {"policy": None, "simulate": False, "splits": False, "seed": seed}
    with op_seconds(of or (lambda graph, shaped_s: shaped_s)):
        try:
            return go_opt.optimize(replace(graph), on, max_evaluations=most, **options).plan
        except InfeasibleError:
            return go_opt.optimize(replace(graph), SHEET, max_evaluations=most, **options).plan
