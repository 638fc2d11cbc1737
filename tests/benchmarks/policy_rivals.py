"""Rivals of the policy beside those of ``go-opt bench``: other orders for the slicer, and blind annealing."""

from __future__ import annotations

import numpy as np

from go_opt.bench.rivals import RIVALS, Rival, Trial
from go_opt.bench.rivals.order_slice import GENOMES, slice_along
from go_opt.bench.rivals.placement_search import anneal, evaluate_units
from go_opt.bench.rivals.problem import unit_problem
from go_opt.env import list_schedule
from go_opt.solver import sample
from go_opt.solver.orders.genetic import genetic_search
from go_opt.solver.orders.orders import fixed_orders, kernel_features, random_orders

FIRST_SHARE = 0.1  # of the evaluations: uniform samples, the best of which is where annealing starts


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


def blind_annealing(trial: Trial, seed: int) -> None:
    """Annealing from the best of some uniform samples: evaluations alone tell it what plans cost."""
    units = unit_problem(trial.problem)
    rng = np.random.default_rng(seed)
    rows = np.zeros((units.num_units, units.num_chips))
    count = max(1, round(FIRST_SHARE * trial.left))
    drawn = sample(units, rows, seed=int(rng.integers(2**31)), num_samples=count, rule="adjacent")
    interval_s = evaluate_units(trial, units, drawn.placement)
    best = int(np.argmin(interval_s))
    anneal(trial, units, drawn.placement[best], float(interval_s[best]), rng)


POLICY_RIVALS = dict(RIVALS) | {
    rival.name: rival
    for rival in (
        Rival("fixed-orders", fixed),  # slicing of a few orders, kernels fused and not
        Rival("structured", structured),  # slicing of random mixes of kernel features
        Rival("feature-mix", feature_mix),  # slicing + genetic search for such a mix
        Rival("blind-annealing", blind_annealing),  # annealing from uniform samples
    )
}
