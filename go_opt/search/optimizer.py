"""Runs a search: takes the events of the portfolio and keeps the best verified plan.

The search is anytime: the greedy and the sliced plan are ready within milliseconds, later events
only improve on them, and a stopped search returns its best plan. With a limit on evaluations, the sequence
of methods depends only on request and policy: equal seeds and budgets give equal answers.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain, islice
from pathlib import Path
from typing import Any, Final

import numpy as np
from numba.core import event

from go_opt.common.interpreted import interpreted_until_compiled
from go_opt.common.units import format_duration
from go_opt.env import Target, loop_roles
from go_opt.env.copies.splits import split_graph, unsplit_graph
from go_opt.env.model.analytical import has_evaluated
from go_opt.errors import InfeasibleError, InvalidInputError, PlanError
from go_opt.model.graph import Graph, with_sequences
from go_opt.model.plan import Plan, Split
from go_opt.model.start import Start
from go_opt.model.states import sized_states
from go_opt.result import ONLY, OptimizeResult, Request, Step
from go_opt.search.bounds import (
    against_bound,
    bound_over_states,
    lower_bound,
    may_keep_states,
    without_false_claim,
)
from go_opt.search.compiling.kernel_cache import start_compiling
from go_opt.search.host_states import HostStateSearch
from go_opt.search.methods import first_plans
from go_opt.search.replicas.layers import LayerWays
from go_opt.search.replicas.ways import (
    batch_factors,
    replicas_of_layers,
    replicated_way,
    start_of_replicas,
    updates_of,
)
from go_opt.search.rewriting.choices import may_rewrite, with_allowed_start
from go_opt.search.rewritten import RewritingSearch
from go_opt.search.sequences import SequenceSearch
from go_opt.search.shared.context import Context, Watch
from go_opt.search.shared.policies import find_policy
from go_opt.search.split_race import SplitSearch
from go_opt.search.splits.ways import divisible_ops
from go_opt.search.state import Search
from go_opt.search.trials import Answer, NestedTrials, WholeOpsSearch
from go_opt.solver import Bound

WHOLE_SHARE: Final = 1 / 3  # of the budget, for a training step of whole ops
MOST_INTERPRETED_OPS: Final = 5_000  # of graphs that have a plan before kernels are compiled
_UNPROVEN: Final = Bound(0.0, "none is proven before kernels are compiled")
MOST_SHARED_OPS: Final = 4096  # larger graphs would have too many parts
FIRST_STEPS: Final = 2  # of the plain plan of replicas: its kernels joined, or as they come
LAYERS_SHARE: Final = 1 / 8  # of the budget, at most, to find out how layers are shared
LAYERS_END: Final = 1 / 2  # of the budget, about, by which plans of shared layers are costed, if at all
LIKELY: Final = 1.2  # of the estimate of replicas, at most: that of a way to share layers which is costed
NEAR: Final = 1.15  # of the best plan, at most: first plans of other ways that are searched further
NEAR_SHARE: Final = 1 / 8  # of the budget, for each of them


def optimize_request(
    graph: Graph,
    target: Target,
    request: Request,
    *,
    on_step: Callable[[Step], None] = lambda step: None,
    on_improvement: Callable[[OptimizeResult], None] = lambda result: None,
    should_stop: Callable[[], bool] = lambda: False,
) -> OptimizeResult:
    """Answer ``request``. ``on_step`` receives every step; ``should_stop`` is called after each.

    Args:
      on_improvement: receives every better plan, as the answer if the search ended there.

    Raises:
      InfeasibleError: no valid plan was found; the message names op, demand and limit.
      PolicyError: the policy's file is missing, malformed or of another version.
    """
    policy = find_policy(request.policy)

    def answered(result: OptimizeResult) -> OptimizeResult:
        placed = unsplit_graph(graph, result.plan)
        return replace(
            without_false_claim(result),
            states=sized_states(placed, target.native_dtype),
            unpaired_states=graph.unpaired_states,
            unknown_ops=graph.unknown_ops,
        )

    watch = Watch(on_step, lambda result: on_improvement(answered(result)), should_stop)
    context = Context(request.time_limit_s)
    is_step, limit_s = graph.has_scope("model"), request.latency_limit_s
    replicates = _may_replicate_step(graph, target, request)
    if is_step:  # which needs the state that the step before leaves
        request = replace(request, objective="latency", max_latency_s=None)
    request = with_allowed_start(graph, target, request)
    answer: Answer = partial(_search, target=target, policy=policy, around=context)
    around: Sequence[tuple[type[NestedTrials], bool]] = (
        (SequenceSearch, graph.has_scope("sequence") and request.objective == "throughput"),
        (HostStateSearch, may_keep_states(graph, request)),
        (ReplicaSearch, replicates),
        (RewritingSearch, may_rewrite(request) and not replicates),
    )
    for trials, are_open in around:
        answer = trials.within(target, answer, context) if are_open else answer
    begun = None if is_step or replicates else _plan_at_once(graph, target, request, context, watch)
    if begun is not None:
        watch = _beyond(begun.objective_s, watch)
    try:
        stops = event.install_listener("numba:compile", _Stops(begun, should_stop))
        with context.without_kernels(), stops:
            found = answer(graph, request, watch)
    except (KeyboardInterrupt, InfeasibleError):  # no other plan was found so far
        if begun is None:
            raise
        found = begun
    if begun is not None and begun.objective_s < found.objective_s and should_stop():
        found = against_bound(begun, request, Bound(found.lower_bound_s, found.bound_reason))
    if is_step and found.metrics.makespan_s > limit_s:
        limit, least = map(format_duration, (limit_s, found.metrics.makespan_s))
        raise InfeasibleError(f"no plan was found with a step of at most {limit}; the shortest is {least}.")
    return answered(found)


def _may_replicate_step(graph: Graph, target: Target, request: Request) -> bool:
    """Whether a training step may be computed by replicas.

    Raises:
      InvalidInputError: one is asked for, of a graph that is none.
    """
    if request.objective != "step":
        return False
    if not graph.has_scope("model"):
        problem = f"model {graph.name[:80]!r} has no state of scope 'model', so it is no training step"
        raise InvalidInputError(f"objective 'step': {problem}.", field="objective")
    is_open = request.splits and request.decide == "all" and not request.constraints
    return is_open and request.policy != ONLY and target.num_chips > 1


def _search(
    graph: Graph, request: Request, watch: Watch, *, target: Target, policy: Path | None, around: Context
) -> OptimizeResult:
    """The best plan, with whole ops or with parts."""
    context = Context(request.time_limit_s, around)
    begin = partial(WholeOpsSearch, target=target, context=context, policy=policy)
    divisible = divisible_ops(graph, target, request)
    if divisible.any() and request.policy != ONLY:
        return SplitSearch(graph, target, request, context, watch, begin).answer()
    search = begin(graph, request, on_step=watch.on_step, on_improvement=watch.on_improvement)
    try:
        search.advance(watch.should_stop)
    except KeyboardInterrupt:  # a stopped search returns its best plan
        if not search.has_plan:
            raise
        watch.on_interrupt()
    return search.answer()


def _plan_at_once(
    graph: Graph, target: Target, request: Request, context: Context, watch: Watch
) -> OptimizeResult | None:
    """In the first run after an install a plan before kernels are compiled; else, or without one, None."""
    is_plain = request.start is None and not request.constraints and request.policy != ONLY
    is_small = graph.num_ops <= MOST_INTERPRETED_OPS and request.fidelity == "analytical"
    # Kernels are missing on disk, and this process has none either.
    is_first_run = start_compiling() and not has_evaluated()
    if not (is_plain and is_small and is_first_run):
        return None
    begun: OptimizeResult | None = None
    with context.compiling(), context.tolerates("plan at once"), interpreted_until_compiled():
        whole = with_sequences(graph, request.sequences or 1) if graph.has_scope("sequence") else graph
        search = _InterpretedSearch(whole, target, request, watch.on_step, context, _UNPROVEN)
        start = first_plans.Start(search)
        for proposal in chain(first_plans.greedy(start), islice(first_plans.sliced(start), 1)):
            if search.take(proposal):
                begun = replace(search.result(), history=(), evaluations=0)  # before those of the search
                watch.on_improvement(begun)
    return begun


def _beyond(reached_s: float, watch: Watch) -> Watch:
    """A watch for a caller who has a plan that reaches ``reached_s``."""

    def on_step(step: Step) -> None:
        watch.on_step(replace(step, best_s=min(step.best_s, reached_s)))

    def on_improvement(result: OptimizeResult) -> None:
        if result.objective_s < reached_s:
            watch.on_improvement(result)

    return watch._replace(on_step=on_step, on_improvement=on_improvement)


class _InterpretedSearch(Search):
    """Costs plans in a moment while kernels are not compiled: nothing is simulated."""

    def _is_quick(self, plan: Plan) -> bool:
        return False


class _Stops(event.Listener):
    """Ends a search that is to stop before the next kernel compiles, where there is a plan ``begun``."""

    def __init__(self, begun: OptimizeResult | None, should_stop: Callable[[], bool]) -> None:
        self._begun, self._should_stop = begun, should_stop
        self._thread = threading.get_ident()

    def on_start(self, event: Any) -> None:
        if self._begun is not None and threading.get_ident() == self._thread and self._should_stop():
            self._begun = None  # once: what the answer needs may compile
            raise KeyboardInterrupt

    def on_end(self, event: Any) -> None:
        """Nothing ends here."""


class ReplicaSearch(NestedTrials):
    """The best plan of a training step by whole ops, or by replicas that each have a share of the batch.

    Plans of replicas are begun with one that is made for them: the same ops on each chip. So the answer is
    never slower than plain data parallelism on as many chips, or on half as many. A replica may be several
    chips that share its layers.
    """

    def __post_init__(self) -> None:
        super().__post_init__()
        graph, target, request = self._graph, self._target, self._request
        with self._context.compiling():
            everything = np.ones(graph.num_ops, np.bool_)
            # Parts of what would be one kernel of a pattern may be other kernels.
            apart = replace(target, kernel_patterns=())
            self._least = min(
                bound_over_states(graph, target, request, everything),
                lower_bound(graph, apart, request, everything),
                key=lambda bound: bound.seconds,
            )
        self._starts: dict[tuple[Split, ...], Start | None] = {}  # of ways that chips share
        self._first_s: dict[tuple[Split, ...], float] = {}  # of the first plan of each
        self._reference_s = math.inf  # of the greedy plan of whole ops

    def answer(self) -> OptimizeResult:
        """The best plan, simulated if requested."""
        failure = None
        with self._interruptible():
            given = self._request.start and self._request.start.plan
            if given and any(not one.factor for one in given.splits):
                self._try_first(given.splits, self._request.start)
            parts = 2 ** int(math.log2(self._target.num_chips))
            begun_s = self._context.elapsed_s
            self._try_replicas(parts)
            spent_s = self._context.elapsed_s
            # A plan of shared layers takes about as long to make as two of replicas.
            if not self._first_s or 2.0 * spent_s - begun_s <= LAYERS_END * self._request.time_limit_s:
                self._try_layers(parts)
            failure = self._try((), WHOLE_SHARE)
            while parts > 2 and not self._is_over:
                parts //= 2
                self._try_replicas(parts)
            self._search_near()
            if self._best is not None and not self._is_over:
                splits = self._best.plan.splits
                self._try(splits if splits in self._starts else (), 1.0)
        if self._best is None:
            raise InfeasibleError(f"no plan was found with replicas; without, {failure}")
        return self._simulated(replace(self._best, reference_s=self._reference_s))

    def _try_replicas(self, parts: int) -> None:
        """Cost the plain plan of so many replicas, and that in which each updates a slice of the weights."""
        for shares_updates in (False, True):
            if not self._try_way(replicated_way(self._graph, parts, shares_updates=shares_updates)):
                return

    def _try_layers(self, chips: int) -> None:
        """Cost plans of fewer replicas, each of several chips that share its layers, the likely ones first.

        Some are costed in any case if replicas cannot be, such as for a batch of few samples.
        """
        graph, target = self._graph, self._target
        if not target.collectives or graph.num_ops > MOST_SHARED_OPS or self._is_over:
            return
        along = batch_factors(graph, 1)
        ways = LayerWays(graph, target, along, updates_of(graph, along))
        is_late = self._context.after(LAYERS_SHARE * self._request.time_limit_s)
        sizes = [2**i for i in range(1, int(math.log2(chips)) + 1)]
        found = [(ways.best(parts, chips // parts, is_late), chips // parts) for parts in sizes]
        ranked = sorted(((one, n) for one, n in found if one is not None), key=lambda row: row[0].seconds)
        limit_s = LIKELY * ways.replicas_s(chips) if self._first_s else math.inf
        for one, replicas in ranked:
            if one.seconds > limit_s:
                return
            with self._context.tolerates("shared layers", PlanError):
                self._try_way(replicas_of_layers(graph, one.way, replicas) if replicas > 1 else one.way)
            if is_late():
                return

    def _try_way(self, way: tuple[Split, ...]) -> bool:
        """Cost the plan that is made for a way; False if there is none, or no time."""
        try:
            split_graph(self._graph, way)
        except PlanError:  # each would have too little of the batch
            return False
        if not way or self._is_stopped:
            return False
        roles = loop_roles(self._graph, self._target.kernel_patterns)
        self._try_first(way, start_of_replicas(self._graph, way, roles))
        return True

    def _try_first(self, way: tuple[Split, ...], start: Start | None) -> None:
        """Cost the plan that is made for a way."""
        self._starts[way], begun = start, len(self._history)
        self._try(way, 0.0, start, is_first=True)
        self._first_s[way] = min((one.objective_s for one in self._history[begun:]), default=math.inf)

    def _search_near(self) -> None:
        """Search further from first plans that are not much slower than the best, on fewer chips too."""
        best = self._best
        if best is None:
            return
        near = sorted(
            (one for one in self._first_s if one != best.plan.splits), key=self._first_s.__getitem__
        )
        for way in near:
            if self._first_s[way] <= NEAR * best.objective_s and not self._is_over:
                self._try(way, NEAR_SHARE, self._starts[way])

    def _try(
        self,
        way: tuple[Split, ...],
        share: float,
        start: Start | None = None,
        *,
        is_first: bool = False,
    ) -> InfeasibleError | None:
        """Search for a share of the budget, maybe from a start that is made for the way; first that alone."""
        graph, answer, request = self._graph, self._answer, self._request_of(share)
        begins = request.start and request.start.plan
        if begins and begins.splits != way and any(not one.factor for one in begins.splits):
            request = replace(request, start=None)  # a plan of replicas is of no use to others
        if way:
            graph = split_graph(graph, way)
            answer = partial(_search, target=self._target, policy=None, around=self._context)
            request = replace(request, splits=False)
        if start is not None:
            request = replace(request, start=start)
        if is_first:
            request = replace(request, budget_s=None, max_evaluations=FIRST_STEPS, simulate=False)

        def take(found: OptimizeResult) -> None:
            if way:
                found = replace(found, plan=replace(found.plan, splits=way))
            else:
                self._reference_s = found.reference_s
            if self._best is None or found.objective_s <= self._best.objective_s:
                self._keep(found)

        try:
            take(answer(graph, request, Watch(self._take_step, take, self._must_stop, self._stop)))
        except InfeasibleError as error:
            return error
        return None

    def _bound(self) -> Bound:
        """Over all ways to split the step."""
        return self._least
