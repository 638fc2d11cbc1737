"""Runs a search: takes the events of the portfolio and keeps the best verified plan.

The search is anytime: the greedy and the sliced plan are ready within milliseconds, later events
only improve on them, and a stopped search returns its best plan. With a limit on evaluations, the sequence
of methods depends only on request and policy: equal seeds and budgets give equal answers.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from go_opt.env import Target
from go_opt.model.graph import Graph
from go_opt.result import ONLY, OptimizeResult, Request, Step
from go_opt.search.bounds import without_false_claim
from go_opt.search.compiling.warm_up import bound_families, load
from go_opt.search.policies import find_policy
from go_opt.search.shared.context import Context
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

    def show(result: OptimizeResult) -> None:
        on_improvement(without_false_claim(result))

    begin = partial(
        WholeOpsSearch,
        target=target,
        context=(context := Context(request.time_limit_s)),
        policy=policy,
    )
    with context.excludes_compilation():
        if request.objective == "latency" or request.max_latency_s is not None:
            with context.compiling():
                for name in (kernels := bound_families()):
                    load(name, kernels)
        divisible = divisible_ops(graph, target, request)
        if divisible.any() and request.policy != ONLY:
            watch = Watch(on_step, show, should_stop)
            answer = search_with_splits(graph, target, request, divisible, context, begin, watch)
            return without_false_claim(answer)
        search = begin(graph, request, on_step=on_step, on_improvement=show)
        try:
            search.advance(should_stop)
        except KeyboardInterrupt:  # a stopped search returns its best plan
            if not search.has_plan:
                raise
        return without_false_claim(search.answer())
