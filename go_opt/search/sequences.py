"""Searches for the number of sequences in flight together with the plan.

With S sequences, a plan takes the longer of its loads and latency / S for each inference of a sequence.
More sequences shorten the second, until their states leave too little memory for short loads. Numbers are
tried one after another, each search beginning with the best plan before: where sequences wait, more; where
a chip or link is the bottleneck, fewer. Replicas share the sequences, but each has all weights of its stage:
the first number is searched with replicas and without them, the others as was better. A number that is given
and leaves little room begins with what a plan for fewer decides, cut anew. The bound holds for
every number: with fewer than P, a plan takes at least its critical path / (P - 1); with P or more, at least
the loads with the states of P.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from functools import cached_property
from itertools import islice
from typing import Final

import numpy as np

from go_opt.env import cost_tables, evaluate_plan
from go_opt.env.copies.splits import planned_graph, split_graph, unsplit_graph
from go_opt.errors import GoOptError, InfeasibleError
from go_opt.model.graph import WEIGHT, Graph, with_sequences
from go_opt.model.plan import Plan, Split
from go_opt.model.start import Start
from go_opt.result import ONLY, OptimizeResult
from go_opt.search.bounds import lower_bound, path_bound, waiting_bound
from go_opt.search.methods.events import may_replicate
from go_opt.search.methods.given import given
from go_opt.search.shared.context import Watch
from go_opt.search.split_race import OPS_PER_S
from go_opt.search.splits.fitted_parts import FittedParts
from go_opt.search.splits.ways import divisible_ops, start_of_way
from go_opt.search.state import Search
from go_opt.search.trials import QUICK_STEPS, NestedTrials
from go_opt.solver import Bound

MOST_TRIALS: Final = 6  # numbers of sequences
MOST_SEQUENCES: Final = 2**31 - 1
FIRST_SHARE: Final = 2 / 5  # of the budget, at most, until there is a plan
FEWER_SHARE: Final = 1 / 5  # of the budget for a plan for fewer than the number that is given
SHARE: Final = 1 / 7  # of the budget for each further number, at most
CUT_SHARE: Final = 1 / 16  # of the budget, at most, to cut the orders of the best plan for another number
LAST_SHARE: Final = 1 / 4  # of the budget for the number that was best; then the number is looked at again
QUICK_SHARE: Final = 1 / 4  # of the budget, at most, for a plan with fewer sequences than the first number
ROUNDS: Final = 2  # inferences of a replica, if there were one for each chip: few replicas then differ much
MOST_STARTS: Final = 4  # proposals of a start as it is
# Latencies of plans over what the program that fits parts takes them to be, until one is evaluated.
LATENCY_SCALES: Final = (1.05, 0.8)
FITTED_SHARE: Final = 1 / 8  # of the ops that are searched in the time left: more are not fitted
MOST_FITTED: Final = 4  # plans whose parts fit the chips, each with what the last one says of its latency
CLOSE: Final = 1 / 200  # relative difference of the intervals of such a plan and of its slicing, or of two
MOST_FEWER: Final = 64  # numbers tried for the best plan
EQUAL: Final = 1e-6  # relative difference of intervals that are equal


class SequenceSearch(NestedTrials):
    """The best plan for the number of sequences of the request, or for the best number.

    The bounds of trials are those of the loads.
    """

    def __post_init__(self) -> None:
        super().__post_init__()
        graph, target, request = self._graph, self._target, self._request
        with self._context.compiling():
            self._divisible = divisible_ops(graph, target, request)
            self._path = self._critical_path()
            # By number of sequences, for that many or more.
            first = self._load_bound(1)
            self._loads = {} if request.sequences else {1: first}
            self._least_s = first.seconds
        # States on the chips are of sequences: a graph with states of the model is planned as a step.
        tables = cost_tables(with_sequences(graph, 1), target)
        is_held = tables.is_state & (np.diff(tables.reader_ptr) > 0)  # what no op reads takes no memory
        self._bytes_of_each = max(int(tables.stored_bytes[is_held].sum()), 1)
        most_that_fit = max(int(tables.sram_bytes.sum()) // self._bytes_of_each, 1)
        self._fewest, self._most = request.sequences or 1, request.sequences or most_that_fit
        self._replicates = may_replicate(target, request)
        self._is_open = True  # whether plans now searched may have the replicas that the request allows
        begun = request.start.plan if request.start else None
        self._is_given = begun is not None and begun.sequences > 1
        # Where the host keeps all states, the loads are the same for every number.
        self._is_free = not request.sequences and not is_held.any()
        if not request.sequences and not self._is_free:
            self._bound_loads(1, self._most + 1)

    def answer(self) -> OptimizeResult:
        """The best plan."""
        with self._interruptible():
            if self._request.sequences:
                self._begin_with_fewer(self._request.sequences)
            if self._request.sequences or self._is_free:
                self._search(self._request.sequences or MOST_SEQUENCES, share=1.0)
            else:
                self._try_numbers()
        assert self._best is not None
        return self._simulated(self._best)

    def _begin_with_fewer(self, number: int) -> None:
        """Cut the orders of a plan for fewer sequences anew, if so many take more than half of the room."""
        fewer = min(self._first_number(), number - 1)
        is_open = self._request.start is None and self._request.policy != ONLY
        is_short = FEWER_SHARE * (self._request.max_evaluations or math.inf) < QUICK_STEPS
        if is_open and not is_short and fewer >= 1 and self._most_beside_weights < 2 * number:
            watch = Watch(
                lambda step: self._take_step(replace(step, objective_s=math.inf, best_s=math.inf)),
                lambda found: None,
                self._must_stop,
                self._stop,
            )
            request = replace(self._request_of(FEWER_SHARE), simulate=False)
            with suppress(InfeasibleError):
                found = self._answer(with_sequences(self._graph, fewer), request, watch)
                self._cut(number, found.plan)

    def _try_numbers(self) -> None:
        fewest, most = self._fewest, self._most
        low, high = fewest - 1, most + 1  # with so few, sequences wait; so many do not fit, or gain nothing
        number = min(max(self._first_number(), fewest), most)
        self._plan_for_fewer(number)
        share = SHARE if self._is_given else FIRST_SHARE
        for _ in range(MOST_TRIALS):
            plan = None if self._best is None or self._is_quick else self._best.plan
            try:
                found = self._search(number, share) if plan is None else self._cut(number, plan)
            except InfeasibleError:
                if self._best is None and (number == fewest or self._is_over):
                    raise
                high = number
            else:
                is_waiting = found.metrics.latency_s > number * _loads_s(found) * (1.0 + EQUAL)
                # With few sequences, stages have few replicas, or some replicas have more than others.
                is_worse = self._replicates and number < self._best_number and not self._is_best(found)
                is_few = is_waiting or is_worse
                low, high = (max(low, number), high) if is_few else (low, min(high, number))
            if plan is None:
                self._fit_parts()
            if low + 1 >= high or self._is_over:
                break
            number = self._between(low, high)
        if self._best is None:
            self._search(fewest, share=1.0)
        for share in (LAST_SHARE, 1.0):
            if self._best is not None and not self._is_over:
                self._is_open = self._is_quick or self._has_replicas()
                with suppress(InfeasibleError):  # it begins with the best plan; no evaluation may be left
                    self._search(self._number_again(self._best), share)
        if self._best is not None:
            self._take(self._with_fewer(self._best))

    def _plan_for_fewer(self, number: int) -> None:
        """Take a first plan for half as many sequences, for a quarter and so on, until there is one."""
        if self._request.start is not None or self._request.policy == ONLY:
            return
        is_late = self._context.after(QUICK_SHARE * self._request.time_limit_s)
        most = QUICK_SHARE * (self._request.max_evaluations or math.inf) - QUICK_STEPS
        while number > self._fewest and self._best is None and len(self._history) <= most and not is_late():
            number = max(number // 2, self._fewest)
            self._plan_quickly(with_sequences(self._graph, number))

    def _fit_parts(self) -> None:
        """Take plans in which each block has the parts that fit the chips, for the numbers they fit best."""
        request = self._request
        has_room = (request.max_evaluations or math.inf) * CUT_SHARE >= MOST_FITTED
        left_s = request.time_limit_s - self._context.elapsed_s
        is_large = self._graph.num_ops > FITTED_SHARE * OPS_PER_S * left_s
        if not has_room or is_large or request.max_latency_s is not None:
            return
        with self._context.tolerates("parts that fit", GoOptError):
            is_late = self._context.after(left_s / 2)
            parts = FittedParts(self._graph, self._target, request, is_late)
            numbers, scales = range(self._fewest, self._most + 1), list(LATENCY_SCALES)
            for _ in range(MOST_FITTED if parts.is_open else 0):
                if self._best is None or self._is_over or not scales:
                    return
                scale = scales.pop(0)
                limits_s = self._bound().seconds, self._best.objective_s * (1.0 - CLOSE)
                fitted = parts.best(self._best_number, numbers, limits_s, scale)
                if fitted is None:
                    continue
                reached = self._take_stages(fitted.sequences, fitted.way, fitted.start)
                if reached is None:
                    return
                found = reached.metrics.latency_s / fitted.slicing.latency_s
                scales = [found * (1.0 + CLOSE)] if abs(found / scale - 1.0) > CLOSE else []

    def _take_stages(self, number: int, way: tuple[Split, ...], start: Start) -> OptimizeResult | None:
        """Evaluate a start as it is; None if it is not valid."""
        graph = with_sequences(split_graph(self._graph, way), number)
        search = self._begin(graph, way, start, MOST_STARTS)
        return None if search.best is None else self._with_splits(search.result(), way)

    def _begin(self, graph: Graph, way: tuple[Split, ...], start: Start, most: int | None = None) -> Search:
        """Take the proposals of a start, or the first ones."""
        request = replace(self._request_of(CUT_SHARE), splits=False, start=start)
        search = Search(graph, self._target, request, self._take_step, self._context)
        for event in islice(given(search), most):
            if search.take(event):
                self._take(self._with_splits(search.result(), way))
            if search.is_done() or self._must_stop():
                break
        return search

    def _cut(self, number: int, plan: Plan) -> OptimizeResult:
        """Cut the orders of a plan anew for so many sequences, with replicas and without.

        Raises:
          InfeasibleError: there is no room for so many.
        """
        graph = planned_graph(self._graph, replace(plan, sequences=number))
        failures: list[InfeasibleError] = []
        best: OptimizeResult | None = None
        for start in self._starts(graph, plan):
            if best is not None and self._is_over:
                break
            try:
                found = self._with_splits(self._begin(graph, plan.splits, start).result(), plan.splits)
            except InfeasibleError as error:
                failures.append(error)
                continue
            best = found if best is None or found.objective_s < best.objective_s else best
        if best is None:
            raise failures[0]
        return best

    def _starts(self, graph: Graph, plan: Plan) -> Iterator[Start]:
        """The order in which parts take turns, or the default order; then that of the plan itself."""
        way = None
        if plan.splits:
            whole = unsplit_graph(self._graph, plan)
            way = start_of_way(whole, graph, plan.splits, self._target, self._request, takes_early=False)
        yield way or Start({}, method="default order")
        yield replace(Start.of_plan(plan, graph.op_names), plan=None, method="best plan")

    @staticmethod
    def _with_splits(found: OptimizeResult, way: tuple[Split, ...]) -> OptimizeResult:
        return replace(found, plan=replace(found.plan, splits=way))

    def _has_replicas(self) -> bool:
        """Whether the best plan has replicated stages."""
        return self._best is not None and bool((self._best.plan.replication > 1).any())

    def _number_again(self, best: OptimizeResult) -> int:
        """As many sequences as the best plan needs since its loads became shorter, if they fit."""
        needed = self._needed(best)
        more = replace(best.plan, sequences=max(needed, best.plan.sequences))
        fits = evaluate_plan(planned_graph(self._graph, more), self._target, more).valid
        return more.sequences if fits else best.plan.sequences

    def _first_number(self) -> int:
        """Of the plan to begin with; else as many as the critical path needs for the least loads.

        Where stages may be replicated, enough for as many replicas as there are chips, unless their states
        take more than half of the room that weights leave.
        """
        start = self._request.start
        if start is not None and start.plan is not None and start.plan.sequences > 1:
            return start.plan.sequences
        most = self._most_beside_weights
        needed = math.ceil(self._path.seconds / max(self._least_s, 1e-30))
        if self._replicates:
            needed = max(needed, min(ROUNDS * self._target.num_chips, most // 2))
        return min(needed, most)

    @cached_property
    def _most_beside_weights(self) -> int:
        """The sequences whose states fill the room that weights leave; negative if these leave none."""
        tables = cost_tables(with_sequences(self._graph, 1), self._target)
        weights = (tables.tensor_kind == WEIGHT) & ~tables.is_state
        room = int(tables.sram_bytes.sum() - tables.stored_bytes[weights].sum())
        return room // self._bytes_of_each

    def _between(self, low: int, high: int) -> int:
        """The next number: as many as the best plan needs for its loads, if that is between the two."""
        best = self._best
        if best is None:
            return (low + high) // 2
        needed = self._needed(best)
        return needed if low < needed < high else (low + high) // 2

    @staticmethod
    def _needed(found: OptimizeResult) -> int:
        """The sequences that a plan needs for its loads."""
        return math.ceil(found.metrics.latency_s / max(_loads_s(found), 1e-30) - EQUAL)

    def _search(self, number: int, share: float) -> OptimizeResult:
        """Search with so many sequences for a share of the budget."""
        graph = with_sequences(self._graph, number)
        request = self._request_of(share)
        request = replace(request, replication=request.replication and self._is_open)
        if self._best is not None and not self._is_quick:
            assert request.start is not None
            request = replace(request, start=replace(request.start, continues=True))
        found = self._searched(graph, request)
        self._is_quick = False
        bound = Bound(found.lower_bound_s, found.bound_reason)
        number = 1 if self._is_free else number
        known = self._loads.get(number)
        if self._is_open and (known is None or bound.seconds > known.seconds):
            self._loads[number] = bound
        self._take(found)
        return found

    def _take(self, found: OptimizeResult) -> None:
        if self._is_free:
            found = self._with_fewer(found)
        if self._is_best(found):
            if self._best is not None:  # a search that continues has no greedy plan of whole ops
                least_s = min(found.reference_s, self._best.reference_s)
                found = replace(found, reference_s=least_s)
            self._keep(found)

    def _is_best(self, found: OptimizeResult) -> bool:
        """Whether no plan so far is better, or as good with fewer sequences."""
        best = self._best
        if best is None or found.objective_s < best.objective_s * (1.0 - EQUAL):
            return True
        limit_s = best.objective_s * (1.0 + EQUAL)
        return found.objective_s <= limit_s and found.plan.sequences <= best.plan.sequences

    @property
    def _best_number(self) -> int:
        return 0 if self._best is None else self._best.plan.sequences

    def _with_fewer(self, best: OptimizeResult) -> OptimizeResult:
        """The same plan with as few sequences as keep its interval, or nearly as few."""
        plan, interval_s = best.plan, best.metrics.interval_s
        number = max(math.ceil(best.metrics.latency_s / max(interval_s, 1e-30) - EQUAL), self._fewest)
        number = max(number, int(plan.replication.max()))
        for fewer in range(number, min(plan.sequences, number + MOST_FEWER)):
            if any(fewer % plan.replication[plan.placement == chip][0] for chip in plan.forwards):
                continue
            plan = replace(best.plan, sequences=fewer)
            metrics = evaluate_plan(planned_graph(self._graph, plan), self._target, plan)
            if metrics.valid and metrics.interval_s <= interval_s * (1.0 + EQUAL):
                return replace(
                    best, plan=plan, metrics=metrics, simulated_interval_s=None, simulated_makespan_s=None
                )
        return best

    def _bound(self) -> Bound:
        """The bound for the number of sequences of the request, or for every number."""
        loads = [*self._loads.items(), (self._most + 1, Bound(math.inf, "more do not fit"))]
        bounds = [
            min(load, waiting_bound(self._path, number - 1 if number > self._fewest else 0), key=_seconds)
            for number, load in loads
        ]
        return max(bounds, key=_seconds)

    def _bound_loads(self, low: int, high: int) -> None:
        """Bound the loads for the numbers about which the critical path takes as long, by bisection."""
        while high - low > 1:
            number = (low + high) // 2
            self._loads[number] = self._load_bound(number)
            is_low = self._loads[number].seconds < self._path.seconds / (number - 1)
            low, high = (number, high) if is_low else (low, number)

    def _load_bound(self, number: int) -> Bound:
        graph = with_sequences(self._graph, number)
        return lower_bound(graph, self._target, self._request, self._divisible)

    def _critical_path(self) -> Bound:
        if self._request.fidelity != "analytical":
            return Bound(0.0, "none is proven")
        return path_bound(self._graph, self._target, self._request, self._divisible)


def _seconds(bound: Bound) -> float:
    return bound.seconds


def _loads_s(found: OptimizeResult) -> float:
    """The seconds of the busiest chip or link, in each inference."""
    return float(max(found.metrics.compute_s.max(), found.metrics.link_s.max()))
