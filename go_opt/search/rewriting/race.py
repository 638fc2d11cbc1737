"""Searches that may rewrite ops: the graph as sent and the rewritten ones race for the budget.

The graph as sent, and then the one with fewer rewrites, are searched for a short time, each search beginning
with the best plan so far. The one with most rewrites goes on to the end if it is ahead by then; else the best
of the others does.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Final

from go_opt.env import Target
from go_opt.env.copies.splits import planned_graph
from go_opt.env.rewrites.applying import with_rewrites
from go_opt.errors import InfeasibleError
from go_opt.model.graph import Graph
from go_opt.model.start import Start
from go_opt.result import OptimizeResult, Request, Step
from go_opt.search.rewriting.choices import Rewrites, ways_to_rewrite
from go_opt.search.shared.context import Context
from go_opt.search.shared.watch import Watch

SHARE: Final = 1 / 8  # of the budget, for each graph but the one with most rewrites
LEAST_S: Final = 1e-3  # of each search
Trial = Callable[[Graph, Request, Watch], OptimizeResult]


def search_rewritten(
    graph: Graph, request: Request, watch: Watch, *, target: Target, trial: Trial, around: Context
) -> OptimizeResult:
    """The best plan of the searches ``trial`` of the graph, as sent or rewritten.

    The bound is that of the graph with the rewrites of the plan.

    Raises:
      InfeasibleError: no valid plan was found either way.
    """
    with around.compiling():
        ways = ways_to_rewrite(graph, target, request)
    if not ways:
        return trial(graph, request, watch)
    return _Race(graph, request, watch, ways, trial, around).answer()


class _Race:
    def __init__(
        self,
        graph: Graph,
        request: Request,
        watch: Watch,
        ways: list[Rewrites],
        trial: Trial,
        around: Context,
    ) -> None:
        self._graph, self._request, self._watch, self._ways = graph, request, watch, ways
        self._trial, self._context = trial, around
        self._history: list[Step] = []
        self._best: OptimizeResult | None = None
        self._is_stopped = False
        self._failure: InfeasibleError | None = None

    def answer(self) -> OptimizeResult:
        """The best plan."""
        most, *fewer = self._ways
        for way in ((), *reversed(fewer)):
            self._run(way, SHARE, lambda: False)
        rivals_s = math.inf if self._best is None else self._best.objective_s
        until = len(self._history) + SHARE * (self._request.max_evaluations or math.inf)
        is_late = self._context.after(SHARE * self._request.time_limit_s)

        def is_behind() -> bool:
            is_due = (is_late() or len(self._history) >= until) and rivals_s < math.inf
            return is_due and self._best is not None and self._best.plan.rewrites != most

        self._run(most, 1.0, is_behind)
        if self._best is None:
            assert self._failure is not None
            raise self._failure
        if self._best.plan.rewrites != most:
            self._run(self._best.plan.rewrites, 1.0, lambda: False)
        return self._complete(self._best)

    def _run(self, way: Rewrites, share: float, is_behind: Callable[[], bool]) -> None:
        """Search the graph with the rewrites ``way`` for a share of the budget."""
        request, graph = self._request_of(way, share), with_rewrites(self._graph, way)
        if request is None:
            return
        begun, is_late = len(self._history), self._context.after(request.time_limit_s)

        def should_stop() -> bool:
            self._is_stopped = self._is_stopped or self._watch.should_stop()
            has_begun = len(self._history) > begun
            return self._is_stopped or is_behind() or (has_begun and is_late())

        watch = Watch(self._take_step, self._take, should_stop, self._stop)
        try:
            self._take(self._trial(graph, request, watch), is_last=True)
        except InfeasibleError as error:
            self._failure = self._failure or error

    def _request_of(self, way: Rewrites, share: float) -> Request | None:
        """The request of a search; None if no budget is left."""
        request = self._request
        limit, left_s = request.max_evaluations, request.time_limit_s - self._context.elapsed_s
        left = None if limit is None else min(limit - len(self._history), math.ceil(share * limit))
        if self._is_stopped or (left is not None and left < 1) or (left_s <= 0 and self._best is not None):
            return None
        budget_s = max(min(left_s, share * request.time_limit_s), LEAST_S)
        start, best = request.start, self._best
        if best is not None:  # chips, kernels and order are kept where ops have their names
            names = planned_graph(self._graph, best.plan).op_names
            start = replace(Start.of_plan(best.plan, names), method=best.method)
        budget = budget_s if math.isfinite(budget_s) else None
        return replace(request, start=start, budget_s=budget, max_evaluations=left)

    def _take_step(self, step: Step) -> None:
        best_s = min(step.best_s, math.inf if self._best is None else self._best.objective_s)
        number, elapsed_s = len(self._history) + 1, self._context.elapsed_s
        self._history.append(replace(step, best_s=best_s, evaluations=number, elapsed_s=elapsed_s))
        self._watch.on_step(self._history[-1])

    def _take(self, found: OptimizeResult, *, is_last: bool = False) -> None:
        best = self._best
        is_same = best is not None and best.plan.rewrites == found.plan.rewrites
        is_better = best is None or found.objective_s < best.objective_s
        # The last answer of the same search has its simulation.
        if is_better or (is_last and is_same and best is not None and found.objective_s <= best.objective_s):
            self._best = found
            if is_better:
                self._watch.on_improvement(self._complete(found))

    def _complete(self, found: OptimizeResult) -> OptimizeResult:
        return replace(
            found,
            history=tuple(self._history),
            evaluations=len(self._history),
            wall_s=self._context.elapsed_s,
        )

    def _stop(self) -> None:
        self._is_stopped = True
        self._watch.on_interrupt()
