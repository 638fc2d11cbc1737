"""Which batch, window and copies serve a rate within a limit on p99, on the fewest chips or at the least p99.

What may be taken is simulated under both kinds of arrivals, after two equations that rule out most: the
replicas take at least the rate, and an input that finds its replica just gone is answered in time.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from go_opt.common.arrays import FloatArray, LongArray
from go_opt.serving.rate.queueing import Server, arrivals_s, first_token_p99_s, p99_s, sequence_tokens

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
