"""Runs a search: takes the events of the portfolio and keeps the best verified plan.

The search is anytime: the greedy and the sliced plan are ready within milliseconds, later events
only improve on them, and a stopped search returns its best plan. With a limit on evaluations, the sequence
of methods depends only on request and policy: equal seeds and budgets give equal answers.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

from go_opt.common.units import format_duration
from go_opt.env import Target, cost_tables
from go_opt.env.copies.splits import unsplit_graph
from go_opt.errors import InfeasibleError
from go_opt.model.graph import Graph
from go_opt.model.states import sized_states
from go_opt.result import ONLY, OptimizeResult, Request, Step
from go_opt.search.bounds import may_keep_states, without_false_claim
from go_opt.search.compiling.warm_up import bound_families, load
from go_opt.search.host_states import HostStateSearch
from go_opt.search.sequences import Answer, SequenceSearch
from go_opt.search.shared.context import Context
from go_opt.search.shared.policies import find_policy
from go_opt.search.split_race import search_with_splits
from go_opt.search.splits.ways import divisible_ops
from go_opt.search.whole_ops import Watch, WholeOpsSearch


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
    if is_step:  # which needs the state that the step before leaves
        request = replace(request, objective="latency", max_latency_s=None)
    answer: Answer = partial(_search, target=target, policy=policy, around=context)
    if graph.has_scope("sequence") and request.objective == "throughput":
        answer = partial(_search_numbers, target=target, answer=answer, around=context)
    if may_keep_states(graph, request):
        found = HostStateSearch(graph, target, request, context, answer, watch).answer()
    else:
        found = answer(graph, request, watch)
    if is_step and found.metrics.makespan_s > limit_s:
        limit, least = map(format_duration, (limit_s, found.metrics.makespan_s))
        raise InfeasibleError(f"no plan was found with a step of at most {limit}; the shortest is {least}.")
    return answered(found)


def _search_numbers(
    graph: Graph, request: Request, watch: Watch, *, target: Target, answer: Answer, around: Context
) -> OptimizeResult:
    """The best plan for the number of sequences of the request, or for the best number."""
    context = Context(request.time_limit_s, around)
    return SequenceSearch(graph, target, request, context, answer, watch).answer()


def _search(
    graph: Graph, request: Request, watch: Watch, *, target: Target, policy: Path | None, around: Context
) -> OptimizeResult:
    """The best plan, with whole ops or with parts."""
    context = Context(request.time_limit_s, around)
    begin = partial(WholeOpsSearch, target=target, context=context, policy=policy)
    with context.excludes_compilation():
        if any(kind.kernels for kind in target.modelled.kinds):
            with context.compiling():
                cost_tables(graph, target)  # the forms of kernels on GPUs are compiled
        if request.objective == "latency" or request.max_latency_s is not None:
            with context.compiling():
                for name in (kernels := bound_families()):
                    load(name, kernels)
        divisible = divisible_ops(graph, target, request)
        if divisible.any() and request.policy != ONLY:
            return search_with_splits(graph, target, request, divisible, context, begin, watch)
        search = begin(graph, request, on_step=watch.on_step, on_improvement=watch.on_improvement)
        try:
            search.advance(watch.should_stop)
        except KeyboardInterrupt:  # a stopped search returns its best plan
            if not search.has_plan:
                raise
            watch.on_interrupt()
        return search.answer()
