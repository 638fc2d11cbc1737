"""Arrivals, and how long each waits: for batches, for places of sequences, for chips and links on the way.

*Batches*: a queue before replicas that are pipelines. A replica takes a batch each interval and answers it
one latency later; a batch with fewer inputs costs as much as a full one. A batch leaves when a replica is
free and it is full, or its first input has waited the window. *Sequences* of tokens wait for one of the
places that replicas have, and keep it until their last token.

*Prompts and steps* pass through the chips and links of a package, one after the other. A *pass* holds each
chip and link on its way for as long as it loads it, in the order in which passes come there. So a step
behind a prompt waits for it on each chip that they share. On links the packets of steps go first: these wait
for no prompt, whose transfers end as much later.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np

from go_opt.common.arrays import BoolArray, FloatArray, LongArray
from go_opt.common.compiling import uncounted

ARRIVALS: Final = 40_000  # of a simulation; the first tenth is left out
VARIATION: Final = 2.0  # standard deviation of the times between bursty arrivals over their mean
SEQUENCES: Final = 4_000  # of a simulation of prompts and steps
PROMPT, HANDOVER, STEP = range(3)


class Server(NamedTuple):
    """Replicas and how they batch."""

    batch: int
    window_s: float
    replicas: int
    interval_s: float  # of batches into one replica
    latency_s: float  # of a batch


def arrivals_s(rate_per_s: float, seed: int = 0) -> dict[str, FloatArray]:
    """``[ARRIVALS]`` times of each process: Poisson, and bursty with gamma-distributed times between.

    Gamma arrivals are those of Symphony (Chen et al., 2023).
    """
    random = np.random.default_rng(seed)
    shape = VARIATION**-2
    between = {
        "poisson": random.exponential(1.0, ARRIVALS),
        "bursty": random.gamma(shape, 1.0 / shape, ARRIVALS),
    }
    return {name: np.cumsum(gaps) / rate_per_s for name, gaps in between.items()}


def p99_s(arrived_s: FloatArray, server: Server) -> float:
    """The 99th percentile of the seconds from arrival to answer."""
    answered_s = np.zeros(len(arrived_s))
    answer(arrived_s, server, np.zeros(server.replicas), answered_s)
    return _p99(answered_s - arrived_s)


def sequence_tokens(mean: float, seed: int = 0) -> LongArray:
    """``[ARRIVALS]`` tokens of sequences, one or more, geometric."""
    return np.random.default_rng([seed, 1]).geometric(1.0 / mean, ARRIVALS)


def first_token_p99_s(arrived_s: FloatArray, tokens: LongArray, server: Server) -> float:
    """The 99th percentile of the seconds from the arrival of a sequence to its first token.

    A replica has ``batch`` places; a sequence there gets a token each ``latency_s``, and begins when the next
    interval of one place does.
    """
    first_s = np.zeros(len(arrived_s))
    places_s = np.zeros(server.replicas * server.batch)
    take_places(arrived_s, tokens, server.interval_s / server.batch, server.latency_s, places_s, first_s)
    return _p99(first_s - arrived_s)


@uncounted
def take_places(
    arrived_s: FloatArray,
    tokens: LongArray,
    begin_s: float,
    token_s: float,
    free_s: FloatArray,
    first_s: FloatArray,
) -> None:
    """Fills in when the first token of each sequence is there.

    Args:
      begin_s: at most, until a place's first step.
      token_s: of each token.
      free_s: ``[places]`` zeros: when each is free.
    """
    for i in range(arrived_s.size):
        place = 0
        for other in range(1, free_s.size):
            if free_s[other] < free_s[place]:
                place = other
        begins_s = max(arrived_s[i], free_s[place]) + begin_s
        first_s[i] = begins_s + token_s
        free_s[place] = begins_s + tokens[i] * token_s


@uncounted
def answer(arrived_s: FloatArray, server: Server, free_s: FloatArray, answered_s: FloatArray) -> None:
    """Fills in when each arrival is answered.

    Args:
      free_s: ``[replicas]`` zeros: when each takes its next batch.
    """
    first, number = 0, arrived_s.size
    while first < number:
        replica = 0
        for other in range(1, free_s.size):
            if free_s[other] < free_s[replica]:
                replica = other
        leaves_s = arrived_s[first] + server.window_s
        full = first + server.batch - 1
        if full < number:
            leaves_s = min(leaves_s, arrived_s[full])
        leaves_s = max(leaves_s, free_s[replica])
        last = first
        while last < number and last < first + server.batch and arrived_s[last] <= leaves_s:
            answered_s[last] = leaves_s + server.latency_s
            last += 1
        free_s[replica] = leaves_s + server.interval_s
        first = last


class Passes(NamedTuple):
    """Of a prompt, of handing its states over, and of a step. Axis ``R``: chips and links, on the way."""

    hold_s: FloatArray  # [3, R] that each is busy
    move_s: FloatArray  # [3, R] until the pass goes on to the next
    rest_s: FloatArray  # [3] until it has ended, after the last
    is_link: BoolArray  # [R]

    @staticmethod
    def of(holds_s: FloatArray, latencies_s: FloatArray, is_link: BoolArray) -> Passes:
        """Passes that take these latencies where nothing is in their way.

        Transfers go on while chips compute, so holds may add up to more than a latency: the pass then goes on
        early from each.
        """
        sums_s = holds_s.sum(axis=1)
        early = np.minimum(1.0, latencies_s / np.maximum(sums_s, 1e-30))
        return Passes(holds_s, holds_s * early[:, None], latencies_s - sums_s * early, is_link)

    def capacity_per_s(self, tokens: float, places: int) -> float:
        """Sequences a second at most: no chip or link is always busy, and no place."""
        repeats = np.array([1.0, 1.0, tokens - 1.0])
        busiest_s = float((repeats @ self.hold_s).max())
        latencies_s = self.move_s.sum(axis=1) + self.rest_s
        return 1.0 / max(busiest_s, float(repeats @ latencies_s) / places)


@dataclass(frozen=True)
class Answered:
    """99th percentiles of one process of arrivals."""

    first_s: float  # from arrival to the first token, which the prompt gives
    token_s: float  # from token to token, in the mean of a sequence
    last_s: float  # from arrival to the last token


def simulated(
    passes: Passes, places: int, rate_per_s: float, tokens: float, seed: int
) -> dict[str, Answered]:
    """For each process of arrivals of so many sequences a second.

    Args:
      places: sequences in flight; one that arrives waits for a place, and keeps it until its last token.
    """
    lengths = sequence_tokens(tokens, seed)[:SEQUENCES]
    found = {}
    for name, arrived_s in arrivals_s(rate_per_s, seed).items():
        arrived_s = arrived_s[:SEQUENCES]
        first_s, last_s = np.zeros(SEQUENCES), np.zeros(SEQUENCES)
        pass_through(
            arrived_s,
            lengths,
            passes,
            np.zeros((4, places), np.int64),
            np.zeros(places),
            np.zeros((2, passes.is_link.size)),
            first_s,
            last_s,
        )
        each_s = (last_s - first_s) / np.maximum(lengths - 1, 1)
        found[name] = Answered(_p99(first_s - arrived_s), _p99(each_s), _p99(last_s - arrived_s))
    return found


def _p99(taken_s: FloatArray) -> float:
    return float(np.quantile(taken_s[len(taken_s) // 10 :], 0.99, method="higher"))


@uncounted
def pass_through(
    arrived_s: FloatArray,
    tokens: LongArray,
    passes: Passes,
    places: LongArray,
    now_s: FloatArray,
    free_s: FloatArray,
    first_s: FloatArray,
    last_s: FloatArray,
) -> None:
    """Fills in when the first and last token of each sequence are there.

    Args:
      places: ``[4, places]`` zeros: of the sequence in a place the tokens that are left, its number, its
        pass, and where on the way that is.
      now_s: ``[places]`` zeros: when each goes on, or is free.
      free_s: ``[2, R]`` zeros: when each chip and link is free; of links for steps, in the second row.
    """
    left, held_by, kind, at = places[0], places[1], places[2], places[3]
    taken = 0
    while True:
        place, next_s, second_s = -1, np.inf, np.inf
        for i in range(now_s.size):
            goes_s = now_s[i]
            if left[i] == 0:
                goes_s = max(goes_s, arrived_s[taken]) if taken < arrived_s.size else np.inf
            if goes_s < next_s:
                place, next_s, second_s = i, goes_s, next_s
            elif goes_s < second_s:
                second_s = goes_s
        if place < 0:
            return
        if left[place] == 0:
            left[place], held_by[place], kind[place] = tokens[taken], taken, PROMPT
            now_s[place] = next_s
            taken += 1
        of = kind[place]
        while at[place] < passes.is_link.size and now_s[place] <= second_s:
            i = at[place]
            at[place] += 1
            hold_s = passes.hold_s[of, i]
            if hold_s > 0.0:
                is_first = of == STEP and passes.is_link[i]
                begin_s = max(now_s[place], free_s[1 if is_first else 0, i])
                if is_first:
                    free_s[1, i] = begin_s + hold_s
                    free_s[0, i] = max(free_s[0, i], begin_s) + hold_s
                else:
                    free_s[0, i] = begin_s + hold_s
                now_s[place] = begin_s + passes.move_s[of, i]
        if at[place] == passes.is_link.size:
            at[place] = 0
            now_s[place] += passes.rest_s[of]
            kind[place] = of + 1 if of < STEP else STEP
            if of == PROMPT:
                first_s[held_by[place]] = now_s[place]
            if of != HANDOVER:
                left[place] -= 1
                if left[place] == 0:
                    last_s[held_by[place]] = now_s[place]
