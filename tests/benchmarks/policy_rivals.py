"""Rivals of the policy beside those of ``go-opt bench``: other orders for the slicer."""

from __future__ import annotations

import numpy as np

from go_opt.bench.rivals import RIVALS, Rival, Trial
from go_opt.bench.rivals.searches import GENOMES, slice_along
from go_opt.env import list_schedule
from go_opt.solver.orders.genetic import genetic_search
from go_opt.solver.orders.orders import fixed_orders, kernel_features, random_orders


def fixed(trial: Trial, seed: int) -> None:
    """The default, depth and height orders, with the default kernels and with one for each op."""
    problem = trial.problem
    for kernels in (problem.kernels, problem.order):
        slice_along(trial, problem.order, kernels)
        for _, order in fixed_orders(problem.graph, kernels):
            slice_along(trial, order, kernels)


def structured(trial: Trial, seed: int) -> None:
    """List schedules by random mixes of kernel features: a policy that was never trained."""
    problem = trial.problem
    for order in random_orders(problem.graph, problem.instance.tables, problem.kernels, seed):
        slice_along(trial, order)


def feature_mix(trial: Trial, seed: int) -> None:
    """Genetic search for the mix of kernel features that orders best, position alone among the first."""
    problem = trial.problem
    features = kernel_features(problem.graph, problem.instance.tables, problem.kernels)

    def interval_s(keys: np.ndarray) -> float:
        return slice_along(
            trial, list_schedule(problem.graph, problem.kernels, features @ (2.0 * keys - 1.0))
        )

    # Position is the first feature: a falling priority is the default order.
    first = np.where(np.arange(features.shape[1]) == 0, 0.0, 0.5)
    genetic_search(interval_s, len(first), evaluations=GENOMES, seed=seed, first=first)


POLICY_RIVALS = dict(RIVALS) | {
    rival.name: rival
    for rival in (
        Rival("fixed-orders", fixed),  # slicing of a few orders, kernels fused and not
        Rival("structured", structured),  # slicing of random mixes of kernel features
        Rival("feature-mix", feature_mix),  # slicing + genetic search for such a mix
    )
}
