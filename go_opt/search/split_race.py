"""Searches that may split ops: which ops, into how many parts, then a plan of the parts.

The search of whole ops comes first. It pauses while some ways to split are searched for a short time, and
stops if one of them is better. Ways by columns (of ops with heavy weights) are tried if the plan streams
weights; ways by rows and in blocks, if its gap is large; all if there is no plan.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from functools import partial
from typing import Final, NamedTuple

from go_opt.common.arrays import BoolArray
from go_opt.env import Target
from go_opt.env.copies.splits import split_graph
from go_opt.env.op_memory import op_that_runs_nowhere
from go_opt.errors import GoOptError, InfeasibleError
from go_opt.model.graph import Graph
from go_opt.model.plan import Split
from go_opt.model.start import Start
from go_opt.result import OptimizeResult, Request, Step
from go_opt.search.bounds import against_bound, lower_bound, refuse_latency
from go_opt.search.final_simulation import is_simulated, load_simulator, simulated_answer
from go_opt.search.shared.context import Context
from go_opt.search.shared.watch import Watch
from go_opt.search.splits.starts import start_of_way, takes_turns
from go_opt.search.splits.ways import (
    given_way,
    open_blocks,
    row_divisible,
    ways_for_samples,
    ways_in_parts,
    ways_to_split,
)
from go_opt.search.whole_ops import WholeOpsSearch

WHOLE_SHARE: Final = 1 / 4  # of the budget, at most, before ways to split are tried
CLOSE: Final = 0.01  # gap of whole ops below which ways to split are tried at once
NEAR: Final = 1.0  # gap of a plan of which the loads may be made equal by smaller parts
TRIAL_SHARE: Final = 1 / 4  # of the budget, at most, for the ways by columns, and for those by rows
CLOSE_SHARE: Final = 3 / 5  # the same if the gap of whole ops is below ``CLOSE``
CLEARLY: Final = 0.95  # of the interval of another way that took fewer steps: smaller gains may be luck
FIRST_STEPS: Final = 8  # of a search by rows, which begins with a plan made for it; of one without a plan
LEAST_S: Final = 1e-3  # of the search of whole ops
OPS_PER_S: Final = 1600  # ways with more ops and parts per second of the time limit are not tried


def search_with_splits(
    graph: Graph,
    target: Target,
    request: Request,
    divisible: BoolArray,
    context: Context,
    begin: Callable[..., WholeOpsSearch],
    watch: Watch,
) -> OptimizeResult:
    """The best plan of the searches that ``begin`` makes, of whole or split ops; the bound holds for both.

    Raises:
      InfeasibleError: no valid plan was found either way.
    """
    if request.fidelity == "analytical" and not op_that_runs_nowhere(graph, target):
        refuse_latency(graph, target, request, divisible)
    return _SplitSearch(graph, target, request, divisible, context, begin, watch).answer()


class _Found(NamedTuple):
    result: OptimizeResult  # on the graph with the parts of its way
    way: tuple[Split, ...]
    steps: int = 0  # of its search so far


class _SplitSearch:
    """A search of whole ops that pauses while ways to split are tried; the best one continues."""

    def __init__(
        self,
        graph: Graph,
        target: Target,
        request: Request,
        divisible: BoolArray,
        context: Context,
        begin: Callable[..., WholeOpsSearch],
        watch: Watch,
    ) -> None:
        self._graph, self._target, self._request = graph, target, request
        self._context, self._begin, self._watch = context, begin, watch
        self._bound = lower_bound(graph, target, request, divisible)
        self._given = given_way(graph, request, divisible)
        self._rows = row_divisible(graph, target, request)
        self._blocks = open_blocks(graph, target, request)
        # Of a search that has tried other ways already, but perhaps no blocks on top of this one.
        self._continues = bool(self._given) and request.start is not None and request.start.continues
        self._tries = True  # whether ways to split are still to try
        self._history: list[Step] = []
        self._reference_s = math.inf  # of the greedy plan of whole ops
        self._takes_turns = takes_turns(graph, target, request)
        self._takes_early = False  # of starts by rows
        self._is_stopped = False
        self._best: _Found | None = None

    def answer(self) -> OptimizeResult:
        """The best plan, simulated if requested."""
        failure = None
        try:
            if self._given:  # so that the answer is not worse than the start
                self._run(self._given, lambda: bool(self._history), share=TRIAL_SHARE)
            self._continues &= self._best is not None
            failure = None if self._continues else self._run((), self._ways_are_due)
            self._try_ways()
            if self._best is not None and self._best.way:
                self._run(self._best.way)
        except KeyboardInterrupt:  # a stopped search returns its best plan
            if self._best is None:
                raise
            self._is_stopped = True
            self._watch.on_interrupt()
        if self._best is None:
            # For whole ops, it may be proven that there is no plan.
            raise InfeasibleError(f"no plan was found with split ops; without splits, {failure}")
        result, way, _ = self._best
        checks = is_simulated(self._target, self._request) and not self._is_stopped
        if checks and result.simulated_interval_s is None:
            load_simulator(self._context)
            with self._context.tolerates("simulation"):
                result = simulated_answer(self._graph_of(way), self._target, self._request, [result])
        return self._as_answer(_Found(result, way))

    def _ways_are_due(self) -> bool:
        limit = self._request.max_evaluations or math.inf
        is_late = self._context.elapsed_s > WHOLE_SHARE * self._request.time_limit_s
        return is_late or len(self._history) >= WHOLE_SHARE * limit or self._is_close

    def _try_ways(self) -> None:
        """Search each way for a short time, if splits may help; only once."""
        tries, self._tries = self._tries, False
        with self._context.tolerates("splits", GoOptError):
            if tries and self._request_of(1.0) is not None:
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
        if best is None or self._given or (not best.way and best.result.metrics.stream_bytes.any()):
            self._try_each(ways, most_ops, share, first_steps=FIRST_STEPS)
        best = self._best
        if best is not None and best.way in ((), *ways) and self._as_answer(best).gap >= CLOSE:
            under_blocks = best.way if best.way in by_columns else by_columns[0]
            self._try_parts(best.way, under_blocks, most_ops, share)

    def _try_parts(
        self, under_rows: tuple[Split, ...], under_blocks: tuple[Split, ...], most_ops: float, share: float
    ) -> None:
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
        is_near = self._best is not None and self._as_answer(self._best).gap < NEAR
        first_steps = FIRST_STEPS if self._takes_turns and graph.states and is_near else 1
        self._try_each(ways, most_ops, share, FIRST_STEPS, first_steps)
        if self._best is None and self._rows:  # for a limit on the latency, or memories that are small
            self._takes_early = True
            self._try_each(ways, most_ops, share, FIRST_STEPS)

    def _try_each(
        self,
        ways: list[tuple[Split, ...]],
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
            self._run(way, until, share / len(tried), 1 if i else first_steps)

    def _is_behind(self, way: tuple[Split, ...], step: float) -> bool:
        return len(self._history) >= step and (self._best is None or self._best.way != way)

    @property
    def _is_close(self) -> bool:
        """Whether the gap of the best plan is below ``CLOSE``, and it splits no op."""
        return self._best is not None and not self._best.way and self._best.result.gap < CLOSE

    def _run(
        self,
        way: tuple[Split, ...],
        until: Callable[[], bool] = lambda: False,
        share: float = 1.0,
        least_steps: int = 1,
    ) -> InfeasibleError | None:
        """One search with the ops of ``way`` split; an error: it has no plan.

        Args:
          share: of the budget; what takes less than all of it may go on later.
          least_steps: that it takes, as far as there is any budget.
        """
        if self._request_of(share, least_steps) is None:
            return None
        is_late = self._context.after(share * self._request.time_limit_s)
        start = self._start_of(way, graph := self._graph_of(way))
        requested = self._request_of(share, least_steps)
        if requested is None:
            return None
        begun = len(self._history)
        first_steps = begun + FIRST_STEPS

        def must_stop() -> bool:
            has_begun = len(self._history) >= begun + least_steps
            is_over = self._must_stop() or until() or (has_begun and is_late())
            return is_over or self._is_late(search, first_steps)

        try:
            search = self._begin(
                graph,
                replace(requested, start=start),
                on_step=self._take_step,
                on_improvement=lambda found: self._take(_Found(found, way, len(self._history) - begun)),
            )
            with closing(search):
                search.advance(must_stop)
                if not way:
                    self._reference_s = search.reference_s
                    self._try_ways()
                    if self._best is not None and self._best.way:
                        return None
                    if not self._must_stop():  # it takes a step before it asks
                        search.advance(self._must_stop)
                if share < 1.0 and not self._is_proven:
                    return None
                result = search.answer()
        except InfeasibleError as error:
            return error
        if self._best is not None and self._best.way == way:
            steps = len(self._history) - begun
            self._best = _Found(result, way, steps)  # as good as its best plan so far, and simulated
        return None

    def _must_stop(self) -> bool:
        self._is_stopped = self._is_stopped or self._watch.should_stop()
        is_out = len(self._history) >= (self._request.max_evaluations or math.inf)
        return self._is_stopped or is_out or self._is_proven

    def _is_late(self, search: WholeOpsSearch, first_steps: int) -> bool:
        """Whether a search without a plan is over: others may have one, or find it sooner."""
        return search.is_late and (self._best is not None or len(self._history) >= first_steps)

    def _as_answer(self, found: _Found) -> OptimizeResult:
        result = against_bound(found.result, self._request, self._bound)
        return replace(
            result,
            plan=replace(result.plan, splits=found.way),
            history=tuple(self._history),
            evaluations=len(self._history),
            wall_s=self._context.elapsed_s,
            dropped_methods=self._context.dropped_methods,
            reference_s=self._reference_s if found.way else result.reference_s,
            seed=self._request.seed,
        )

    def _graph_of(self, way: tuple[Split, ...]) -> Graph:
        return split_graph(self._graph, way) if way else self._graph

    def _start_of(self, way: tuple[Split, ...], graph: Graph) -> Start | None:
        """The start of a search on ``graph``, which has the parts of ``way``."""
        best = self._best
        if best is not None and best.way == way:
            return replace(Start.of_plan(best.result.plan, graph.op_names), method=best.result.method)
        if way == self._given:
            return self._request.start
        return start_of_way(
            self._graph, graph, way, self._target, self._request, takes_early=self._takes_early
        )

    def _request_of(self, share: float, least_steps: int = 1) -> Request | None:
        """The request of the next search; None if no budget is left."""
        request = self._request
        limit, left_s = request.max_evaluations, request.time_limit_s - self._context.elapsed_s
        most = 0 if limit is None else max(least_steps, math.ceil(share * limit))
        left = None if limit is None else min(limit - len(self._history), most)
        if self._tries:  # whole ops are searched in any case: a large graph may take the time until here
            left_s = max(left_s, LEAST_S)
        if self._is_stopped or self._is_proven or left_s <= 0 or (left is not None and left < 1):
            return None
        budget_s = left_s if least_steps > 1 else min(left_s, share * request.time_limit_s)
        return replace(
            request,
            splits=False,
            budget_s=budget_s if math.isfinite(budget_s) else None,
            max_evaluations=left,
        )

    @property
    def _is_proven(self) -> bool:
        return self._best is not None and self._as_answer(self._best).status == "OPTIMAL"

    def _take_step(self, step: Step) -> None:
        best_s = min(step.best_s, self._history[-1].best_s if self._history else math.inf)
        number = len(self._history) + 1
        self._history.append(Step(step.method, step.objective_s, best_s, number, step.elapsed_s))
        self._watch.on_step(self._history[-1])

    def _take(self, found: _Found) -> None:
        best = self._best
        before_s = math.inf if best is None else best.result.objective_s
        if self._request.objective != "latency" and best is not None and found.way != best.way:
            is_sooner = bool(best.way and found.way) and found.steps <= best.steps
            before_s *= 1.0 if is_sooner else CLEARLY
        if found.result.objective_s < before_s:
            self._best = found
            self._watch.on_improvement(self._as_answer(found))
