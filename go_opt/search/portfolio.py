"""Runs the methods of :mod:`go_opt.search.table`: who comes next, and for how long."""

from __future__ import annotations

import time
from collections.abc import Generator, Iterator, Sequence
from pathlib import Path
from typing import Final

from go_opt.env import Target
from go_opt.model.graph import Graph
from go_opt.result import Request
from go_opt.search.compiling.kernel_cache import are_compiled
from go_opt.search.methods.background import has_core_to_spare, in_background
from go_opt.search.methods.events import Event, Proposal, SearchView, has_static_constraints, waiting_until
from go_opt.search.methods.first_plans import Start
from go_opt.search.methods.guesses import policy_alone, until_advised
from go_opt.search.policies import ask_policy
from go_opt.search.table import is_along_ring, is_for_latency, serving

# What the policy needs to get a word in.
LEAST_EVALUATIONS: Final = 16
LEAST_BUDGET_S: Final = 2.0
# Its pass takes 50 to 75 us an op: for so many ops a second of budget, 3 % of the time of two cores.
OPS_PER_S: Final = 1_000
LONGEST_S: Final = 60.0  # longer budgets, and those in evaluations alone, count as this
FAVOUR: Final = 3.0  # turns of the method that found the best plan so far, for one of each other
NOTABLY: Final = 0.999  # better, to be the finder: many small steps are no reason to go on
HEAD_START: Final = 0.2  # of the time, for guesses: on small graphs they lose patience long before


def policy_takes_part(graph: Graph, target: Target, request: Request) -> bool:
    """Whether a policy has something to decide, and the budget leaves room for it.

    Latency has room for it only where placements are free: orders are then placed by earliest finish.
    """
    return (
        request.decide == "all"
        and (request.objective == "throughput" or not has_static_constraints(target))
        and graph.num_ops <= OPS_PER_S * min(request.time_limit_s, LONGEST_S)
        and (request.max_evaluations is None or request.max_evaluations >= LEAST_EVALUATIONS)
        and request.time_limit_s >= LEAST_BUDGET_S
    )


def portfolio_events(
    search: SearchView, policy: Path | None = None, *, is_alone: bool = False
) -> Generator[Event, None, None]:
    """Events from the surest method to the most speculative; ends when nothing is left to try.

    Args:
      policy: the file of the policy that takes part.
      is_alone: whether no other method does.
    """
    if policy is not None and is_alone:
        yield from policy_alone(search, ask_policy(policy, search.graph, search.target))
        return
    start = Start(search)
    for method in serving(search, "first"):
        yield from method.events(start)
    # From here on the first plan cannot be delayed any more.
    start.advice = None if policy is None else ask_policy(policy, search.graph, search.target)
    background = [method.events(start) for method in serving(search, "background")]
    if background and has_core_to_spare(search):
        (method_events,) = background
        yield from in_background(search, _others(start, []), method_events)
    else:
        yield from _others(start, background)


def _others(start: Start, last: Sequence[Iterator[Event]]) -> Iterator[Event]:
    """What comes after the first plans: methods one after the other, then in turn with those of ``last``."""
    search = start.search
    for method in serving(search, "next"):
        yield from method.events(start)
    if search.request.max_evaluations is not None:
        # Counted in evaluations, whose turn it is may depend neither on how long the policy takes
        # nor on how long kernels take to compile.
        if start.advice is not None:
            yield from until_advised(search, start.advice)
        if is_along_ring(search) or is_for_latency(search):
            yield from waiting_until(are_compiled)
    turns = [method.events(start) for method in serving(search, "in turn")]
    head_start = HEAD_START if search.request.decide == "all" else 0.0
    yield from _in_turn(search, [*turns, *last], head_start)


def _in_turn(search: SearchView, turns: Sequence[Iterator[Event]], head_start: float) -> Iterator[Event]:
    """An event of each in turn, as long as any has one.

    Counted in evaluations, one of each; in time, whichever has had the least of it, the first
    before all others for the part ``head_start`` of the time. Who found the
    best plan so far goes on finding, most often: what it uses counts as less.
    """
    is_counted = search.request.max_evaluations is not None
    used = [0.0] * len(turns)
    if head_start and not is_counted:
        used[0] -= head_start * search.request.time_limit_s
    left = list(range(len(turns)))
    finder = -1
    while left:
        turn = min(left, key=used.__getitem__)
        started_s, before_s = time.monotonic(), search.best_s
        event: Event | None = None
        try:
            # The evaluation of what is proposed is its method's as well.
            yield (event := next(turns[turn]))
        except StopIteration:
            left.remove(turn)
        if search.best_s < before_s * NOTABLY:  # if not by its proposal, then by one of the background
            finder = turn if isinstance(event, Proposal) else -1
        spent = 1.0 if is_counted else time.monotonic() - started_s
        is_favoured = turn == finder and used[turn] >= 0.0  # a head start is used up as it is
        used[turn] += spent / FAVOUR if is_favoured else spent
