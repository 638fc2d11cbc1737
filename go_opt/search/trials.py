"""Searches of one request that share a budget and a bound, and the search of whole ops that they begin with.

Each of these trials searches a graph in which one more thing is decided.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, Protocol

from go_opt.env import Target
from go_opt.env.copies.splits import planned_graph
from go_opt.errors import InfeasibleError
from go_opt.model.graph import Graph
from go_opt.model.start import Start
from go_opt.result import ONLY, OptimizeResult, Request, Step
from go_opt.search.bounds import against_bound, refuse_unreachable
from go_opt.search.compiling.kernel_cache import start_compiling
from go_opt.search.final_simulation import is_simulated, simulated_if_asked
from go_opt.search.finish.leaner import leaner
from go_opt.search.portfolio import policy_takes_part, portfolio_events
from go_opt.search.shared.context import Context, Watch
from go_opt.search.state import Search
from go_opt.solver import Bound

QUICK_STEPS: Final = 4  # of a search for a first plan, at most


class WholeOpsSearch:
    """Splits no ops: takes the events of the portfolio and keeps the best verified plan.

    Goes on where it is advanced, and may pause between two events.

    Args:
      policy: the file of the request's policy.
      on_step: receives every step; ``on_improvement`` every better plan, as the answer at that time.

    Raises:
      InfeasibleError: it is proven that there is no plan.
    """

    def __init__(
        self,
        graph: Graph,
        request: Request,
        *,
        target: Target,
        context: Context,
        policy: Path | None,
        on_step: Callable[[Step], None],
        on_improvement: Callable[[OptimizeResult], None],
    ) -> None:
        refuse_unreachable(graph, target, request)
        self._is_policy_alone = request.policy == ONLY
        takes_part = self._is_policy_alone or policy_takes_part(target, request)
        self._policy = policy if takes_part else None
        self._on_improvement, self._is_over = on_improvement, False
        if request.objective == "throughput" and target.goes_forward:
            start_compiling()
        self._checks = is_simulated(target, request)
        self._search = Search(graph, target, request, on_step, context)
        self._steps = self._run()

    @property
    def has_plan(self) -> bool:
        return self._search.best is not None

    @property
    def is_late(self) -> bool:
        """Whether its time is up."""
        return self._search.is_late

    @property
    def reference_s(self) -> float:
        """The objective of the greedy plan."""
        return self._search.reference_s

    def advance(self, should_stop: Callable[[], bool]) -> None:
        """Go on until the search is over or ``should_stop``, which is called after every event."""
        for _ in self._steps:
            if should_stop():
                return
        self._is_over = True

    def close(self) -> None:
        """End its threads; it cannot be advanced any more."""
        self._steps.close()

    def answer(self) -> OptimizeResult:
        """The best plan, simulated if the search is over.

        Raises:
          InfeasibleError: no valid plan was found.
        """
        self.close()
        if self._is_over and self.has_plan and not self._is_policy_alone:
            self._try_fewer_chips()
        return self._search.answer(checks=self._checks and self._is_over and self.has_plan)

    def _run(self) -> Generator[None, None, None]:
        """Take the events one by one, until the search is over."""
        search = self._search
        # Closing the events ends the background thread.
        with closing(portfolio_events(search, self._policy, is_alone=self._is_policy_alone)) as events:
            for event in events:
                if search.take(event):
                    self._on_improvement(search.result())
                if search.is_done():
                    return
                yield
        search.is_exhausted = True

    def _try_fewer_chips(self) -> None:
        """Try the best plan on fewer chips: one proven optimal early may use more than it needs."""
        search, best = self._search, self._search.best
        assert best is not None
        with search.context.tolerates("fewer chips"):
            for proposal in leaner(search, best.method):
                if search.is_done_with_evaluations:
                    return
                search.take(proposal)


class Answer(Protocol):
    """Searches a graph in which what was open is decided."""

    def __call__(self, graph: Graph, request: Request, watch: Watch) -> OptimizeResult: ...


@dataclass(eq=False, repr=False)
class Trials:
    """The steps and the best plan of all trials, which share one budget."""

    _graph: Graph
    _target: Target
    _request: Request
    _context: Context
    _watch: Watch

    def __post_init__(self) -> None:
        self._history: list[Step] = []
        self._best: OptimizeResult | None = None
        self._is_stopped = False
        self._is_quick = False  # whether the best plan was made without a search: trials do not begin with it

    def answer(self) -> OptimizeResult:
        """The best plan.

        Raises:
          InfeasibleError: no valid plan was found.
        """
        raise NotImplementedError

    def _bound(self) -> Bound:
        """Over all that is open."""
        raise NotImplementedError

    def _certified(self, found: OptimizeResult) -> OptimizeResult:
        """A trial's answer with the status that it has among all that is open."""
        return against_bound(found, self._request, self._bound())

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

    def _simulated(self, found: OptimizeResult) -> OptimizeResult:
        """The answer, simulated if requested."""
        if not self._is_stopped:
            found = simulated_if_asked(self._graph, self._target, self._request, self._context, found)
        return self._complete(found)

    def _plan_quickly(self, graph: Graph, *, replicates: bool = True) -> None:
        """Take the first valid plan of whole ops, if the first evaluations find one: greedy, or slices.

        Args:
          replicates: whether stages may be replicated, if the request allows it.

        Raises:
          InfeasibleError: they do not, and there are no more.
        """
        request = self._request_of(1.0)
        request = replace(
            request,
            replication=request.replication and replicates,
            splits=False,
            simulate=False,
            max_evaluations=min(QUICK_STEPS, request.max_evaluations or QUICK_STEPS),
        )
        try:
            search = WholeOpsSearch(
                graph,
                request,
                target=self._target,
                context=self._context,
                policy=None,
                on_step=self._take_step,
                on_improvement=lambda found: None,
            )
            search.advance(lambda: search.has_plan or self._must_stop())
            self._keep(search.answer(), is_quick=True)
        except InfeasibleError:
            if self._are_counted:
                raise


@dataclass(eq=False, repr=False)
class NestedTrials(Trials):
    """Trials that are searches of their own, in which nothing of this is open any more."""

    _answer: Answer

    @classmethod
    def within(cls, target: Target, answer: Answer, around: Context) -> Answer:
        """The answers of such trials, as trials of others whose context is ``around``."""

        def answered(graph: Graph, request: Request, watch: Watch) -> OptimizeResult:
            context = Context(request.time_limit_s, around)
            return cls(graph, target, request, context, watch, answer).answer()

        return answered

    def _take(self, found: OptimizeResult) -> None:
        """Take a plan of a trial, if it is better."""
        raise NotImplementedError

    def _searched(
        self, graph: Graph, request: Request, *, must_stop: Callable[[], bool] | None = None
    ) -> OptimizeResult:
        """What a trial answers; these trials take its steps and plans.

        Raises:
          InfeasibleError: no valid plan was found.
        """
        watch = Watch(self._take_step, self._take, must_stop or self._must_stop, self._stop)
        return self._answer(graph, request, watch)
