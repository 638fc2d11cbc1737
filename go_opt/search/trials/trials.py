"""Trials of one request that share a budget: each searches a graph in which one more thing is decided."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Generic, Protocol, TypeVar

from go_opt.env import Target
from go_opt.env.copies.splits import planned_graph
from go_opt.model.graph import Graph
from go_opt.model.start import Start
from go_opt.result import OptimizeResult, Request, Step
from go_opt.search.shared.context import Context, Watch


class Answer(Protocol):
    """Searches a graph in which what was open is decided."""

    def __call__(self, graph: Graph, request: Request, watch: Watch) -> OptimizeResult: ...


A = TypeVar("A")


@dataclass(eq=False, repr=False)
class Trials(Generic[A]):
    """The steps and the best plan of all trials, which share one budget."""

    _graph: Graph
    _target: Target
    _request: Request
    _context: Context
    _answer: A  # a trial, or what begins one
    _watch: Watch

    def __post_init__(self) -> None:
        self._history: list[Step] = []
        self._best: OptimizeResult | None = None
        self._is_stopped = False
        self._is_quick = False  # whether the best plan was made without a search: trials do not begin with it

    def _certified(self, found: OptimizeResult) -> OptimizeResult:
        """A trial's answer with the status that it has among all that is open."""
        raise NotImplementedError

    def _request_of(self, share: float) -> Request:
        """The request of a trial with a share of the budget, which begins with the best plan."""
        request = self._budgeted(share)
        if self._best is None or self._is_quick:
            return request
        plan = self._best.plan
        start = Start.of_plan(plan, planned_graph(self._graph, plan).op_names)
        return replace(request, start=replace(start, method=self._best.method))

    def _budgeted(self, share: float, least_steps: int = 1) -> Request:
        """The request with a share of the budget, or with what is left; for some steps at least."""
        request = self._request
        limit, left_s = request.max_evaluations, request.time_limit_s - self._context.elapsed_s
        budget_s = max(left_s if least_steps > 1 else min(left_s, share * request.time_limit_s), 1e-3)
        if limit is not None:
            most = max(least_steps, math.ceil(share * limit))
            limit = max(min(limit - len(self._history), most), 1)
        return replace(request, budget_s=budget_s if math.isfinite(budget_s) else None, max_evaluations=limit)

    def _take_step(self, step: Step) -> None:
        best_s = min(step.best_s, self._history[-1].best_s if self._history else math.inf)
        number, elapsed_s = len(self._history) + 1, self._context.elapsed_s
        self._history.append(replace(step, best_s=best_s, evaluations=number, elapsed_s=elapsed_s))
        self._watch.on_step(self._history[-1])

    def _keep(self, found: OptimizeResult, *, is_quick: bool = False) -> None:
        """Take a plan for the best."""
        self._best, self._is_quick = found, is_quick
        self._watch.on_improvement(self._complete(found))

    def _complete(self, found: OptimizeResult) -> OptimizeResult:
        dropped = (*found.dropped_methods, *self._context.dropped_methods)
        return replace(
            self._certified(found),
            history=tuple(self._history),
            evaluations=len(self._history),
            wall_s=self._context.elapsed_s,
            dropped_methods=tuple(dict.fromkeys(dropped)),
        )

    def _stop(self) -> None:
        self._is_stopped = True
        self._watch.on_interrupt()

    @contextmanager
    def _interruptible(self) -> Iterator[None]:
        """An interrupt ends what is done within, if there is a plan to answer with."""
        try:
            yield
        except KeyboardInterrupt:
            if self._best is None:
                raise
            self._stop()

    def _must_stop(self) -> bool:
        self._is_stopped = self._is_stopped or self._watch.should_stop()
        return self._is_stopped or self._is_proven

    @property
    def _is_over(self) -> bool:
        return self._is_stopped or self._are_counted or self._is_late or self._is_proven

    @property
    def _are_counted(self) -> bool:
        """Whether no evaluation is left."""
        return len(self._history) >= (self._request.max_evaluations or math.inf)

    @property
    def _is_late(self) -> bool:
        return self._context.elapsed_s >= self._request.time_limit_s

    @property
    def _is_proven(self) -> bool:
        return self._best is not None and self._certified(self._best).status == "OPTIMAL"
