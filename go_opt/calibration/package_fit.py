"""Fits factors on a target's links, host and memory to measured plans."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from itertools import product
from typing import Final, NamedTuple

import numpy as np

from go_opt.calibration.samples import Sample, by_plan
from go_opt.env import Target, evaluate_plan
from go_opt.env.copies.relays import plan_tables
from go_opt.env.model.analytical import BatchMetrics
from go_opt.model.graph import Graph

_MEMORIES: Final = (1.0, 0.97, 0.94, 0.9, 0.8, 0.7)
_PAGES: Final = (1 / 16, 1 / 4, 1.0, 4.0, 8.0, 16.0)
_STREAMS: Final = (1 / 4, 1 / 2, 1.0, 2.0)
_RATES: Final = (1.2, 1.1, 1.0, 0.95, 0.9, 0.85, 0.8, 0.7, 0.6, 0.5)
_MOST_LOSS: Final = 0.5  # of one plan: wrongly predicted to run or not, or far off
_TELLS: Final = 0.02  # least difference of losses that decides whether weights stream ahead
_SIMULATED: Final = 4  # plans at most
_ROUNDS: Final = 2
# For a factor of e: without measurements, factors stay at 1. Data sheets state memory, but not pages.
_PRIOR: Final = np.array([1.0, 0.01, 0.01, 0.05, 0.05])


class Factors(NamedTuple):
    """Factors on the target's figures."""

    memory: float = 1.0
    page: float = 1.0  # bytes that buffers are aligned to
    stream: float = 1.0  # bytes reserved on chips that stream weights
    links: float = 1.0
    host: float = 1.0
    prefetch: bool | None = None  # all weights may stream ahead; None: undecided, as in the target


AT_BEST: Final = Factors(page=_PAGES[0], stream=_STREAMS[0], prefetch=True)


def scaled(target: Target, factors: Factors) -> Target:
    """The target with these factors applied."""
    topology, kind = target.topology, target.kinds[0]
    page_bytes = max(1, int(kind.simulator.alignment_bytes * factors.page))
    stream_bytes = int(kind.simulator.stream_buffer_bytes * factors.stream)
    kind = replace(
        kind,
        sram_bytes=int(kind.sram_bytes * factors.memory),
        simulator=replace(kind.simulator, alignment_bytes=page_bytes, stream_buffer_bytes=stream_bytes),
    )
    return replace(
        target,
        topology=replace(topology, rate_bytes_per_s=topology.rate_bytes_per_s * factors.links),
        host_in_bytes_per_s=target.host_in_bytes_per_s * factors.host,
        host_out_bytes_per_s=target.host_out_bytes_per_s * factors.host,
        kinds=(kind,),
        simulator=replace(
            target.simulator,
            kinds=(kind.simulator,),
            weight_prefetch=target.simulator.weight_prefetch
            if factors.prefetch is None
            else factors.prefetch,
        ),
    )


def fit_package(graph: Graph, target: Target, samples: Sequence[Sample]) -> Factors:
    """The factors that fit the samples best, by least absolute errors of logarithms."""
    memories = [Factors(*factors) for factors in product(_MEMORIES, _PAGES, _STREAMS)]
    found = min((_with_rates(graph, target, samples, one) for one in memories), key=lambda found: found[0])[1]
    tried = _Waiting(graph, target, samples, found)
    ahead, waits = found._replace(prefetch=True), found._replace(prefetch=False)
    if tried.loss(ahead._replace(links=1.0, host=1.0)) >= _TELLS:  # waiting may explain it
        waits = tried.better(waits._replace(links=1.0, host=1.0))
    if abs(tried.loss(ahead) - tried.loss(waits)) < _TELLS:
        return found
    return min(ahead, waits, key=tried.loss)


class _Waiting:
    """Losses of factors on the plans that stream weights and that the factors ``around`` explain worst.

    How long chips wait for weights has no closed form, and takes the evaluation of a plan 20 ms.
    """

    def __init__(self, graph: Graph, target: Target, samples: Sequence[Sample], around: Factors) -> None:
        self._graph, self._target = graph, target
        self._losses: dict[Factors, float] = {}
        on = [scaled(target, around._replace(links=1.0, host=1.0, prefetch=each)) for each in (False, True)]
        plans = [same for same in by_plan(samples) if _terms(graph, on[0], same[0]).stream_bytes.any()]
        worst = [max(self._off(each, same) for each in on) for same in plans]
        self._plans = [plans[i] for i in np.argsort(-np.array(worst), kind="stable")[:_SIMULATED]]

    def _off(self, on: Target, same: Sequence[Sample]) -> float:
        expected_s = evaluate_plan(self._graph, on, same[0].plan).interval_s
        return sum(_loss(expected_s, one.interval_s) for one in same)

    def loss(self, factors: Factors) -> float:
        if factors not in self._losses:
            on = scaled(self._target, factors)
            self._losses[factors] = _prior(factors) + sum(self._off(on, same) for same in self._plans)
        return self._losses[factors]

    def better(self, factors: Factors) -> Factors:
        """Move one factor at a time by steps that lower the loss."""
        for name, values in (("links", _RATES), ("stream", _STREAMS), ("page", _PAGES)) * _ROUNDS:
            for step in (-1, 1):
                place = values.index(getattr(factors, name)) + step
                while 0 <= place < len(values):
                    moved = Factors(**(factors._asdict() | {name: values[place]}))
                    if self.loss(moved) >= self.loss(factors):
                        break
                    factors, place = moved, place + step
        return factors


def _prior(factors: Factors) -> float:
    return float(_PRIOR @ np.abs(np.log(factors[:5])))


def _loss(expected_s: float, measured_s: float) -> float:
    if math.isinf(expected_s) or math.isinf(measured_s):  # does not run
        return _MOST_LOSS * (expected_s != measured_s)
    return min(abs(math.log(expected_s / measured_s)), _MOST_LOSS)


def _terms(graph: Graph, on: Target, sample: Sample) -> BatchMetrics:
    return plan_tables(graph, on, sample.plan).evaluate()


def _with_rates(
    graph: Graph, target: Target, samples: Sequence[Sample], memory: Factors
) -> tuple[float, Factors]:
    """The loss, and ``memory`` with the best rates for it."""
    on, loss, rows = scaled(target, memory), 0.0, []
    for sample in samples:
        terms = _terms(graph, on, sample)
        if bool(terms.fits[0]) is not bool(np.isfinite(sample.interval_s)):
            loss += _MOST_LOSS
        elif terms.fits[0]:
            links = terms.link_s[0]
            chip_s = terms.compute_s[0] if sample.chip_s is None else sample.chip_s
            rows.append((sample.interval_s, chip_s.max(), links[:-2].max(initial=0.0), links[-2:].max()))
    measured_s, chip_s, link_s, host_s = np.array(rows).reshape(-1, 4).T

    def loss_of(factors: Factors) -> float:
        expected_s = np.maximum(chip_s, np.maximum(link_s / factors.links, host_s / factors.host))
        off = np.minimum(np.abs(np.log(expected_s / measured_s)), _MOST_LOSS)
        return loss + float(off.sum()) + _prior(factors)

    tried = [memory._replace(links=links, host=host) for links, host in product(_RATES, _RATES)]
    return min(((loss_of(factors), factors) for factors in tried), key=lambda found: found[0])
