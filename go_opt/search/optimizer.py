"""Runs a search: takes the events of the portfolio and keeps the best verified plan.

The search is anytime: the greedy and the sliced plan are ready within milliseconds, later events
only improve on them, and a stopped search returns its best plan. With a limit on evaluations, the sequence
of methods depends only on request and policy: equal seeds and budgets give equal answers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing, nullcontext
from functools import partial
from itertools import islice
from pathlib import Path

from go_opt.env import Target
from go_opt.errors import InvalidInputError
from go_opt.model.graph import Graph
from go_opt.result import OptimizeResult, Request, Step
from go_opt.search.compiling.kernel_cache import start_compiling
from go_opt.search.compiling.warm_up import FIRST, are_loaded, common_families, load
from go_opt.search.limits import refuse_unreachable
from go_opt.search.methods.copies import COPIED, copies
from go_opt.search.methods.events import Event
from go_opt.search.portfolio import policy_takes_part, portfolio_events
from go_opt.search.rehearsal import rehearsal
from go_opt.search.simulated_claim import is_simulated
from go_opt.search.split_race import search_with_splits
from go_opt.search.splits.ways import divisible_ops
from go_opt.search.state import Search


def optimize_request(
    graph: Graph,
    target: Target,
    request: Request,
    *,
    policy: Path | None = None,
    policy_alone: bool = False,
    on_step: Callable[[Step], None] = lambda step: None,
    on_improvement: Callable[[OptimizeResult], None] = lambda result: None,
    should_stop: Callable[[], bool] = lambda: False,
) -> OptimizeResult:
    """Answer ``request``. ``on_step`` receives every step; ``should_stop`` is called after each.

    Args:
      policy: the file of the policy that takes part.
      policy_alone: whether only the policy proposes plans.
      on_improvement: receives every better plan, as the answer if the search ended there.

    Raises:
      InfeasibleError: no valid plan was found; the message names op, demand and limit.
      InvalidInputError: ``policy_alone`` without ``decide="all"``.
      PolicyError: the file is malformed.
    """
    if policy_alone and request.decide != "all":
        raise InvalidInputError("policy 'only' decides all, so decide must be 'all'.", field="decide")
    solve = partial(_search_whole_ops, target=target, policy=policy, policy_alone=policy_alone)
    divisible = divisible_ops(graph, target, request)
    if divisible.any() and not policy_alone:
        solve = partial(search_with_splits, target=target, divisible=divisible, solve=solve)
    return solve(
        graph, request=request, on_step=on_step, on_improvement=on_improvement, should_stop=should_stop
    )


def _search_whole_ops(
    graph: Graph,
    request: Request,
    *,
    target: Target,
    policy: Path | None,
    policy_alone: bool,
    on_step: Callable[[Step], None],
    on_improvement: Callable[[OptimizeResult], None],
    should_stop: Callable[[], bool],
) -> OptimizeResult:
    refuse_unreachable(graph, target, request)
    if not (policy_alone or policy_takes_part(target, request)):
        policy = None
    if request.objective == "throughput" and target.goes_forward:
        start_compiling()
    checks = is_simulated(target, request)
    may_wait = request.objective == "throughput" and not target.modelled.weight_prefetch
    simulates = checks or may_wait or request.fidelity != "analytical"
    special = rehearsal(target, request)
    kernels = common_families(simulator=simulates, policy=policy is not None) | special
    for name in kernels if special else islice(kernels, FIRST):
        load(name, kernels)
    search = Search(graph, target, request, on_step)
    is_stopped = False  # the answer of a stopped search is not simulated

    def run(events: Iterator[Event]) -> bool:
        """Take the events; True if the search is over."""
        nonlocal is_stopped
        for event in events:
            if search.take(event):
                on_improvement(search.result())
            if search.is_done() or (is_stopped := should_stop()):
                return True
        return False

    try:
        # Closing the events ends the background thread.
        with closing(portfolio_events(search, policy, is_alone=policy_alone)) as events:
            # The first plan needs few kernels. The others may have to be compiled: they load after the
            # first plan, with the clock stopped.
            with nullcontext() if are_loaded(kernels) else search.clock_stopped():
                is_over = run(islice(events, 1))  # the greedy plan
                if not is_over:
                    load("slicing", kernels)
                    is_over = run(islice(events, 1))
                # If the search is over, only the simulator can still be needed.
                for name in kernels.keys() & {"simulator"} if is_over else kernels:
                    if is_stopped := is_stopped or should_stop():
                        break
                    load(name, kernels)
            search.is_exhausted = not (is_over or is_stopped or run(events))
    except KeyboardInterrupt:
        # A stopped search returns its best plan, if it has one.
        if search.best is None:
            raise
        is_stopped = True
    if search.best is not None and not (is_stopped or policy_alone):
        _try_fewer_copies(search, search.best)
    return search.answer(checks=checks and not is_stopped)


def _try_fewer_copies(search: Search, best: OptimizeResult) -> None:
    """Try the best plan on fewer chips: one proven optimal early may use more than it needs."""
    for proposal in copies(search, best.method.removesuffix(COPIED), best.plan.order, best.plan.fusion_group):
        if search.is_done_with_evaluations:
            return
        search.take(proposal)
