"""How long a round of turns takes on chips that load the weights of the next model as they become free.

A lower bound of what a package does: a chip begins a turn when its last inference of the turn before has
ended, and with as many of its weights loaded as its first inference needs at its end. The weights that it
lacks overwrite others from the beginning of its last inference on. One link from the host loads them, beside
what the running model takes, for the chip that needs them first; with such due dates no other succession
ends earlier. A chip may be an inference ahead of the next one for each border between chips, not more.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np

from go_opt.common.arrays import FloatArray

_ROUNDS: Final = 6  # the last is measured


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
