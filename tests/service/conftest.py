"""An optimizer without a search, and a service of it on the loopback."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

from go_opt.env import Metrics, Target, target_names
from go_opt.errors import InfeasibleError
from go_opt.graph import Graph
from go_opt.graph_builder import GraphBuilder
from go_opt.plan import Plan
from go_opt.result import OptimizeResult, Step
from go_opt.service.server import serve_in_thread


@dataclass
class FakeOptimizer:
    """Puts every op on chip 0; the seed picks what else happens."""

    asked: list[dict[str, Any]] = field(default_factory=list)
    evaluated: list[tuple[str, int | None]] = field(default_factory=list)  # fidelities and seeds
    started: threading.Event = field(default_factory=threading.Event)
    stopped: threading.Event = field(default_factory=threading.Event)

    def optimize(
        self, graph: Graph, target: Target, *, should_stop: Callable[[], bool], **options: Any
    ) -> OptimizeResult:
        self.asked.append(options)
        if options["seed"] == SEED_DEFECT:
            raise KeyError("a defect")
        if options["seed"] == SEED_INFEASIBLE:
            raise InfeasibleError("op 'a' needs 9 bytes, chip 0 has 8.")
        if options["seed"] == SEED_SLOW:
            self.started.set()
            while not should_stop():
                pass
            self.stopped.set()
        ops = np.arange(graph.num_ops)
        plan = Plan.create(
            graph,
            target.name,
            target.fingerprint,
            placement=0 * ops,
            order=ops,
            fusion_group=ops,
            provenance="fake",
        )
        step = Step("fake", float("inf"), 2.0, 1, 0.1)
        return OptimizeResult(
            plan=plan,
            metrics=self.evaluate(graph, target, plan, fidelity="analytical", seed=None),
            objective=options["objective"],
            status="HEURISTIC",
            lower_bound_s=0.0,
            bound_reason="nothing is proven.",
            gap=float("inf"),
            method="fake",
            history=(step, step),
            evaluations=1,
            wall_s=0.1,
            reference_s=float("inf"),
        )

    def evaluate(
        self, graph: Graph, target: Target, plan: Plan, *, fidelity: str, seed: int | None
    ) -> Metrics:
        self.evaluated.append((fidelity, seed))
        plan.check_belongs_to(graph, target.fingerprint)
        per_chip = np.arange(target.num_chips)
        return Metrics(
            interval_s=2.0,
            throughput_per_s=0.5,
            latency_s=3.0,
            makespan_s=float("inf"),
            bottleneck="chip 0 compute",
            compute_s=per_chip / 7,
            link_s=np.arange(len(target.link_names)) / 3,
            stream_bytes=per_chip * 2**40,
            peak_bytes=per_chip,
            weight_bytes=per_chip,
            valid=False,
            reason="a fake.",
        )

    def list_targets(self) -> tuple[str, ...]:
        return target_names()


SEED_DEFECT, SEED_INFEASIBLE, SEED_SLOW = 101, 102, 103


@pytest.fixture
def optimizer() -> FakeOptimizer:
    return FakeOptimizer()


@pytest.fixture
def address(optimizer: FakeOptimizer) -> Iterator[str]:
    with serve_in_thread(optimizer, workers=2) as served_at:
        yield served_at


@pytest.fixture
def graph() -> Graph:
    builder = GraphBuilder("small", dims={"batch": 2})
    builder.add_tensor("x", 8, "float32", "input")
    for name, source in (("a", "x"), ("b", "a.out")):
        builder.add_op(
            name,
            "Relu",
            "vector",
            flops=8,
            dtype="float32",
            reads=[(source, None)],
            writes=[(f"{name}.out", 8, "float32")],
        )
    builder.mark_output("b.out")
    return builder.build()
