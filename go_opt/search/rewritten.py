"""Searches of a graph as sent and rewritten, which share one budget.

Less work for a chip can be a longer interval, such as where a kernel hides less of the streaming of the next
kernel's weights, and of a graph with fewer ops a search finds other plans. So the graph as sent comes first.
Its search pauses while the rewritten graph is searched from its best plan, and goes on if that is behind
after as much as was spent before.
"""

from __future__ import annotations

import math
from contextlib import suppress
from dataclasses import replace
from typing import Final

from go_opt.env.copies.splits import planned_graph
from go_opt.env.rewrites import names as made_names
from go_opt.env.rewrites.applying import with_rewrites
from go_opt.errors import InfeasibleError
from go_opt.model.graph import Graph, Rewrite
from go_opt.model.plan import Plan
from go_opt.model.start import Start
from go_opt.result import OptimizeResult
from go_opt.search.bounds import against_bound, lower_bound
from go_opt.search.rewriting.choices import given_rewrites, plan_as_sent, rewrites_for
from go_opt.search.splits.ways import divisible_ops
from go_opt.search.trials import NestedTrials
from go_opt.solver import Bound

FIRST_SHARE: Final = 1 / 3  # of the budget, at least, for the graph as sent
FIRST_STEPS: Final = 20  # that it may take beyond this share; the first methods take about as many
LATE_SHARE: Final = 2 / 3  # of the budget, at most, for these
CHOICE_SHARE: Final = 1 / 4  # of the time that is left, at most, to choose rewrites, unless nothing else is
FIRST_PLAN_SHARE: Final = 1 / 4  # of it, that a first plan took at most
BEHIND_SHARE: Final = 1 / 4  # of it, at most, for a rewritten graph that is behind
CLOSE: Final = 0.01  # gap of a plan as sent that can gain next to nothing more
SHARE: Final = 1 / 64  # of the time limit, for the plan without rewrites
NOTABLE: Final = 1e-3  # relative gain that the bound of the rewritten graph must leave; and of better plans


class RewritingSearch(NestedTrials):
    """The best plan with rewrites that pay by cost, or without any.

    The bound is that of the graph with the rewrites of the plan; of a plan without, the least of both graphs.
    """

    def __post_init__(self) -> None:
        super().__post_init__()
        self._pauses, self._is_due = True, True  # for the rewritten graph; whether that is still to search
        self._rewritten_s = math.inf  # the objective of its best plan
        self._has_won = False  # whether its plan is the best, which ends the search of the graph as sent
        self._reference_s = math.inf
        self._least: Bound | None = None  # of the rewritten graph

    def answer(self) -> OptimizeResult:
        """The best plan, simulated if requested."""
        failures = []
        for search in (self._search_sent, self._search_rewritten):
            try:
                search()
            except InfeasibleError as error:
                failures.append(error)
        if self._best is None:
            raise min(failures, key=lambda error: error.is_proven)
        return self._simulated(self._best)

    def _search_sent(self) -> None:
        if given_rewrites(self._graph, self._target, self._request):
            return

        def must_stop() -> bool:
            if self._pauses and self._is_first_over() and not self._must_stop():
                self._pauses = False
                self._search_rewritten(is_last=False)
            return self._has_won or self._is_out

        self._take(self._searched(self._graph, self._request, must_stop=must_stop))

    def _search_rewritten(self, *, is_last: bool = True) -> None:
        """Search the rewritten graph, if any gain is to be expected, from the best plan of the graph as sent.

        Args:
          is_last: whether the search of the graph as sent is over.
        """
        if self._is_out or not self._is_due:
            return
        left_s = self._request.time_limit_s - self._context.elapsed_s
        first_s = next((one.elapsed_s for one in self._history if one.best_s < math.inf), 0.0)
        if not is_last and first_s > FIRST_PLAN_SHARE * left_s:
            return
        is_long = self._context.after(CHOICE_SHARE * left_s)
        rewrites: tuple[Rewrite, ...] = ()
        with self._context.tolerates("rewrites"):
            rewrites = rewrites_for(self._graph, self._target, self._request, is_long, gives_up=not is_last)
        self._is_due = not rewrites and is_long()
        if not rewrites:
            return
        made = with_rewrites(self._graph, rewrites)
        if not self._may_gain(made):
            return
        has_used = self._used + min(self._used, (1.0 - self._used) / 2)
        is_late = self._context.after(BEHIND_SHARE * left_s)

        def is_behind() -> bool:
            best = self._best
            if is_last or best is None or best.gap < CLOSE:
                return False
            is_worse = self._rewritten_s > (1.0 + NOTABLE) * best.objective_s
            return is_worse and (self._used >= has_used or is_late())

        request = self._request_of(1.0)
        if request.max_evaluations is not None:
            request = replace(request, max_evaluations=max(request.max_evaluations - 1, 1))
        if request.budget_s is not None:
            request = replace(request, budget_s=request.budget_s * (1.0 - SHARE))
        if self._best is not None:
            request = replace(request, start=self._start_of(made, self._best))
        has_plan = self._best is not None
        with suppress(*[InfeasibleError] * has_plan):
            self._take(self._searched(made, request, must_stop=lambda: self._is_out or is_behind()))
        assert self._best is not None, "an answer is a plan"
        plan = self._best.plan
        self._has_won = bool(plan.rewrites)
        if self._has_won and not (self._is_out or plan.splits or self._best.status == "OPTIMAL"):
            self._try_as_sent(made, plan)

    def _may_gain(self, made: Graph) -> bool:
        """Whether the bound of the rewritten graph leaves room for a better plan."""
        if self._best is None or made.states:
            return True
        divisible = divisible_ops(made, self._target, self._request)
        self._least = lower_bound(made, self._target, self._request, divisible)
        return self._least.seconds < (1.0 - NOTABLE) * self._best.objective_s

    def _start_of(self, made: Graph, best: OptimizeResult) -> Start:
        """A plan of the graph as sent for the rewritten one: what replaces ops is where the first one was."""
        start = Start.of_plan(best.plan, planned_graph(self._graph, best.plan).op_names)
        ops = dict(start.ops)
        for one in made.rewrites:
            names = (made_names.merged_name(one.ops[0], number) for number in range(2, len(one.ops) + 1))
            if one.ops[0] in ops:
                ops |= {name: ops[one.ops[0]] for name in names if name in made.op_index}
        return replace(start, ops=ops, method="rewritten", continues=True, has_first=True)

    def _try_as_sent(self, made: Graph, plan: Plan) -> None:
        """Cost a plan of the rewritten graph without the rewrites."""
        start = Start.of_plan(plan_as_sent(self._graph, made, plan), self._graph.op_names)
        request = replace(
            self._request_of(1.0), start=replace(start, method="as sent"), max_evaluations=1, splits=False
        )
        with suppress(InfeasibleError):  # the ops that were removed do not fit
            self._take(self._searched(self._graph, request, must_stop=lambda: self._is_out))

    def _is_first_over(self) -> bool:
        """Whether the graph as sent has had its share."""
        share = FIRST_SHARE if len(self._history) >= FIRST_STEPS else LATE_SHARE
        return self._used >= share

    @property
    def _used(self) -> float:
        """Share of the budget."""
        request = self._request
        of_steps = len(self._history) / (request.max_evaluations or math.inf)
        return max(of_steps, self._context.elapsed_s / request.time_limit_s)

    @property
    def _is_out(self) -> bool:
        """Whether the caller stops, or no budget is left."""
        return self._must_stop() or self._is_over

    def _take(self, found: OptimizeResult) -> None:
        best = self._best
        if math.isinf(self._reference_s):  # the first search has it
            self._reference_s = found.reference_s
        if found.plan.rewrites:
            self._rewritten_s = min(self._rewritten_s, found.objective_s)
        if best is None or found.objective_s < best.objective_s:
            self._keep(found)
        elif found.plan.rewrites == best.plan.rewrites and found.objective_s <= best.objective_s:
            self._best = found  # the last answer of a search has its simulation

    @property
    def _is_proven(self) -> bool:
        return False

    def _certified(self, found: OptimizeResult) -> OptimizeResult:
        """By the least bound of what was searched; the reference is that of the first search."""
        if not found.plan.rewrites and self._least is not None and self._least.seconds < found.lower_bound_s:
            found = against_bound(found, self._request, self._least)
        return replace(found, reference_s=self._reference_s)
