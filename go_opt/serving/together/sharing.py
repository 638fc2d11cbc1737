"""Several models on one package at once, against taking turns on it.

In turns, each model has the whole package and its own best plan, for as many units of the rates as a turn
has. Between turns the host sends the weights that the package cannot keep beside those of the other models.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from go_opt.common.units import format_bytes, format_duration
from go_opt.env import Target
from go_opt.frontends.union.names import Share
from go_opt.model.graph import Graph
from go_opt.result import OptimizeResult, Request
from go_opt.search.optimizer import optimize_request


@dataclass(frozen=True, eq=False)
class Turns:
    """The plans of the models alone, and what the host sends in each round of turns."""

    shares: tuple[Share, ...]
    plans: tuple[OptimizeResult, ...]
    sent_bytes: int  # of weights
    sent_s: float

    @property
    def endless_s(self) -> float:
        """Seconds of a unit in turns that never end."""
        plans = zip(self.shares, self.plans, strict=True)
        return sum(copies * taken_s(result) for (copies, _), result in plans)


@dataclass(frozen=True, eq=False)
class Sharing:
    """The plan of all models at once, and those of turns.

    A *unit* is as many inferences of each model as the rates say.
    """

    shares: tuple[Share, ...]
    at_once: OptimizeResult
    turns: tuple[Turns, ...]  # the first with all that plans may do; then without copies of stages

    @property
    def unit_s(self) -> float:
        """Seconds of a unit with all models at once."""
        return taken_s(self.at_once)

    def turns_s(self, units: float) -> float:
        """Seconds of a unit in turns of so many, in the way that is the shorter for it."""
        return min(one.endless_s + one.sent_s / units for one in self.turns)

    @property
    def break_even(self) -> float:
        """Units of a turn from which turns are faster; infinite: never."""
        found = [
            one.sent_s / (self.unit_s - one.endless_s) for one in self.turns if one.endless_s < self.unit_s
        ]
        return min(found, default=math.inf)


def share_package(
    shares: Sequence[Share],
    at_once: OptimizeResult,
    load: Callable[[str], Graph],
    target: Target,
    request: Request,
    should_stop: Callable[[], bool] = lambda: False,
) -> Sharing:
    """The comparison for a plan of the union; plans each model alone, with the budget of ``request`` each.

    Where weights are sent between turns, also without replicated stages, which keep weights more than once.
    """
    graphs = [load(model) for _, model in shares]

    def turns(asked: Request) -> Turns:
        plans = tuple(optimize_request(graph, target, asked, should_stop=should_stop) for graph in graphs)
        sent = len(plans) * excess_bytes(plans, target)
        return Turns(tuple(shares), plans, sent, sent / target.host_in_bytes_per_s)

    found = [turns(request)]
    if found[0].sent_bytes and request.replication:
        found.append(turns(replace(request, replication=False)))
    return Sharing(tuple(shares), at_once, tuple(found))


def excess_bytes(plans: Sequence[OptimizeResult], target: Target) -> int:
    """Weights of all plans and the most activations of one, above the memory of the package.

    No fewer are sent in a turn, wherever each plan puts its own.
    """
    weights = sum(int(plan.metrics.weight_bytes.sum()) for plan in plans)
    activations = max(int(plan.metrics.peak_bytes.sum()) for plan in plans)
    return max(0, weights + activations - int(target.chip_sram_bytes.sum()))


def taken_s(result: OptimizeResult) -> float:
    """The interval, simulated if that is longer."""
    return max(result.metrics.interval_s, result.simulated_interval_s or 0.0)


def sharing_to_dict(sharing: Sharing) -> dict[str, Any]:
    """What ``--json`` has beside the plan of the union."""
    return {
        "models": [
            {
                "model": model,
                "rate": copies,
                "interval_s": sharing.unit_s / copies,
                "alone_interval_s": taken_s(result),
            }
            for (copies, model), result in zip(sharing.shares, sharing.turns[0].plans, strict=True)
        ],
        "turns": {
            "sent_bytes": sharing.turns[-1].sent_bytes,
            "unit_s": {str(units): sharing.turns_s(units) for units in (1, 10, 100)},
            "endless_unit_s": sharing.turns_s(math.inf),
        },
    }


def sharing_lines(sharing: Sharing) -> Iterator[str]:
    for (copies, model), result in zip(sharing.shares, sharing.turns[0].plans, strict=True):
        own = format_duration(sharing.unit_s / copies)
        yield f"model       {own} per inference of {model}, {format_duration(taken_s(result))} alone"
    sent = f"{format_bytes(sharing.turns[-1].sent_bytes)} of weights sent between turns"
    yield f"turns       {sharing.turns_s(1) / sharing.unit_s:.2f}x as long one by one, {sent}"
    yield f"            {sharing.turns_s(math.inf) / sharing.unit_s:.2f}x in turns that never end"
