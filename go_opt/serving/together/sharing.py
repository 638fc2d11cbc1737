"""Several models on one package at once, against taking turns on it.

In turns, each model has the whole package and its own best plan, for as many units of the rates as a turn
has. Between turns the host sends the weights that the package cannot keep beside those of the other models:
at the kindest as if they lay evenly, while pipelines neither empty nor fill; as they are *built*, to each
chip what it lacks as soon as it is free, simulated. Who asks within the turns of others waits for them, so
turns are also compared as short as plans at once are quick. The answer is the faster of both: all at once, or
built turns that answer as quickly.

Rounds of built turns are a lower bound of what a package does: a chip begins a turn when its last inference
of the turn before has ended, and with as many of its weights loaded as its first inference needs at its end.
The weights that it lacks overwrite others from the beginning of its last inference on. One link from the host
loads them, beside what the running model takes, for the chip that needs them first; with such due dates no
other succession ends earlier. A chip may be an inference ahead of the next one for each border between chips,
not more.
"""

from __future__ import annotations

import json
import math
import re
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np

from go_opt.common.arrays import FloatArray, LongArray
from go_opt.common.files import write_atomically
from go_opt.common.outputs import PLAN
from go_opt.common.units import format_bytes, format_duration
from go_opt.costs.measured_costs import frozen_columns
from go_opt.env import Target
from go_opt.env.copies.splits import planned_graph
from go_opt.frontends.union.graphs import Share, prefix_of
from go_opt.model.codecs.plan_json import plan_to_dict
from go_opt.model.graph import Graph
from go_opt.model.plan import Plan
from go_opt.result import OptimizeResult, Request
from go_opt.result_json import plan_facts
from go_opt.serving.rate.planning import SearchOf, search_here

_MOST_UNITS: Final = 2**20  # of a turn
_ROUNDS: Final = 6  # the last is measured


@dataclass(frozen=True, eq=False)
class Turns:
    """The plans of the models alone, and what the host sends in each round of turns."""

    shares: tuple[Share, ...]
    plans: tuple[OptimizeResult, ...]
    sent_bytes: int  # of weights
    sent_s: float  # between the turns of a round

    @property
    def endless_s(self) -> float:
        """Seconds of a unit in turns that never end."""
        plans = zip(self.shares, self.plans, strict=True)
        return sum(copies * result.longer_interval_s for (copies, _), result in plans)

    def unit_s(self, units: float) -> float:
        """Seconds of a unit in turns of so many."""
        return self.endless_s + self.sent_s / units

    def answered_s(self, units: float) -> float:
        """The longest from arrival to answer in turns of so many, with as many arrivals as they take.

        An inference that comes when the turn of its model ends waits for the turns of the others, and for
        what is sent; then it is the first.
        """
        round_s, plans = units * self.unit_s(units), zip(self.shares, self.plans, strict=True)
        return max(
            round_s - units * copies * one.longer_interval_s + one.metrics.latency_s
            for (copies, _), one in plans
        )

    def drained(self) -> Turns:
        """The same if each pipeline is empty before the next is filled."""
        idle_s = sum(max(0.0, one.metrics.latency_s - one.longer_interval_s) for one in self.plans)
        return replace(self, sent_s=self.sent_s + idle_s)

    def units_within(self, limit_s: float) -> int:
        """The most units of a turn whose inferences are answered within the limit; 0 if none are."""
        most, limit_s = 1, limit_s * (1.0 + 1e-9)
        while most < _MOST_UNITS and self.answered_s(most) <= limit_s:
            most *= 2
        return bisect_right(range(1, most + 1), limit_s, key=self.answered_s)


@dataclass(frozen=True, eq=False)
class BuiltTurns(Turns):
    """Turns as their plans lie on chips, which load the weights of the next as they become free."""

    loads_s: FloatArray  # [D] before each turn

    @staticmethod
    def of(shares: tuple[Share, ...], plans: tuple[OptimizeResult, ...], target: Target) -> BuiltTurns:
        """What is sent is that beside the running models; ``sent_s`` is of turns of ten."""
        sent = excess_bytes(plans, target)
        loads_s = sent / target.host_in_bytes_per_s
        made = BuiltTurns(shares, plans, len(plans) * int(sent.sum()), 0.0, loads_s)
        return replace(made, sent_s=max(0.0, 10 * (made.unit_s(10) - made.endless_s)))

    def unit_s(self, units: float) -> float:
        """Seconds of a unit in turns of so many, simulated."""
        if math.isinf(units):
            return self.endless_s
        parts = [
            Part(
                one.metrics.compute_s,
                one.longer_interval_s,
                one.metrics.latency_s,
                int(units) * copies,
                float(one.metrics.link_s[-2]) / one.longer_interval_s,
            )
            for (copies, _), one in zip(self.shares, self.plans, strict=True)
        ]
        return round_s(parts, self.loads_s) / units


class Way(NamedTuple):
    """How models share a package, and the seconds of a unit."""

    units: int  # of a turn; 0: all at once
    unit_s: float
    turns: Turns | None = None


@dataclass(frozen=True, eq=False)
class Sharing:
    """The plan of all models at once, and those of turns.

    A *unit* is as many inferences of each model as the rates say.
    """

    shares: tuple[Share, ...]
    at_once: OptimizeResult
    turns: tuple[Turns, ...]  # the first with all that plans may do; then without copies of stages
    built: tuple[Turns, ...] = ()  # the same as their plans lie on chips, simulated
    graphs: tuple[Graph, ...] = ()  # of the models

    @property
    def unit_s(self) -> float:
        """Seconds of a unit with all models at once."""
        return self.at_once.longer_interval_s

    def turns_s(self, units: float) -> float:
        """Seconds of a unit in turns of so many, in the way that is the shorter for it."""
        return min(one.unit_s(units) for one in self.turns)

    @property
    def answered_s(self) -> float:
        """The longest from arrival to answer with all models at once: a unit may just have left."""
        return self.unit_s + self.at_once.metrics.latency_s

    def drained(self) -> Sharing:
        """With turns that begin when the pipeline of the one before is empty."""
        return replace(self, turns=tuple(one.drained() for one in self.turns))

    def turns_as_quick(self) -> Way:
        """The longest turns that answer as quickly as all at once; none if the shortest answer later."""
        found = [(one, one.units_within(self.answered_s)) for one in self.turns]
        ways = [Way(units, one.unit_s(units), one) for one, units in found if units]
        return min(ways, key=lambda way: way.unit_s, default=Way(0, math.inf))

    @property
    def best(self) -> Way:
        """The faster of all at once, and built turns that answer as quickly."""
        way = replace(self, turns=self.built).turns_as_quick()
        return way if way.unit_s < self.unit_s else Way(0, self.unit_s)

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
    union: Graph,
    load: Callable[[str], Graph],
    target: Target,
    request: Request,
    should_stop: Callable[[], bool] = lambda: False,
    search: SearchOf | None = None,
) -> Sharing:
    """The comparison for a plan of the union; plans each model alone, with the budget of ``request`` each.

    Where weights are sent between turns, also without replicated stages, which keep weights more than once.

    Args:
      union: whose measured seconds hold for the models alone, too.
    """
    graphs = [costed_alone(load(model), union, number) for number, (_, model) in enumerate(shares, 1)]

    find = search or search_here(should_stop)

    def turns(plans: tuple[OptimizeResult, ...], sent: int) -> Turns:
        return Turns(tuple(shares), plans, sent, sent / target.host_in_bytes_per_s)

    planned = [tuple(find(graph, target, request) for graph in graphs)]
    if round_bytes(planned[0], target) and request.replication:
        apart = replace(request, replication=False)
        planned.append(tuple(find(graph, target, apart) for graph in graphs))
    kind = tuple(turns(plans, round_bytes(plans, target)) for plans in planned)
    built = tuple(BuiltTurns.of(tuple(shares), plans, target) for plans in planned)
    return Sharing(tuple(shares), at_once, kind, built, tuple(graphs))


def costed_alone(model: Graph, union: Graph, number: int) -> Graph:
    """The graph of a model with the measured seconds that its first copy has in a union."""
    own = np.array([name.startswith(prefix_of(number, 0)) for name in union.op_names])
    measured = {kind: row[own] for kind, row in union.measured_s.items() if not np.isnan(row[own]).all()}
    excluded = {kind: row[own] for kind, row in union.excluded.items() if row[own].any()}
    return replace(model, measured_s=frozen_columns(measured), excluded=frozen_columns(excluded))


def round_bytes(plans: Sequence[OptimizeResult], target: Target) -> int:
    """Weights that are sent in a round of turns; no fewer are, wherever each plan puts its own.

    Weights of all plans and the most activations of one are so much above the memory of the package. Each of
    n models leaves them out at best when its turn is the farthest, which is once in n - 1 turns (Belady).
    """
    weights = sum(int(plan.metrics.weight_bytes.sum()) for plan in plans)
    activations = max(int(plan.metrics.peak_bytes.sum()) for plan in plans)
    excess = max(0, weights + activations - int(target.chip_sram_bytes.sum()))
    return len(plans) * excess // max(len(plans) - 1, 1)


def excess_bytes(plans: Sequence[OptimizeResult], target: Target) -> LongArray:
    """``[D]``: the same before each turn, of the plans as they are: what does not fit into each chip."""
    weights = np.sum([plan.metrics.weight_bytes for plan in plans], axis=0)
    activations = np.max([plan.metrics.peak_bytes for plan in plans], axis=0)
    excess = np.maximum(weights + activations - target.chip_sram_bytes, 0)
    found: LongArray = excess // max(len(plans) - 1, 1)
    return found


class Part(NamedTuple):
    """A model in its turn. Axis ``D``: chips."""

    compute_s: FloatArray  # [D] of an inference
    interval_s: float
    latency_s: float
    inferences: int  # of a turn
    host_share: float  # of the host's link into the package, that it takes itself

    @property
    def first_s(self) -> FloatArray:
        """``[D]``: when an inference comes to each chip: the latency, in proportion to the work before it."""
        before_s = np.cumsum(self.compute_s) - self.compute_s
        first_s: FloatArray = before_s * (self.latency_s / max(self.compute_s.sum(), self.latency_s, 1e-30))
        return first_s


def round_s(parts: Sequence[Part], loads_s: FloatArray) -> float:
    """Seconds of a round of turns, once rounds follow each other.

    Args:
      loads_s: ``[D]`` that the weights of a chip take before each turn, with the host's link for them alone.
    """
    end_s = np.zeros(loads_s.size)
    free_s = end_s
    until_s = share = sent_s = ended_s = taken_s = 0.0
    borders = np.arange(loads_s.size)[::-1]
    for number in range(_ROUNDS * len(parts)):
        part = parts[number % len(parts)]
        due_s = part.first_s + part.compute_s
        loaded_s = loaded(free_s, due_s, loads_s, sent_s, until_s, share)
        sent_s = max(sent_s, loaded_s[loads_s > 0.0].max(initial=0.0))
        ready_s = np.maximum(end_s, loaded_s - part.compute_s)
        begin_s = np.maximum.accumulate(ready_s - part.first_s)
        start_s = part.first_s + np.maximum(begin_s, begin_s[-1] - borders * part.interval_s)
        all_but_one_s = (part.inferences - 1) * part.interval_s
        free_s = start_s + all_but_one_s
        end_s = free_s + part.compute_s
        until_s, share = float(free_s[0]), part.host_share
        if number % len(parts) == len(parts) - 1:
            taken_s, ended_s = float(end_s.max()) - ended_s, float(end_s.max())
    return taken_s


def loaded(
    free_s: FloatArray,
    due_s: FloatArray,
    loads_s: FloatArray,
    begin_s: float,
    until_s: float,
    share: float,
) -> FloatArray:
    """``[D]``: when each chip has its weights; always the one with the earliest due date is served.

    Args:
      free_s: when each may be loaded.
      begin_s: when the link has sent what is before.
      until_s: up to then a share of the link is taken.
    """
    left_s, done_s = loads_s.copy(), free_s.copy()
    now_s = begin_s
    while (left_s > 0.0).any():
        is_free = (left_s > 0.0) & (free_s <= now_s)
        if not is_free.any():
            now_s = float(free_s[left_s > 0.0].min())
            continue
        chip = int(np.where(is_free, due_s, np.inf).argmin())
        rate = 1.0 - share if now_s < until_s else 1.0
        ends_s = now_s + left_s[chip] / max(rate, 1e-9)
        others = free_s[(left_s > 0.0) & (free_s > now_s)]
        next_s = min(ends_s, *others.tolist(), until_s if now_s < until_s else np.inf)
        left_s[chip] = 0.0 if next_s == ends_s else left_s[chip] - (next_s - now_s) * rate
        done_s[chip] = now_s = next_s
    return done_s


def sharing_to_dict(sharing: Sharing, graph: Graph) -> dict[str, Any]:
    """What ``--json`` has beside the plan of the union, whose planned graph is ``graph``."""
    built, best = replace(sharing, turns=sharing.built), sharing.best
    return {
        "models": [
            {
                "model": model,
                "rate": copies,
                "interval_s": best.unit_s / copies,
                "alone_interval_s": result.longer_interval_s,
                "plan": _plan_of(sharing, number, graph),
            }
            for number, ((copies, model), result) in enumerate(
                zip(sharing.shares, sharing.turns[0].plans, strict=True)
            )
        ],
        "turns": {"sent_bytes": sharing.turns[-1].sent_bytes, **_turns_to_dict(sharing)}
        | {"drained": _turns_to_dict(sharing.drained())}
        | {"built": {"sent_bytes": sharing.built[-1].sent_bytes, **_turns_to_dict(built)}},
        "answered_s": sharing.answered_s,
        "best": {"turns_of_units": best.units, "unit_s": best.unit_s},
    }


def save_turns(facts: dict[str, Any], model: str, path: Path) -> None:
    """Write the best turns of :func:`sharing_to_dict`: the first model's plan is at ``#/models/0/plan``."""
    turns = {"format": PLAN.json_format, "model": model, **facts["best"], "models": facts["models"]}
    write_atomically(path, json.dumps(turns, ensure_ascii=False) + "\n")


def _plan_of(sharing: Sharing, number: int, graph: Graph) -> dict[str, Any]:
    """The plan of a model in the best turns, or its part of the plan at once."""
    if sharing.best.turns is None:
        return _part_of_plan(sharing.at_once.plan, graph, number + 1)
    result = sharing.best.turns.plans[number]
    plan = replace(result.plan, model=sharing.shares[number][1])
    return plan_to_dict(plan) | plan_facts(planned_graph(sharing.graphs[number], plan), result)


def _turns_to_dict(sharing: Sharing) -> dict[str, Any]:
    units, quick_s, _ = sharing.turns_as_quick()
    return {
        "unit_s": {str(number): sharing.turns_s(number) for number in (1, 10, 100)},
        "endless_unit_s": sharing.turns_s(math.inf),
        "as_quick_units": units,
        "as_quick_unit_s": quick_s if units else None,
    }


def _part_of_plan(plan: Plan, graph: Graph, number: int) -> dict[str, Any]:
    """The decisions for the ops of one model: lists over them, ``order`` with numbers in these lists."""
    own = [i for i, name in enumerate(graph.op_names) if re.match(rf"{number}(\.\d+)?/", name)]
    at = {op: i for i, op in enumerate(own)}
    rows = {"placement": plan.placement, "fusion_group": plan.fusion_group, "replication": plan.replication}
    chosen = {name: row[own].tolist() for name, row in rows.items()}
    order = [at[op] for op in plan.order.tolist() if op in at]
    return {"op_names": [graph.op_names[op] for op in own], "order": order} | chosen


def sharing_lines(sharing: Sharing) -> Iterator[str]:
    for (copies, model), result in zip(sharing.shares, sharing.turns[0].plans, strict=True):
        own = format_duration(sharing.unit_s / copies)
        yield f"model       {own} per inference of {model}, {format_duration(result.longer_interval_s)} alone"
    sent = f"{format_bytes(sharing.turns[-1].sent_bytes)} of weights sent between turns"
    yield f"turns       {sharing.turns_s(1) / sharing.unit_s:.2f}x as long one by one, {sent}"
    yield f"            {sharing.turns_s(math.inf) / sharing.unit_s:.2f}x in turns that never end"
    limit = format_duration(sharing.answered_s)
    ways = (
        (sharing, ""),
        (sharing.drained(), ", if pipelines are emptied between turns"),
        (replace(sharing, turns=sharing.built), ", simulated as their plans lie on chips"),
    )
    for turns, how in ways:
        units, quick_s, _ = turns.turns_as_quick()
        quick = f"{quick_s / sharing.unit_s:.2f}x in turns of {units}, the longest" if units else "no turns"
        yield f"            {quick} that answer within {limit}, as all at once do{how}"
    units, unit_s, _ = sharing.best
    turns_of = f"turns of {units}, each model with its own plan for the package" if units else "all at once"
    yield f"best        {turns_of}: {format_duration(unit_s)} for a unit"
