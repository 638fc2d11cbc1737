"""Plans for batches of 1, 2, 4, … on parts of a package, and the choice of them that serves a rate.

Of a model with states, numbers of sequences in flight take the place of batches, and the rate is of tokens.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Final

from go_opt.api.chips import ChipCount, chip_counts
from go_opt.common.units import format_duration
from go_opt.env import Target
from go_opt.env.target import first_chips
from go_opt.errors import InfeasibleError, InvalidInputError
from go_opt.model.graph import Graph
from go_opt.result import OptimizeResult, Request
from go_opt.search.bounds import bound_over_states
from go_opt.search.rewriting.choices import open_graphs
from go_opt.search.splits.ways import divisible_ops
from go_opt.serving.rate.deciding import Choice, Served, decide

SearchOf = Callable[[Graph, Target, Request], OptimizeResult]  # here, or at a service
BATCHES: Final = (1, 2, 4, 8, 16, 32, 64)
SEQUENCES: Final = (1, 2, 4, 8, 12, 16, 24, 32, 48, 64)
MEAN_TOKENS: Final = 128.0  # of a sequence
_LEAST_GAIN: Final = 1.02  # in inputs a second of the package, of a batch twice as large


@dataclass(frozen=True)
class RateRequest:
    """What is asked for.

    Args:
      limit_s: on the 99th percentile of the seconds from arrival to answer; infinite: none.
      is_fewest: on the fewest chips; else at the least p99 on all.
      tokens: of a sequence in the mean, of models with states.
    """

    rate_per_s: float
    limit_s: float = math.inf
    is_fewest: bool = False
    tokens: float | None = None

    def __post_init__(self) -> None:
        if self.tokens is not None and not 1.0 <= self.tokens < math.inf:
            raise InvalidInputError(f"tokens must be 1 or more, not {self.tokens}.", field="tokens")


@dataclass(frozen=True, eq=False)
class RatePlan:
    """The choice, its plan on the first chips of the package, and what was looked at."""

    asked: RateRequest
    choice: Choice
    graph: Graph  # of the batch
    result: OptimizeResult
    least_chips: int  # fewer are proven too few for the rate, with the batches looked at
    served: tuple[Served, ...]


def plan_for_rate(
    load: Callable[[int], Graph],
    target: Target,
    request: Request,
    asked: RateRequest,
    *,
    has_batch: bool = True,
    on_count: Callable[[int, ChipCount], None] = lambda batch, found: None,
    should_stop: Callable[[], bool] = lambda: False,
    search: SearchOf | None = None,
) -> RatePlan:
    """Batch, window, copies and plan that serve the rate; the budget of ``request`` is for each plan.

    Args:
      load: the graph of a batch.
      has_batch: whether it takes others than 1.
      search: for each plan; by default in this process.

    Raises:
      InfeasibleError: no choice passes the simulations.
      InvalidInputError: the graph has states of scope ``model``, or none and tokens are given.
    """
    counts = sorted({target.num_chips // copies for copies in range(1, target.num_chips + 1)})
    found: dict[Served, tuple[Graph, OptimizeResult]] = {}
    least_chips, most_per_s, bound_per_s, refused = target.num_chips + 1, 0.0, 0.0, ""
    first = load(1)
    is_decoding = _is_decoding(first, asked)
    if is_decoding:
        asked = replace(asked, tokens=asked.tokens or MEAN_TOKENS)
    for batch in SEQUENCES if is_decoding else BATCHES if has_batch else (1,):
        if should_stop():
            break
        graph = first if is_decoding or batch == 1 else load(batch)
        inputs = 1 if is_decoding else batch  # of an inference
        least_chips = min(least_chips, _least_chips(graph, target, request, inputs / asked.rate_per_s))
        sized = replace(request, sequences=batch) if is_decoding else request
        rate_per_s = 0.0
        bound_per_s = max(bound_per_s, inputs / bound_s(graph, target, request, target.num_chips))
        worthwhile = _worthwhile(graph, target, sized, counts, inputs, asked)
        if not worthwhile and not found:
            continue  # larger batches may take the rate
        for one in _plans(graph, target, sized, worthwhile, asked.limit_s, should_stop, search):
            on_count(batch, one)
            if one.result is None:
                refused = refused or one.reason
            else:
                served = _served(batch, one.chips, one.result, is_decoding=is_decoding)
                found[served] = graph, one.result
                copies = target.num_chips // one.chips
                rate_per_s = max(rate_per_s, batch / max(served.interval_s / copies, served.host_s))
            if should_stop():
                break
        is_late = all(served.latency_s > asked.limit_s for served in found if served.batch == batch)
        # More sequences gain at last what more copies gained before; they end where they do not fit.
        if is_late or (rate_per_s < most_per_s * _LEAST_GAIN and not is_decoding):
            break
        most_per_s = max(rate_per_s, most_per_s)
    choice = decide(
        found,
        target.num_chips,
        asked.rate_per_s,
        asked.limit_s,
        is_fewest=asked.is_fewest,
        tokens=asked.tokens,
        seed=request.seed,
    )
    if choice is None:
        known = refused or f"they take at most {bound_per_s:.4g} by the bound of the interval."
        raise _unserved(found, target, asked, known, is_proven=least_chips > target.num_chips)
    return RatePlan(asked, choice, *found[choice.served], least_chips, tuple(found))


def _plans(
    graph: Graph,
    target: Target,
    request: Request,
    counts: list[int],
    limit_s: float,
    should_stop: Callable[[], bool],
    search: SearchOf | None,
) -> Iterator[ChipCount]:
    """The result for each number of chips; where its latency is above the limit, also a plan within it."""

    def count(chips: int, request: Request) -> ChipCount:
        (found,) = chip_counts(graph, target, request, counts=[chips], should_stop=should_stop, search=search)
        return found

    for chips in counts:
        yield (found := count(chips, request))
        if found.result is not None and found.result.metrics.latency_s > limit_s and not should_stop():
            within = count(chips, replace(request, max_latency_s=limit_s))
            if within.result is not None:
                yield within


def _is_decoding(graph: Graph, asked: RateRequest) -> bool:
    """Whether the rate is of tokens: the graph is a step of sequences."""
    if graph.has_scope("model"):
        raise InvalidInputError("--rate is not for models with a state of scope 'model'.", field="rate")
    if asked.tokens is not None and not graph.states:
        raise InvalidInputError("--tokens is for models with states.", field="tokens")
    return bool(graph.states)


def _served(batch: int, chips: int, result: OptimizeResult, *, is_decoding: bool) -> Served:
    metrics = result.metrics
    interval_s = max(metrics.interval_s, result.simulated_interval_s or 0.0)
    host_s = float(metrics.link_s[-2:].max())
    if not is_decoding:
        return Served(batch, chips, interval_s, metrics.latency_s, host_s)
    token_s = max(batch * interval_s, metrics.latency_s)
    return Served(batch, chips, batch * interval_s, token_s, batch * host_s, is_decoding=True)


def _worthwhile(
    graph: Graph, target: Target, request: Request, counts: list[int], batch: int, asked: RateRequest
) -> list[int]:
    """Numbers of chips of a copy whose bound lets all copies serve the rate."""
    return [
        chips
        for chips in counts
        if bound_s(graph, target, request, chips) * asked.rate_per_s <= batch * (target.num_chips // chips)
    ]


def bound_s(graph: Graph, target: Target, request: Request, chips: int) -> float:
    """The bound of the interval on so many of the first chips."""
    part = first_chips(target, chips)
    return min(
        bound_over_states(one, part, request, divisible_ops(one, part, request)).seconds
        for one in open_graphs(graph, part, request)
    )


def _least_chips(graph: Graph, target: Target, request: Request, interval_s: float) -> int:
    """The fewest chips whose bound is within the interval; one more than there are if none is."""
    low, high = 0, target.num_chips + 1
    while high - low > 1:
        middle = (low + high) // 2
        if bound_s(graph, target, request, middle) <= interval_s:
            high = middle
        else:
            low = middle
    return high


def _unserved(
    found: dict[Served, tuple[Graph, OptimizeResult]],
    target: Target,
    asked: RateRequest,
    known: str,
    *,
    is_proven: bool,
) -> InfeasibleError:
    what = "inputs" if asked.tokens is None else "tokens"
    wanted = f"{asked.rate_per_s:g} {what} a second"
    if math.isfinite(asked.limit_s):
        wanted += f" with a p99 of {format_duration(asked.limit_s)}"
    if not found:
        return InfeasibleError(
            f"no plan serves {wanted} on {target.num_chips} chips: {known}", is_proven=is_proven
        )
    least_s = min(served.latency_s for served in found)
    most_per_s = max(
        served.batch / max(served.interval_s / (target.num_chips // served.chips), served.host_s)
        for served in found
    )
    each = "a batch" if asked.tokens is None else "a token"
    best = f"the best take {most_per_s:.4g} {what} a second, and {format_duration(least_s)} for {each}"
    return InfeasibleError(
        f"no plan serves {wanted} on {target.num_chips} chips: {best}.", is_proven=is_proven
    )
