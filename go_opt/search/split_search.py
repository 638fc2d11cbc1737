"""Searches with operator splits open: which ops to split, into how many parts, then a plan of the parts.

Ops whose weights take a large share of a chip's memory are the ones that may be split. The search of whole
ops comes first. Where its plan streams weights, or there is none, it pauses while some ways to split the ops
are searched for a short time, and gives way to the best of them where that is better.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Final, NamedTuple, Protocol

import numpy as np

from go_opt.common.arrays import BoolArray
from go_opt.env import Target, cost_tables
from go_opt.env.copies.splits import columns_of, split_graph, stays_in_parts
from go_opt.errors import InfeasibleError, PlanError
from go_opt.model.graph import Graph
from go_opt.model.plan import Split
from go_opt.model.start import Start
from go_opt.result import OptimizeResult, Request, Step
from go_opt.search.simulated_claim import is_simulated, simulated_answer
from go_opt.search.state import against_bound, lower_bound

HEAVY: Final = 1 / 4  # of a chip's memory: the weight of an op that may be split
SHARES: Final = (1 / 2, 1 / 4, 1 / 8)  # of a chip's memory: the weight of a part, one way to split for each
JOINED_OUTPUT: Final = 2.5  # times its bytes, at least, that a chip holds which joins an output of the model
WHOLE_SHARE: Final = 1 / 4  # of the time or the evaluations, at most, before ways to split are tried
CLOSE: Final = 0.01  # a gap to the bound of whole ops that ends the waiting
TRIAL_SHARE: Final = 1 / 12  # of the time or the evaluations, at most, for one way to split
OPS_PER_S: Final = 400  # of time: graphs with more ops and parts are left whole


class Solve(Protocol):
    """A search for plans of whole ops."""

    def __call__(
        self,
        graph: Graph,
        request: Request,
        *,
        on_step: Callable[[Step], None],
        on_improvement: Callable[[OptimizeResult], None],
        should_stop: Callable[[], bool],
    ) -> OptimizeResult: ...


def divisible_ops(graph: Graph, target: Target, request: Request) -> BoolArray:
    """[N] the ops that may be split in answers to ``request``: those with heavy weights.

    Where an output of the model must be joined, a chip holds it in two buffers and all parts but one.
    """
    found = np.zeros(graph.num_ops, dtype=np.bool_)
    if request.splits and request.decide == "all" and not request.constraints:
        tables = cost_tables(graph, target)
        sram_bytes = float(tables.sram_bytes.max())
        heavy_bytes = HEAVY * sram_bytes
        is_heavy = tables.stored_bytes[graph.reader_tensor] > heavy_bytes
        for op in np.unique(graph.reader_op[is_heavy]).tolist():
            columns = columns_of(graph, op)
            if columns is None or tables.stored_bytes[list(columns.weights)].max() <= heavy_bytes:
                continue
            stays = request.output_parts and stays_in_parts(graph, columns)
            is_output = bool(tables.tensor_is_output[columns.output])
            joined_bytes = JOINED_OUTPUT * float(tables.tensor_bytes[columns.output])
            found[op] = stays or not is_output or joined_bytes <= sram_bytes
    return found


def outputs_in_parts(graph: Graph, target: Target) -> list[str]:
    """Names of the ops whose outputs would stay in parts where the request allows it."""
    ops = np.flatnonzero(divisible_ops(graph, target, Request(output_parts=True))).tolist()
    columns = [(op, columns_of(graph, op)) for op in ops]
    return [graph.op_names[op] for op, found in columns if found is not None and stays_in_parts(graph, found)]


def ways_to_split(
    graph: Graph, target: Target, request: Request, divisible: BoolArray
) -> list[tuple[Split, ...]]:
    """For each of some shares of a memory, the fewest parts of each op whose weights take no more of it.

    Parts are a power of two, and no more than there are chips. What the plan to begin with splits is first.
    """
    tables = cost_tables(graph, target)
    sram_bytes = float(tables.sram_bytes.max())
    ways = [_given_way(graph, request, divisible)]
    for share in SHARES:
        way = []
        for op in np.flatnonzero(divisible).tolist():
            columns = columns_of(graph, op)
            assert columns is not None
            weight_bytes = float(tables.stored_bytes[list(columns.weights)].max())
            doublings = max(0, math.ceil(math.log2(weight_bytes / (share * sram_bytes))))
            parts = min(2**doublings, target.num_chips, columns.number)
            if parts > 1:
                joined = not (request.output_parts and stays_in_parts(graph, columns))
                way.append(Split(graph.op_names[op], "columns", parts, joined))
        ways.append(tuple(way))
    return [way for way in dict.fromkeys(ways) if way]


def _given_way(graph: Graph, request: Request, divisible: BoolArray) -> tuple[Split, ...]:
    """Of the plan to begin with, where it is one of the same ops."""
    plan = None if request.start is None else request.start.plan
    splits = () if plan is None else plan.splits
    is_open = all(split.op in graph.op_index and divisible[graph.op_index[split.op]] for split in splits)
    try:
        return splits if is_open and split_graph(graph, splits) else ()
    except PlanError:  # of another version of the model
        return ()


def search_with_splits(
    graph: Graph,
    target: Target,
    request: Request,
    divisible: BoolArray,
    solve: Solve,
    *,
    on_step: Callable[[Step], None],
    on_improvement: Callable[[OptimizeResult], None],
    should_stop: Callable[[], bool],
) -> OptimizeResult:
    """The best plan of ``solve``, of the ops as they are or split; its bound holds for both.

    Raises:
      InfeasibleError: no valid plan was found either way.
    """
    watch = _Watch(on_step, on_improvement, should_stop)
    return _Race(graph, target, request, divisible, solve, watch).answer()


class _Watch(NamedTuple):
    """What the caller sees of a search, and how it stops it."""

    on_step: Callable[[Step], None]
    on_improvement: Callable[[OptimizeResult], None]
    should_stop: Callable[[], bool]


class _Found(NamedTuple):
    result: OptimizeResult  # on the graph with the parts of its way
    way: tuple[Split, ...]


class _Race:
    """A search of whole ops that pauses while ways to split are tried; the best of all goes on."""

    def __init__(
        self,
        graph: Graph,
        target: Target,
        request: Request,
        divisible: BoolArray,
        solve: Solve,
        watch: _Watch,
    ) -> None:
        self._graph, self._target, self._request = graph, target, request
        self._solve, self._watch = solve, watch
        self._bound = lower_bound(graph, target, request, divisible)
        # None once they were tried.
        self._ways: list[tuple[Split, ...]] | None = _affordable(
            graph, request, ways_to_split(graph, target, request, divisible)
        )
        self._given = _given_way(graph, request, divisible)
        self._history: list[Step] = []
        self._before_s = 0.0  # seconds of searches that ended
        self._reference_s = math.inf  # of the greedy plan of whole ops
        self._is_stopped = False
        self._best: _Found | None = None

    def answer(self) -> OptimizeResult:
        """The best plan, simulated where that is asked for."""
        failure = self._run((), self._is_decided)
        self._try_ways()
        if self._best is None:
            assert failure is not None
            raise InfeasibleError(str(failure), conflict=failure.conflict)  # of whole ops it may be proven
        if self._best.way:
            self._run(self._best.way)
        result, way = self._best
        checks = is_simulated(self._target, self._request) and not self._is_stopped
        if checks and result.simulated_interval_s is None:
            result = simulated_answer(self._graph_of(way), self._target, self._request, [result])
        return self._as_answer(_Found(result, way))

    def _is_decided(self) -> bool:
        """Tries the ways to split when it is time; whether one of them is better than whole ops."""
        limit = self._request.max_evaluations or math.inf
        is_late = self._elapsed_s > WHOLE_SHARE * self._request.time_limit_s
        is_late |= len(self._history) >= WHOLE_SHARE * limit
        is_close = self._best is not None and self._best.result.gap < CLOSE  # to the bound of whole ops
        if is_late or is_close:
            self._try_ways()
        return self._best is not None and bool(self._best.way)

    def _try_ways(self) -> None:
        """Search each way for a short time, where splits may help: no plan, or one whose weights stream."""
        ways, self._ways = self._ways, None
        if ways is None:
            return
        if self._best is None or self._best.result.metrics.stream_bytes.any() or self._given:
            for way in ways:
                self._run(way, share=TRIAL_SHARE)

    def _run(
        self, way: tuple[Split, ...], until: Callable[[], bool] = lambda: False, share: float = 1.0
    ) -> InfeasibleError | None:
        """One search with the ops of ``way`` split, for a share of the budget at most; why it has no plan."""
        asked = self._request_of(way, share)
        if asked is None:
            return None
        outer_s, self._before_s = self._before_s, self._elapsed_s

        def should_stop() -> bool:
            self._is_stopped = self._is_stopped or self._watch.should_stop()
            is_out = len(self._history) >= (self._request.max_evaluations or math.inf)
            return self._is_stopped or is_out or self._is_proven or until()

        is_further = self._best is not None and self._best.way == way
        try:
            result = self._solve(
                self._graph_of(way),
                asked,
                on_step=self._take_step,
                on_improvement=lambda found: self._take(_Found(found, way)),
                should_stop=should_stop,
            )
        except InfeasibleError as error:
            return error
        finally:
            self._before_s = outer_s
        if not way:
            self._reference_s = result.reference_s
        if is_further or (self._best is not None and self._best.way == way):
            self._best = _Found(result, way)  # as good as the best that it met, and simulated
        return None

    def _as_answer(self, found: _Found) -> OptimizeResult:
        result = against_bound(found.result, self._request, self._bound)
        return replace(
            result,
            plan=replace(result.plan, splits=found.way),
            history=tuple(self._history),
            evaluations=len(self._history),
            wall_s=self._elapsed_s,
            reference_s=self._reference_s if found.way else result.reference_s,
            seed=self._request.seed,
        )

    def _graph_of(self, way: tuple[Split, ...]) -> Graph:
        return split_graph(self._graph, way) if way else self._graph

    def _request_of(self, way: tuple[Split, ...], share: float) -> Request | None:
        """What is asked of a search with what is left; None: nothing is."""
        request, best = self._request, self._best
        limit, left_s = request.max_evaluations, request.time_limit_s - self._elapsed_s
        left = None if limit is None else min(limit - len(self._history), max(1, math.ceil(share * limit)))
        if self._is_stopped or self._is_proven or left_s <= 0 or (left is not None and left < 1):
            return None
        budget_s = min(left_s, share * request.time_limit_s)
        start = request.start
        if best is not None and best.way == way:
            start = Start.of_plan(best.result.plan, self._graph_of(way).op_names)
        return replace(
            request,
            splits=False,
            budget_s=budget_s if math.isfinite(budget_s) else None,
            max_evaluations=left,
            start=start,
        )

    @property
    def _elapsed_s(self) -> float:
        return self._history[-1].elapsed_s if self._history else 0.0

    @property
    def _is_proven(self) -> bool:
        return self._best is not None and self._as_answer(self._best).status == "OPTIMAL"

    def _take_step(self, step: Step) -> None:
        best_s = min(step.best_s, self._history[-1].best_s if self._history else math.inf)
        number = len(self._history) + 1
        # A search that paused counts the pause.
        elapsed_s = max(self._before_s + step.elapsed_s, self._elapsed_s)
        self._history.append(Step(step.method, step.objective_s, best_s, number, elapsed_s))
        self._watch.on_step(self._history[-1])

    def _take(self, found: _Found) -> None:
        if self._best is None or found.result.objective_s < self._best.result.objective_s:
            self._best = found
            self._watch.on_improvement(self._as_answer(found))


def _affordable(graph: Graph, request: Request, ways: Iterable[tuple[Split, ...]]) -> list[tuple[Split, ...]]:
    """The ways whose graphs are not too large for the time."""
    most = OPS_PER_S * request.time_limit_s
    return [way for way in ways if graph.num_ops + sum(split.parts for split in way) <= most]
