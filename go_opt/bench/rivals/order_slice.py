"""Rivals that cut an order: greedy, one slicing, and slicing + random-key genetic order search.

Genetic order search is the strongest published rival: Archer et al., "Pipeline parallelism for neural
networks", ICML 2024.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import partial
from typing import Final

import numpy as np

from go_opt.bench.rivals.problem import Problem
from go_opt.bench.rivals.trial import Trial
from go_opt.common.arrays import IntArray
from go_opt.env import list_schedule
from go_opt.solver import (
    ForwardingMode,
    greedy_slicing,
    slice_order,
    slice_order_streamed,
)
from go_opt.solver.orders.cheapest import charged_slicing, streams_weights
from go_opt.solver.orders.genetic import AS_BY_DEFAULT, Keys, decoded, genetic_search, order_keys

GENOMES: Final = 10_000  # of a genetic search, unless time or evaluations end it earlier


def greedy(trial: Trial, seed: int) -> None:
    """Equal shares of the work along the default order; the adjacent rule may move cuts later.

    With relays any cut is allowed, so both variants are tried.
    """
    problem = trial.problem
    for adjacent in (True, False) if problem.passing == "relayed" else (problem.is_adjacent,):
        cuts = greedy_slicing(problem.instance.tables, problem.order, problem.kernels, adjacent=adjacent)
        trial.one(cuts.placement, problem.order, problem.kernels)


def slice_default(trial: Trial, seed: int) -> None:
    """The cheapest slicing of the default order and kernels."""
    slice_along(trial, trial.problem.order)


def genetic(trial: Trial, seed: int) -> None:
    """Genetic search for the order of the default kernels; starts with the default order."""
    problem = trial.problem

    def interval_s(keys: Keys) -> float:
        return slice_along(trial, list_schedule(problem.graph, problem.kernels, keys))

    first = order_keys(problem.order, problem.kernels)
    genetic_search(interval_s, len(first), evaluations=GENOMES, seed=seed, first=first)


def genetic_with_fusion(trial: Trial, seed: int) -> None:
    """Genetic search for order and fusion together; the first generation has the defaults."""
    problem = trial.problem
    if problem.decide == "placement":
        trial.notes.append("kernels are fixed")
        return

    def interval_s(keys: Keys) -> float:
        kernels, order = decoded(problem.instance, keys)
        return slice_along(trial, order, kernels)

    place = order_keys(problem.order, problem.instance.order)
    first = np.append(place, np.full(len(place), AS_BY_DEFAULT))
    genetic_search(interval_s, len(first), evaluations=GENOMES, seed=seed, first=first)


def slice_along(trial: Trial, order: IntArray, kernels: IntArray | None = None) -> float:
    """Interval [s] of the cheapest slicing of ``order``; each plan counts as one evaluation.

    If weights are streamed, it also tries the cheapest slicing with the cost of streaming. With
    relays it repeats both without relays: on fewer chips, but without copies in memory.

    Args:
      kernels: [N] contiguous in ``order``; None means the default kernels.
    """
    problem = trial.problem
    kernels = problem.kernels if kernels is None else kernels
    given = (problem.instance.tables, order, kernels)
    min_chips = problem.instance.min_chips
    best_s = math.inf
    for passing in _passings(problem):
        slicing = slice_order(*given, passing=passing, min_chips=min_chips)
        if slicing is None:
            trial.count_miss()
            continue
        reached_s = _evaluate(trial, slicing.placement, order, kernels)
        best_s = min(best_s, reached_s)
        if not streams_weights(slicing, reached_s):
            break
        cut = partial(slice_order_streamed, *given, passing=passing, min_chips=min_chips)
        charged = charged_slicing(slicing, reached_s, best_s, cut)
        if charged is not None:
            best_s = min(best_s, _evaluate(trial, charged.placement, order, kernels))
    return best_s


def _passings(problem: Problem) -> Iterator[ForwardingMode]:
    """How slicings treat tensors that pass a chip, in the order to try."""
    if problem.passing == "relayed":
        yield "relayed"
    yield "free" if problem.passing == "free" else "adjacent"


def _evaluate(trial: Trial, placement: IntArray, order: IntArray, kernels: IntArray) -> float:
    """Evaluates a slicing; keeps the default order if only the placement may change."""
    problem = trial.problem
    return trial.one(placement, problem.order if problem.decide == "placement" else order, kernels)
