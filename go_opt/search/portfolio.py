"""Runs the methods of :mod:`go_opt.search.table`: which method is next, and for how long."""

from __future__ import annotations

import time
from collections.abc import Generator, Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import Final

from go_opt.env import Target
from go_opt.result import Request
from go_opt.search.compiling.kernel_cache import are_compiled
from go_opt.search.methods.events import Event, Proposal, SearchView, has_static_constraints, waiting_until
from go_opt.search.methods.first_plans import Start
from go_opt.search.methods.guesses import policy_alone, until_advised
from go_opt.search.shared.policies import ask_policy
from go_opt.search.table import is_along_ring, is_for_latency, serving

FAVOUR: Final = 3.0  # turns of the finder of the best plan, for each turn of another method
NOTABLY: Final = 0.999  # a finder improves the objective to this share: tiny gains do not count
HEAD_START: Final = 0.2  # share of the time limit for guesses first; on small graphs they end much earlier


def policy_takes_part(target: Target, request: Request) -> bool:
    """Whether a policy has anything to decide.

    For latency it takes part only if all placements are legal: its orders are placed by earliest finish.
    """
    is_free = request.objective == "throughput" or not has_static_constraints(target)
    return request.decide == "all" and is_free


def portfolio_events(
    search: SearchView, policy: Path | None = None, *, is_alone: bool = False
) -> Generator[Event, None, None]:
    """Yields the events of all methods, the surest first, until no method has any left.

    Args:
      policy: the file of the policy that takes part.
      is_alone: whether only the policy takes part.
    """
    if policy is not None and is_alone:
        yield from policy_alone(search, ask_policy(policy, search.graph, search.target))
        return
    start = Start(search)
    for method in serving(search, "first"):
        yield from method.run(start)
    # The policy starts only now, so that it cannot delay the first plan.
    start.advice = None if policy is None else ask_policy(policy, search.graph, search.target)
    following = chain.from_iterable(method.run(start) for method in serving(search, "next"))
    given = search.request.start
    # Where the start is the best of what these found for a graph like this one, they have a turn as others.
    if given is None or not given.has_first:
        yield from following
    if search.request.max_evaluations is not None:
        # With a limit on evaluations, turns must not depend on how long the policy or the
        # compilation of kernels takes.
        if start.advice is not None:
            yield from until_advised(search, start.advice)
        if is_along_ring(search) or is_for_latency(search):
            yield from waiting_until(are_compiled)
    turns = [method.run(start) for method in serving(search, "in turn")]
    head_start = HEAD_START if search.request.decide == "all" else 0.0
    yield from _in_turn(search, [*turns, following], head_start)


def _in_turn(search: SearchView, turns: Sequence[Iterator[Event]], head_start: float) -> Iterator[Event]:
    """Yields one event at a time, of the method that has used least, until no method has any.

    With a limit on evaluations, each event uses 1; otherwise it uses its seconds, and the first
    method runs alone for the share ``head_start`` of the time limit. The finder of the best plan is
    likely to find better ones, so its events count a third (1 / ``FAVOUR``).
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
            # The evaluation of a proposal counts as its method's time.
            yield (event := next(turns[turn]))
        except StopIteration:
            left.remove(turn)
        if search.best_s < before_s * NOTABLY:  # without a proposal here, the background thread found it
            finder = turn if isinstance(event, Proposal) else -1
        spent = 1.0 if is_counted else time.monotonic() - started_s
        is_favoured = turn == finder and used[turn] >= 0.0  # a head start is not extended
        used[turn] += spent / FAVOUR if is_favoured else spent
