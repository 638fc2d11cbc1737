"""Trials of one request that share a budget: each searches a graph in which one more thing is decided."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Protocol

from go_opt.env import Target
from go_opt.env.copies.splits import planned_graph
from go_opt.model.graph import Graph
from go_opt.model.start import Start
from go_opt.result import OptimizeResult, Request, Step
from go_opt.search.shared.context import Context
from go_opt.search.shared.watch import Watch


class Answer(Protocol):
    """Searches a graph in which what was open is decided."""

    def __call__(self, graph: Graph, request: Request, watch: Watch) -> OptimizeResult: ...


class Trials:
    """The steps and the best plan of all trials, which share one budget.

    Args:
      answer: a trial.
    """

    def __init__(
        self, graph: Graph, target: Target, request: Request, context: Context, answer: Answer, watch: Watch
    ) -> None:
        self._graph, self._target, self._request = graph, target, request
        self._context, self._answer, self._watch = context, answer, watch
        self._history: list[Step] = []
        self._best: OptimizeResult | None = None
        self._is_stopped = False
        self._is_quick = False  # whether the best plan was made without a search: trials do not begin with it

    def _certified(self, found: OptimizeResult) -> OptimizeResult:
        """A trial's answer with the status that it has among all that is open."""
        raise NotImplementedError

    def _request_of(self, share: float) -> Request:
        """The request of a trial with a share of the budget, which begins with the best plan."""
        request = self._request
        limit, left_s = request.max_evaluations, request.time_limit_s - self._context.elapsed_s
        budget_s = max(min(left_s, share * request.time_limit_s), 1e-3)
        left = None if limit is None else max(min(limit - len(self._history), math.ceil(share * limit)), 1)
        start = request.start
        if self._best is not None and not self._is_quick:
            plan = self._best.plan
            names = planned_graph(self._graph, plan).op_names
            start = replace(Start.of_plan(plan, names), method=self._best.method)
        budget = budget_s if math.isfinite(budget_s) else None
        return replace(request, start=start, budget_s=budget, max_evaluations=left)

    def _take_step(self, step: Step) -> None:
        best_s = math.inf if self._best is None else self._best.objective_s
        number, elapsed_s = len(self._history) + 1, self._context.elapsed_s
        best_s = min(step.best_s, best_s)
        self._history.append(replace(step, best_s=best_s, evaluations=number, elapsed_s=elapsed_s))
        self._watch.on_step(self._history[-1])

    def _keep(self, found: OptimizeResult, *, is_quick: bool = False) -> None:
        """Take a plan for the best."""
        self._best, self._is_quick = found, is_quick
        self._watch.on_improvement(self._complete(found))

    def _complete(self, found: OptimizeResult) -> OptimizeResult:
        return replace(
            self._certified(found),
            history=tuple(self._history),
            evaluations=len(self._history),
            wall_s=self._context.elapsed_s,
        )

    def _stop(self) -> None:
        self._is_stopped = True
        self._watch.on_interrupt()

    def _must_stop(self) -> bool:
        self._is_stopped = self._is_stopped or self._watch.should_stop()
        return self._is_stopped or self._is_proven

    @property
    def _is_over(self) -> bool:
        is_out = len(self._history) >= (self._request.max_evaluations or math.inf)
        is_late = self._context.elapsed_s >= self._request.time_limit_s
        return self._is_stopped or is_out or is_late or self._is_proven

    @property
    def _is_proven(self) -> bool:
        return self._best is not None and self._certified(self._best).status == "OPTIMAL"
