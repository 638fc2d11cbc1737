"""Searches that may rewrite ops: the graph as sent and the rewritten ones race for the budget.

The graph as sent, and then the one with fewer rewrites, are searched for a short time, each search beginning
with the best plan so far. The one with most rewrites goes on to the end if it is ahead by then; else the best
of the others does.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Final

from go_opt.env import Target
from go_opt.env.rewrites.applying import with_rewrites
from go_opt.errors import InfeasibleError
from go_opt.model.graph import Graph
from go_opt.result import OptimizeResult, Request
from go_opt.search.rewriting.choices import Rewrites, ways_to_rewrite
from go_opt.search.shared.context import Context
from go_opt.search.shared.watch import Watch
from go_opt.search.trials.trials import Answer, Trials

SHARE: Final = 1 / 8  # of the budget, for each graph but the one with most rewrites


def search_rewritten(
    graph: Graph, target: Target, request: Request, context: Context, answer: Answer, watch: Watch
) -> OptimizeResult:
    """The best plan of the searches ``answer`` of the graph, as sent or rewritten.

    The bound is that of the graph with the rewrites of the plan.

    Raises:
      InfeasibleError: no valid plan was found either way.
    """
    with context.compiling():
        ways = ways_to_rewrite(graph, target, request)
    if not ways:
        return answer(graph, request, watch)
    return _Race(graph, target, request, context, answer, watch).best_of(ways)


class _Race(Trials):
    def best_of(self, ways: list[Rewrites]) -> OptimizeResult:
        """The best plan."""
        most, *fewer = ways
        failures = [self._run(way, SHARE, lambda: False) for way in ((), *reversed(fewer))]
        rivals_s = math.inf if self._best is None else self._best.objective_s
        until = len(self._history) + SHARE * (self._request.max_evaluations or math.inf)
        is_late = self._context.after(SHARE * self._request.time_limit_s)

        def is_behind() -> bool:
            is_due = (is_late() or len(self._history) >= until) and rivals_s < math.inf
            return is_due and self._best is not None and self._best.plan.rewrites != most

        failures.append(self._run(most, 1.0, is_behind))
        if self._best is None:
            raise next(failure for failure in failures if failure is not None)
        if self._best.plan.rewrites != most:
            self._run(self._best.plan.rewrites, 1.0, lambda: False)
        return self._complete(self._best)

    def _run(self, way: Rewrites, share: float, is_behind: Callable[[], bool]) -> InfeasibleError | None:
        """Search the graph with the rewrites ``way`` for a share of the budget; returns why it found none."""
        if self._is_over and self._best is not None:
            return None
        request, graph = self._request_of(share), with_rewrites(self._graph, way)
        begun, is_late = len(self._history), self._context.after(request.time_limit_s)

        def should_stop() -> bool:
            has_begun = len(self._history) > begun
            return self._must_stop() or is_behind() or (has_begun and is_late())

        watch = Watch(self._take_step, self._take, should_stop, self._stop)
        try:
            self._take(self._answer(graph, request, watch), is_last=True)
        except InfeasibleError as error:
            return error
        return None

    def _take(self, found: OptimizeResult, *, is_last: bool = False) -> None:
        best = self._best
        is_same = best is not None and best.plan.rewrites == found.plan.rewrites
        if best is None or found.objective_s < best.objective_s:
            self._keep(found)
        elif is_last and is_same and found.objective_s <= best.objective_s:
            self._best = found  # the last answer of the same search has its simulation

    @property
    def _is_proven(self) -> bool:
        """Other rewrites may allow a better plan than is proven best with these."""
        return False

    def _certified(self, found: OptimizeResult) -> OptimizeResult:
        """By the bound of the graph with the rewrites of the plan."""
        return found
