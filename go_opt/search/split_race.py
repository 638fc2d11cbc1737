"""Searches that may split ops: which ops, into how many parts, then a plan of the parts.

The search of whole ops comes first. It pauses while some ways to split are searched for a short time, and
stops if one of them is better. Ways by columns (of ops with heavy weights) are tried if the plan streams
weights; ways by rows and in blocks, if its gap is large; all if there is no plan.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

from go_opt.env.copies.splits import split_graph
from go_opt.env.peak_memory import op_that_runs_nowhere
from go_opt.errors import GoOptError, InfeasibleError
from go_opt.model.graph import Graph
from go_opt.model.plan import Split
from go_opt.model.start import Start
from go_opt.result import OptimizeResult
from go_opt.search.bounds import lower_bound, refuse_latency
from go_opt.search.splits.ways import (
    divisible_ops,
    given_way,
    open_blocks,
    row_divisible,
    start_of_way,
    takes_turns,
    ways_for_samples,
    ways_in_parts,
    ways_to_split,
)
from go_opt.search.trials import Trials, WholeOpsSearch
from go_opt.solver import Bound

WHOLE_SHARE: Final = 1 / 4  # of the budget, at most, before ways to split are tried
CLOSE: Final = 0.01  # gap of whole ops below which ways to split are tried at once
NEAR: Final = 1.0  # gap of a plan of which the loads may be made equal by smaller parts
TRIAL_SHARE: Final = 1 / 4  # of the budget, at most, for the ways by columns, and for those by rows
CLOSE_SHARE: Final = 3 / 5  # the same if the gap of whole ops is below ``CLOSE``
CLEARLY: Final = 0.95  # of the interval of another way that took fewer steps: smaller gains may be luck
FIRST_STEPS: Final = 8  # of a search by rows, which begins with a plan made for it; of one without a plan
OPS_PER_S: Final = 1600  # ways with more ops and parts per second of the time limit are not tried

Way = tuple[Split, ...]


@dataclass(eq=False, repr=False)
class SplitSearch(Trials):
    """A search of whole ops that pauses while ways to split are tried; the best one continues.

    The bound holds for whole and for split ops.
    """

    _begin: Callable[..., WholeOpsSearch]

    def __post_init__(self) -> None:
        super().__post_init__()
        graph, target, request = self._graph, self._target, self._request
        divisible = divisible_ops(graph, target, request)
        if request.fidelity == "analytical" and not op_that_runs_nowhere(graph, target):
            refuse_latency(graph, target, request, divisible)
        self._least = lower_bound(graph, target, request, divisible)
        self._given = given_way(graph, request)
        self._rows = row_divisible(graph, target, request)
        self._blocks = open_blocks(graph, target, request)
        # Of a search that has tried other ways already, but perhaps no blocks on top of this one.
        self._continues = bool(self._given) and request.start is not None and request.start.continues
        self._tries = True  # whether ways to split are still to try
        self._reference_s = math.inf  # of the greedy plan of whole ops
        self._takes_turns = takes_turns(graph, target, request)
        self._takes_early = False  # of starts by rows
        self._steps = 0  # of the search of the best plan, until it was found

    def answer(self) -> OptimizeResult:
        """The best plan, simulated if requested."""
        failure = None
        with self._interruptible():
            if self._given:  # so that the answer is not worse than the start
                self._run(self._given, lambda: bool(self._history), share=TRIAL_SHARE)
            self._continues &= self._best is not None
            failure = None if self._continues else self._run((), self._ways_are_due)
            self._try_ways()
            if self._best is not None and self._best.plan.splits:
                self._run(self._best.plan.splits)
        if self._best is None:
            # For whole ops, it may be proven that there is no plan.
            raise InfeasibleError(f"no plan was found with split ops; without splits, {failure}")
        return self._simulated(self._best)

    def _ways_are_due(self) -> bool:
        limit = self._request.max_evaluations or math.inf
        is_late = self._context.elapsed_s > WHOLE_SHARE * self._request.time_limit_s
        return is_late or len(self._history) >= WHOLE_SHARE * limit or self._is_close

    def _try_ways(self) -> None:
        """Search each way for a short time, if splits may help; only once."""
        tries, self._tries = self._tries, False
        with self._context.tolerates("splits", GoOptError):
            if tries and not self._is_over:
                self._try()

    def _try(self) -> None:
        """By columns: if there is no plan, its weights stream, or the start has splits.

        By rows or in blocks, on top of the columns: if there is no plan, or its gap is ``CLOSE`` or more.
        """
        if self._continues:
            in_blocks = {self._graph.op_names[op] for block in self._blocks for op, _ in block}
            if in_blocks.isdisjoint(split.op for split in self._given):
                self._try_parts(self._given, self._given, math.inf, TRIAL_SHARE)
            return
        ways = ways_to_split(self._graph, self._target, self._request)
        ways = list(dict.fromkeys([*[self._given] * bool(self._given), *ways]))
        most_ops, share = OPS_PER_S * self._request.time_limit_s, TRIAL_SHARE
        if self._is_close:  # whole ops can gain next to nothing more
            most_ops, share = math.inf, CLOSE_SHARE
        by_columns = [way for way in ways if way != self._given] or [()]
        if self._best is None:
            self._try_parts(by_columns[0], by_columns[0], most_ops, share)
        best = self._best
        if best is None or self._given or (not best.plan.splits and best.metrics.stream_bytes.any()):
            self._try_each(ways, most_ops, share, first_steps=FIRST_STEPS)
        best = self._best
        way = None if best is None else best.plan.splits
        if best is not None and way in ((), *ways) and self._certified(best).gap >= CLOSE:
            self._try_parts(way, way if way in by_columns else by_columns[0], most_ops, share)

    def _try_parts(self, under_rows: Way, under_blocks: Way, most_ops: float, share: float) -> None:
        """Ways that share all layers; ways by rows, and of blocks, each on top of some by columns."""
        graph, target = self._graph, self._target
        self._try_each(ways_for_samples(graph, target, self._request, self._rows), most_ops, share)
        if self._request.objective == "latency":
            return
        spent = TRIAL_SHARE if self._best is not None else 1 / 2
        is_late = self._context.after(spent * self._request.time_limit_s)
        # Trials of blocks whose parts take turns are many evaluations of whole ops.
        has_room = (self._request.max_evaluations or math.inf) * TRIAL_SHARE >= FIRST_STEPS
        blocks = self._blocks if has_room or not self._takes_turns else []
        given = graph, target, self._rows, blocks, under_rows, under_blocks
        ways = ways_in_parts(*given, is_late, in_turn=self._takes_turns)
        # Where loads are near their bound, parts around states gain, but not with the first cuts.
        is_near = self._best is not None and self._certified(self._best).gap < NEAR
        first_steps = FIRST_STEPS if self._takes_turns and graph.states and is_near else 1
        self._try_each(ways, most_ops, share, FIRST_STEPS, first_steps)
        if self._best is None and self._rows:  # for a limit on the latency, or memories that are small
            self._takes_early = True
            self._try_each(ways, most_ops, share, FIRST_STEPS)

    def _try_each(
        self,
        ways: list[Way],
        most_ops: float,
        share: float,
        most_steps: float = math.inf,
        first_steps: int = 1,
    ) -> None:
        """Search each way of at most ``most_ops``, the first one for ``first_steps`` at least.

        After ``most_steps``, stop unless the way is the best.
        """
        sizes = [self._graph.num_ops + sum(split.parts for split in way) for way in ways]
        tried = [way for way, size in zip(ways, sizes, strict=True) if size <= most_ops]
        for i, way in enumerate(tried):
            until = partial(self._is_behind, way, len(self._history) + most_steps)
            if not self._is_over:
                self._run(way, until, share / len(tried), 1 if i else first_steps)

    def _is_behind(self, way: Way, step: float) -> bool:
        return len(self._history) >= step and (self._best is None or self._best.plan.splits != way)

    @property
    def _is_close(self) -> bool:
        """Whether the gap of the best plan is below ``CLOSE``, and it splits no op."""
        best = self._best
        return best is not None and not best.plan.splits and best.gap < CLOSE

    def _run(
        self,
        way: Way,
        until: Callable[[], bool] = lambda: False,
        share: float = 1.0,
        least_steps: int = 1,
    ) -> InfeasibleError | None:
        """One search with the ops of ``way`` split; an error: it has no plan.

        Args:
          share: of the budget; what takes less than all of it may go on later.
          least_steps: that it takes, as far as there is any budget.
        """
        is_late = self._context.after(share * self._request.time_limit_s)
        graph = split_graph(self._graph, way) if way else self._graph
        start = self._start_of(way, graph)
        if self._is_over:
            return None
        request = replace(self._budgeted(share, least_steps), splits=False, start=start)
        begun = len(self._history)

        def must_stop() -> bool:
            steps = len(self._history) - begun
            # Of searches without a plan others may have one, or find it sooner.
            is_slow = search.is_late and (self._best is not None or steps >= FIRST_STEPS)
            return self._must_stop() or until() or (steps >= least_steps and is_late()) or is_slow

        def take(found: OptimizeResult) -> None:
            self._take_after(replace(found, plan=replace(found.plan, splits=way)), len(self._history) - begun)

        try:
            search = self._begin(graph, request, on_step=self._take_step, on_improvement=take)
            with closing(search):
                search.advance(must_stop)
                if not way:
                    self._reference_s = search.reference_s
                    self._try_ways()
                    if self._best is not None and self._best.plan.splits:
                        return None
                    if not self._must_stop():  # it takes a step before it asks
                        search.advance(self._must_stop)
                if share < 1.0 and not self._is_proven:
                    return None
                result = search.answer()
        except InfeasibleError as error:
            return error
        if self._best is not None and self._best.plan.splits == way:
            # As good as its best plan so far, and simulated.
            self._best = replace(result, plan=replace(result.plan, splits=way))
            self._steps = len(self._history) - begun
        return None

    def _must_stop(self) -> bool:
        return super()._must_stop() or self._are_counted

    @property
    def _is_late(self) -> bool:
        """Whole ops are searched in any case: a large graph may take the time until there."""
        return not self._tries and super()._is_late

    def _bound(self) -> Bound:
        return self._least

    def _certified(self, found: OptimizeResult) -> OptimizeResult:
        found = super()._certified(found)
        return replace(found, reference_s=self._reference_s) if found.plan.splits else found

    def _start_of(self, way: Way, graph: Graph) -> Start | None:
        """The start of a search on ``graph``, which has the parts of ``way``."""
        best = self._best
        if best is not None and best.plan.splits == way:
            return replace(Start.of_plan(best.plan, graph.op_names), method=best.method)
        if way == self._given:
            return self._request.start
        return start_of_way(
            self._graph, graph, way, self._target, self._request, takes_early=self._takes_early
        )

    def _take_after(self, found: OptimizeResult, steps: int) -> None:
        best, before_s = self._best, math.inf
        if best is not None:
            way, best_way, before_s = found.plan.splits, best.plan.splits, best.objective_s
            if self._request.objective != "latency" and way != best_way:
                is_sooner = bool(best_way and way) and steps <= self._steps
                before_s *= 1.0 if is_sooner else CLEARLY
        if found.objective_s < before_s:
            self._steps = steps
            self._keep(found)
