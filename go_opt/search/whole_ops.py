"""A search that splits no ops: takes the events of the portfolio and keeps the best verified plan.

Trials that begin with such searches, or with searches of these, share a budget and a bound.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Final

from go_opt.env import Target
from go_opt.errors import InfeasibleError
from go_opt.model.graph import Graph
from go_opt.result import ONLY, OptimizeResult, Request, Step
from go_opt.search.bounds import against_bound, refuse_unreachable
from go_opt.search.compiling.kernel_cache import start_compiling
from go_opt.search.final_simulation import is_simulated, simulated_if_asked
from go_opt.search.finish.leaner import leaner
from go_opt.search.portfolio import policy_takes_part, portfolio_events
from go_opt.search.shared.context import Context, Watch
from go_opt.search.state import Search
from go_opt.search.trials.trials import A, Answer, Trials
from go_opt.solver import Bound

QUICK_STEPS: Final = 4  # of a search for a first plan, at most


class WholeOpsSearch:
    """Goes on where it is advanced, and may pause between two events.

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


class BoundedTrials(Trials[A]):
    """Trials with a bound over all that is open."""

    @classmethod
    def within(cls, target: Target, answer: A, around: Context) -> Answer:
        """The answers of such trials, as trials of others whose context is ``around``."""

        def answered(graph: Graph, request: Request, watch: Watch) -> OptimizeResult:
            context = Context(request.time_limit_s, around)
            return cls(graph, target, request, context, answer, watch).answer()

        return answered

    def answer(self) -> OptimizeResult:
        """The best plan.

        Raises:
          InfeasibleError: no valid plan was found.
        """
        raise NotImplementedError

    def _bound(self) -> Bound:
        raise NotImplementedError

    def _certified(self, found: OptimizeResult) -> OptimizeResult:
        return against_bound(found, self._request, self._bound())

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
