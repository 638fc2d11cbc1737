"""Annealing directly on a placement, move by move, with every term of the interval in sight.

The strongest means at hand to improve a given plan: its moves keep the adjacent rule, and its
objective ``Σ (term / T)^p`` over the compute of chips and the loads of links falls before their
maximum does. It reads all terms of the analytical model, so it is no black-box rival; it
makes the references that others are measured against.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from go_opt.agents.instance import Instance
from go_opt.env import evaluate_batch
from go_opt.solver import PlacementProblem, placement_problem
from go_opt.solver.adjacent_moves import move_unit

POWERS: Final = (5.0, 8.0, 16.0)  # taken in turn: low ones see all terms, high ones the largest
TURN: Final = 500  # moves before the next power
HOT: Final = 0.1  # temperature at the start, of the logarithm of the objective's p-th root
COLD: Final = 0.0003


@dataclass(frozen=True, eq=False)
class AnnealedPlacement:
    """The best placement met."""

    placement: NDArray[np.int32]  # [N]
    interval_s: float
    evaluations: int


def anneal_placement(
    instance: Instance,
    placement: NDArray[np.int32],
    order: NDArray[np.int32],
    fusion_group: NDArray[np.int32],
    *,
    moves: int,
    seed: int,
    hot: float = HOT,
) -> AnnealedPlacement:
    """Improve ``placement`` [N], which must keep the adjacent rule, in ``moves`` moves."""
    problem = placement_problem(instance.graph, instance.target, fusion_group)
    rng = np.random.default_rng(seed)
    current = np.zeros(problem.num_units, dtype=np.int32)
    current[problem.unit_of_op] = placement
    terms_s = _terms_s(instance, problem, current, order, fusion_group)
    best, best_s = current, float(terms_s.max())
    evaluations = 1
    for i in range(moves):
        power = POWERS[i // TURN % len(POWERS)]
        temperature = hot * (COLD / HOT) ** (i / moves)
        unit, step = int(rng.integers(problem.num_units)), int(rng.choice((-1, 1)))
        moved = move_unit(problem, current, unit, step)
        if moved is None:
            continue
        evaluations += 1
        moved_s = _terms_s(instance, problem, moved, order, fusion_group)
        worse = _log_norm(moved_s, power) - _log_norm(terms_s, power)
        if worse <= 0 or rng.random() < math.exp(-worse / temperature):
            current, terms_s = moved, moved_s
            if terms_s.max() < best_s:
                best, best_s = current, float(terms_s.max())
    return AnnealedPlacement(best[problem.unit_of_op], best_s, evaluations)


def _terms_s(
    instance: Instance,
    problem: PlacementProblem,
    units: NDArray[np.int32],
    order: NDArray[np.int32],
    fusion_group: NDArray[np.int32],
) -> NDArray[np.float64]:
    """[D + L] seconds of every chip and link, or infinity where memory does not hold the plan."""
    placement = units[problem.unit_of_op]
    terms = evaluate_batch(instance.tables, placement[None], order[None], fusion_group[None])
    if not terms.fits[0]:
        return np.array([np.inf])
    if instance.tables.overlap:
        return np.concatenate([terms.compute_s[0], terms.link_s[0]])
    return terms.interval_s


def _log_norm(terms_s: NDArray[np.float64], power: float) -> float:
    """Logarithm of the p-norm; the largest term is taken out so that no power underflows."""
    largest = float(terms_s.max())
    if math.isinf(largest):
        return math.inf
    return math.log(largest) + math.log(float(((terms_s / largest) ** power).sum())) / power
