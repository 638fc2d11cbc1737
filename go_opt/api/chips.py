"""How many chips a model needs: the doors of ``go-opt chips`` and ``optimize --fewest-chips``."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from go_opt.api import chip_counts as counting
from go_opt.api.chip_counts import ChipCount, FewestChips
from go_opt.env import Target, load_target
from go_opt.errors import InvalidInputError
from go_opt.model.graph import Graph
from go_opt.result import ONLY, OptimizeResult, Request, Step
from go_opt.search.optimizer import optimize_request
from go_opt.search.policies import find_policy


def fewest_chips(
    graph: Graph,
    target: Target | str | Path = "mcm-6x6",
    request: Request | None = None,
    *,
    rate_per_s: float | None = None,
    policy: str | Path | None = "default",
    on_count: Callable[[ChipCount], None] = lambda found: None,
    on_step: Callable[[Step], None] = lambda step: None,
    should_stop: Callable[[], bool] = lambda: False,
) -> FewestChips:
    """The fewest chips with which a plan meets ``rate_per_s`` and the latency limit of ``request``.

    Args:
      graph: of :func:`go_opt.load`.
      request: what is asked of each search; its budget is for each number of chips that is tried.
      rate_per_s: inferences a second, predicted and simulated; None: only the latency is limited.
      on_count: sees each number of chips that was searched.
      should_stop: asked after every evaluation; a number of chips whose search is stopped counts with
        the plan that it had.

    Raises:
      InfeasibleError: all chips together do not reach it.
      InvalidInputError: neither a rate nor a latency is asked, or not of objective throughput.
      TargetError: the target cannot be divided.
    """
    asked = request or Request()
    interval_s = interval_asked_s(asked, rate_per_s)
    solve = _solver(graph, policy, on_step, should_stop)
    return counting.fewest_chips(graph, _as_target(target), asked, interval_s, solve, on_count)


def interval_asked_s(request: Request, rate_per_s: float | None) -> float:
    """The longest interval of :func:`fewest_chips`; infinite where only the latency is limited.

    Raises:
      InvalidInputError: neither a rate nor a latency is asked, or the rate is out of range.
    """
    if rate_per_s is None and request.max_latency_s is None:
        raise InvalidInputError("the fewest chips for what: give a rate or a latency.", field="rate_per_s")
    if rate_per_s is not None and not (math.isfinite(rate_per_s) and rate_per_s > 0):
        raise InvalidInputError(f"rate_per_s must be above zero, not {rate_per_s}.", field="rate_per_s")
    return math.inf if rate_per_s is None else 1.0 / rate_per_s


def chip_counts(
    graph: Graph,
    target: Target | str | Path = "mcm-6x6",
    request: Request | None = None,
    *,
    counts: Sequence[int] | None = None,
    policy: str | Path | None = "default",
    on_step: Callable[[Step], None] = lambda step: None,
    should_stop: Callable[[], bool] = lambda: False,
) -> Iterator[ChipCount]:
    """What each number of chips reaches, as soon as it is known; by default 1, 2, 4, … and all.

    Args and errors as :func:`fewest_chips`.
    """
    on = _as_target(target)
    numbers = counting.default_counts(on) if counts is None else counts
    solve = _solver(graph, policy, on_step, should_stop)
    return counting.chip_counts(graph, on, request or Request(), numbers, solve)


def _solver(
    graph: Graph,
    policy: str | Path | None,
    on_step: Callable[[Step], None],
    should_stop: Callable[[], bool],
) -> counting.Solve:
    file = find_policy(policy)

    def solve(target: Target, request: Request) -> OptimizeResult:
        return optimize_request(
            graph,
            target,
            request,
            policy=file,
            policy_alone=policy == ONLY,
            on_step=on_step,
            should_stop=should_stop,
        )

    return solve


def _as_target(target: Target | str | Path) -> Target:
    return target if isinstance(target, Target) else load_target(target)
