"""What a service serves: the optimizer of this process, or another with the same doors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from go_opt.env import Metrics, Target, target_names
from go_opt.env.metrics import Fidelity
from go_opt.graph import Graph
from go_opt.plan import Plan
from go_opt.result import OptimizeResult


class Optimizer(Protocol):
    """Finds and evaluates plans; called from several threads at once."""

    def optimize(
        self, graph: Graph, target: Target, *, should_stop: Callable[[], bool], **options: Any
    ) -> OptimizeResult:
        """As :func:`go_opt.optimize`; once ``should_stop`` is true, the best plan so far."""

    def evaluate(
        self, graph: Graph, target: Target, plan: Plan, *, fidelity: Fidelity, seed: int | None
    ) -> Metrics:
        """As :func:`go_opt.evaluate`."""

    def list_targets(self) -> tuple[str, ...]:
        """Names of the targets to list."""


class LocalOptimizer:
    """The optimizer of this process; its doors are those of :mod:`go_opt.api`."""

    def optimize(
        self, graph: Graph, target: Target, *, should_stop: Callable[[], bool], **options: Any
    ) -> OptimizeResult:
        # The search and its kernels load with the first call.
        from go_opt import api

        return api.optimize(graph, target, should_stop=should_stop, **options)

    def evaluate(
        self, graph: Graph, target: Target, plan: Plan, *, fidelity: Fidelity, seed: int | None
    ) -> Metrics:
        from go_opt import api

        return api.evaluate(graph, target, plan, fidelity=fidelity, seed=seed)

    def list_targets(self) -> tuple[str, ...]:
        return target_names()
