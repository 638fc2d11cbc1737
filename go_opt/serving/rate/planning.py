"""Plans for batches of 1, 2, 4, … on parts of a package, and the choice of them that serves a rate.

The choice is of batch, window and copies, within a limit on p99, on the fewest chips or at the least p99.
What may be taken is simulated under both kinds of arrivals, after two equations that rule out most: the
replicas take at least the rate, and an input that finds its replica just gone is answered in time.

Of a model with states, numbers of sequences in flight take the place of batches, and the rate is of tokens.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any, Final

from go_opt.api.chips import ChipCount, chip_counts
from go_opt.common.arrays import FloatArray, LongArray
from go_opt.common.units import format_duration
from go_opt.env import Target
from go_opt.env.target import first_chips
from go_opt.errors import InfeasibleError, InvalidInputError
from go_opt.model.graph import Graph
from go_opt.result import OptimizeResult, Request
from go_opt.search.bounds import bound_over_states
from go_opt.search.optimizer import optimize_request
from go_opt.search.rewriting.choices import open_graphs
from go_opt.search.splits.ways import divisible_ops
from go_opt.serving.rate.queueing import Server, arrivals_s, first_token_p99_s, p99_s, sequence_tokens

SearchOf = Callable[[Graph, Target, Request], OptimizeResult]  # here, or at a service
BATCHES: Final = (1, 2, 4, 8, 16, 32, 64)
SEQUENCES: Final = (1, 2, 4, 8, 12, 16, 24, 32, 48, 64)
MEAN_TOKENS: Final = 128.0  # of a sequence
_LEAST_GAIN: Final = 1.02  # in inputs a second of the package, of a batch twice as large
_WINDOWS: Final = (0.0, 0.25, 0.5, 0.75, 1.0)  # shares of the time that the limit leaves


@dataclass(frozen=True)
class Served:
    """What one copy of a plan serves.

    With states a batch is a token of each sequence in flight, and its latency the time per token.
    """

    batch: int
    chips: int
    interval_s: float  # of batches, simulated if that is longer
    latency_s: float  # of a batch
    host_s: float  # of a batch, on the busier direction of the host's link, which all copies share
    is_decoding: bool = False  # with states


@dataclass(frozen=True)
class Choice:
    """A plan, its copies and its window, with what was simulated."""

    served: Served
    replicas: int
    window_s: float
    p99_s: dict[str, float]  # by process of arrivals

    @property
    def chips(self) -> int:
        return self.served.chips * self.replicas

    @property
    def worst_s(self) -> float:
        return max(self.p99_s.values())

    @property
    def token_s(self) -> float:
        """Seconds from token to token of a sequence."""
        return _server(self.served, self.replicas, 0.0).latency_s

    @property
    def capacity_per_s(self) -> float:
        return self.replicas * self.served.batch / _server(self.served, self.replicas, 0.0).interval_s


def decide(
    options: Iterable[Served],
    chips: int,
    rate_per_s: float,
    limit_s: float,
    *,
    is_fewest: bool,
    tokens: float | None = None,
    seed: int = 0,
) -> Choice | None:
    """The choice of fewest chips, or of the least p99, that passes both simulations; None if none does.

    Args:
      chips: of the package.
      limit_s: on p99; infinite: none.
      tokens: of a sequence in the mean; then the rate is of tokens, and the p99 that of first tokens.
    """
    arrived = arrivals_s(rate_per_s / (tokens or 1.0), seed)
    lengths = None if tokens is None else sequence_tokens(tokens, seed)
    best: Choice | None = None
    candidates = [
        (served, replicas)
        for served in options
        for replicas in range(1, chips // served.chips + 1)
        if _may_serve(served, replicas, rate_per_s, limit_s)
    ]
    candidates.sort(key=lambda one: (one[0].chips * one[1], one[0].latency_s))
    for served, replicas in candidates:
        if is_fewest and best is not None and served.chips * replicas > best.chips:
            break
        if lengths is None:
            choices = _windows(served, replicas, limit_s, arrived)
        else:
            choices = _places(served, replicas, arrived, lengths)
        for choice in choices:
            if choice.worst_s <= limit_s and (best is None or choice.worst_s < best.worst_s):
                best = choice
    return best


def _may_serve(served: Served, replicas: int, rate_per_s: float, limit_s: float) -> bool:
    """The equations: enough batches a second, and one wait for a replica and a batch within the limit."""
    server = _server(served, replicas, 0.0)
    return replicas * served.batch / server.interval_s >= rate_per_s and server.latency_s <= limit_s


def _server(served: Served, replicas: int, window_s: float) -> Server:
    interval_s = max(served.interval_s, replicas * served.host_s)
    latency_s = max(served.latency_s, interval_s) if served.is_decoding else served.latency_s
    return Server(served.batch, window_s, replicas, interval_s, latency_s)


def _places(
    served: Served, replicas: int, arrived: dict[str, FloatArray], lengths: LongArray
) -> Iterator[Choice]:
    server = _server(served, replicas, 0.0)
    found = {name: first_token_p99_s(times_s, lengths, server) for name, times_s in arrived.items()}
    yield Choice(served, replicas, 0.0, found)


def _windows(
    served: Served, replicas: int, limit_s: float, arrived: dict[str, FloatArray]
) -> Iterator[Choice]:
    longest_s = served.interval_s if math.isinf(limit_s) else limit_s - served.latency_s
    for share in _WINDOWS if served.batch > 1 else (0.0,):
        server = _server(served, replicas, share * longest_s)
        found = {}
        for name, times_s in arrived.items():
            found[name] = p99_s(times_s, server)
            if found[name] > limit_s:
                break
        else:
            yield Choice(served, replicas, server.window_s, found)


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

    def to_dict(self) -> dict[str, Any]:
        """What ``--json`` has of the rate, beside the plan of one copy."""
        choice = self.choice
        facts = {
            "rate_per_s": self.asked.rate_per_s,
            "capacity_per_s": choice.capacity_per_s,
            "copies": choice.replicas,
            "chips": choice.chips,
            "least_chips": self.least_chips,
            "p99_s": choice.p99_s,
        }
        if choice.served.is_decoding:
            sequences = {"sequences": choice.served.batch, "tokens_per_sequence": self.asked.tokens}
            return facts | sequences | {"token_s": choice.token_s}
        return facts | {
            "batch": choice.served.batch,
            "window_s": choice.window_s,
            "batch_interval_s": choice.served.interval_s,
            "batch_latency_s": choice.served.latency_s,
        }

    def lines(self, num_chips: int) -> Iterator[str]:
        choice = self.choice
        served = choice.served
        copies = f"{choice.replicas} copies of {served.chips} chips"
        most = f"at most {choice.capacity_per_s:,.4g}/s"
        yield f"serves      {self.asked.rate_per_s:g}/s of {most}, with {copies}"
        if served.is_decoding:
            tokens = f"{self.asked.tokens:g} tokens each in the mean"
            yield f"sequences   {served.batch} in flight in each copy, {tokens}"
            yield f"token       {format_duration(choice.token_s)} from one to the next of a sequence, at most"
            what = "p99 first  "
        else:
            window = f", which leaves after {format_duration(choice.window_s)} if not full"
            yield f"batch       {served.batch}{window if served.batch > 1 else ''}"
            what = "p99        "
        for name, seconds in choice.p99_s.items():
            yield f"{what} {format_duration(seconds)}, simulated with {name} arrivals"
        these = "any number of sequences" if served.is_decoding else "these batches"
        bound = f"no fewer than {self.least_chips} take the rate with {these}"
        yield f"chips       {choice.chips} of {num_chips}; {bound}"


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


def search_here(should_stop: Callable[[], bool]) -> SearchOf:
    """The search of this process, until ``should_stop``."""
    return lambda graph, target, request: optimize_request(graph, target, request, should_stop=should_stop)


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
    interval_s = result.longer_interval_s
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
