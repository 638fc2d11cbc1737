"""Prompts beside steps of decoding on all chips, or apart on chips of their own: which is better for a rate.

Both are plans of one graph, that of the prompt and the step with their weights in common. *Beside*, the
prompt's ops lie where the step has their weights, which a chip then holds once. *Apart*, prompts have the
first chips and steps the others: none waits for the other, but weights lie there twice, and the states of
each prompt go over links.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from go_opt.common.units import format_bytes, format_duration
from go_opt.env import Target
from go_opt.env.target import first_chips
from go_opt.errors import InfeasibleError, PlanError
from go_opt.model.codecs.plan_json import plan_to_dict, save_plan
from go_opt.model.graph import Graph
from go_opt.result import OptimizeResult, Request
from go_opt.search.optimizer import optimize_request
from go_opt.serving.rate.planning import MEAN_TOKENS, RateRequest, SearchOf, bound_s
from go_opt.serving.rate.prefill_plans import Case, Placed, on_target, place, prompt_beside, shifted
from go_opt.serving.rate.tandem import Answered, simulated

_SHARES: Final = (0.5, 1.0, 2.0)  # chips of prompts apart, over those by their share of the work


@dataclass(frozen=True, eq=False)
class Way:
    """A plan of both, with what was simulated for each process of arrivals."""

    placed: Placed
    answered: Mapping[str, Answered]
    capacity_per_s: float  # tokens

    def is_in_time(self, asked: RateRequest) -> bool:
        """Whether it takes the rate, with first tokens and times per token within the limit."""
        slowest_s = max(max(one.first_s, one.token_s) for one in self.answered.values())
        return self.capacity_per_s >= asked.rate_per_s and slowest_s <= asked.limit_s

    @property
    def last_s(self) -> float:
        """The p99 until the last token, of the slower process."""
        return max(one.last_s for one in self.answered.values())


@dataclass(frozen=True, eq=False)
class Prefill:
    """The best way beside and the best apart, where plans were found."""

    case: Case
    asked: RateRequest
    tokens: float
    bound_per_s: float  # tokens: no plans of either way take more
    beside: Way | None
    apart: Way | None
    claims: Mapping[str, Any]  # of the plan's file

    @property
    def best(self) -> Way:
        """Of those in time the one whose last tokens are there first.

        Raises:
          InfeasibleError: none is in time.
        """
        ways = [way for way in (self.beside, self.apart) if way is not None]
        found = [way for way in ways if way.is_in_time(self.asked)]
        if found:
            return min(found, key=lambda way: way.last_s)
        most = max((way.capacity_per_s for way in ways), default=0.0)
        rate = f"{self.asked.rate_per_s:g} tokens a second on {self.case.target.num_chips} chips"
        raise InfeasibleError(
            f"no plan with prompts beside steps or apart serves {rate} in time: the best takes {most:.4g}/s.",
            is_proven=self.asked.rate_per_s > self.bound_per_s,
        )

    def to_dict(self) -> dict[str, Any]:
        """The JSON object of ``--json``: what was simulated, and the plan of both."""
        shared, weights = self.case.shared_bytes
        best = self.best
        return {
            "model": self.case.both.name,
            "target": self.case.target.name,
            "serving": {
                "rate_per_s": self.asked.rate_per_s,
                "tokens_per_sequence": self.tokens,
                "prompt_tokens": self.case.prompt_tokens,
                "weight_bytes": weights,
                "shared_weight_bytes": shared,
                "bound_per_s": self.bound_per_s,
                "best": "apart" if best is self.apart else "beside",
                "beside": self.beside and _way_to_dict(self.beside),
                "apart": self.apart and _way_to_dict(self.apart),
            },
            "plan": plan_to_dict(best.placed.plan),
        }

    def save(self, path: Path) -> None:
        """Writes the plan of the better way, which is one of the graph of both."""
        save_plan(self.best.placed.plan, path, self.claims)

    def lines(self) -> Iterator[str]:
        shared, weights = self.case.shared_bytes
        sizes = f"{format_bytes(shared)} of {format_bytes(weights)} of weights"
        yield f"weights     {sizes} of the step are those of the prompt"
        yield f"bound       {self.bound_per_s:,.4g} tokens/s: no plans of prompt and step take more"
        for name, way in (("beside", self.beside), ("apart", self.apart)):
            yield from [f"{name:11} no plan found"] if way is None else _lines(name, way)
        best, is_apart = self.best, self.best is self.apart
        where = f"apart, on {best.placed.prompt_chips} chips" if is_apart else "beside steps, on all chips"
        yield f"best        prompts {where}"


def plan_prefill(
    prompt: Graph,
    step: Graph,
    both: Graph,
    target: Target,
    request: Request,
    asked: RateRequest,
    *,
    should_stop: Callable[[], bool] = lambda: False,
    search: SearchOf | None = None,
    claims: Mapping[str, Any] = MappingProxyType({}),
) -> Prefill:
    """Prompts beside steps and apart; the budget of ``request`` is for each of at most eight searches.

    Args:
      both: prompt and step as one graph, with the weights that are the same once.
      search: for each plan; by default in this process.
      claims: of the plan's file, as of measured costs.
    """
    case = Case(prompt, step, both, target)

    def here(graph: Graph, target: Target, one: Request) -> OptimizeResult:
        return optimize_request(graph, target, one, should_stop=should_stop)

    find, tokens = search or here, asked.tokens or MEAN_TOKENS
    # The chips of replicated stages would have to be those of the other plan, too.
    own = replace(request, replication=False, rewrite=False, start=None)
    of_prompt = replace(own, sequences=None)
    work_s = (
        bound_s(prompt, target, of_prompt, target.num_chips),
        (tokens - 1.0) * bound_s(step, target, own, target.num_chips),
    )

    def way(placed: Placed) -> Way:
        places, rate_per_s = placed.plan.sequences, asked.rate_per_s / tokens
        answered = simulated(placed.passes, places, rate_per_s, tokens, request.seed)
        return Way(placed, answered, tokens * placed.passes.capacity_per_s(tokens, places))

    beside: list[Way] = []
    with suppress(InfeasibleError, PlanError):
        steps = on_target(find(step, target, own).plan, target)
        graph, splits, pins = prompt_beside(case, steps)
        pinned = replace(of_prompt, constraints=tuple(pins), splits=not splits)
        prompts = on_target(find(graph, target, pinned).plan, target)
        prompts = replace(prompts, splits=(*splits, *prompts.splits))
        beside.append(way(place(case, prompts, steps, 0, tokens)))
    apart: list[Way] = []
    share = target.num_chips * work_s[0] / sum(work_s)
    for chips in sorted({min(max(round(share * of), 1), target.num_chips - 1) for of in _SHARES}):
        if should_stop():
            break
        with suppress(InfeasibleError, PlanError):
            prompts = on_target(find(prompt, first_chips(target, chips), of_prompt).plan, target)
            rest = find(step, first_chips(target, target.num_chips - chips), own).plan
            used = int(prompts.placement.max()) + 1
            apart.append(way(place(case, prompts, shifted(case, rest, used), used, tokens)))
    return Prefill(
        case, asked, tokens, tokens / max(work_s), _better(beside, asked), _better(apart, asked), claims
    )


def _better(ways: list[Way], asked: RateRequest) -> Way | None:
    return min(ways, key=lambda way: (not way.is_in_time(asked), way.last_s), default=None)


def _way_to_dict(way: Way) -> dict[str, Any]:
    return {
        "capacity_per_s": way.capacity_per_s,
        "prompt_chips": way.placed.prompt_chips,
        "sequences": way.placed.plan.sequences,
        "handover_s": way.placed.handover_s,
        "p99_s": {name: vars(one) for name, one in way.answered.items()},
    }


def _lines(name: str, way: Way) -> Iterator[str]:
    placed = way.placed
    chips = f", prompts on {placed.prompt_chips} chips" if placed.prompt_chips else ""
    most = f"at most {way.capacity_per_s:,.4g} tokens/s"
    yield f"{name:11} {most} with {placed.plan.sequences} sequences in flight{chips}"
    if placed.handover_s:
        yield f"            {format_duration(placed.handover_s)} to send the states of a prompt"
    for process, one in way.answered.items():
        first, each = format_duration(one.first_s), format_duration(one.token_s)
        last = format_duration(one.last_s)
        yield f"            p99 with {process} arrivals: first token {first}, per token {each}, last {last}"
