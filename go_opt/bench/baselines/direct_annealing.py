"""Annealing directly on a placement, with every term of the interval in sight.

The strongest means at hand to improve a given plan (:mod:`go_opt.solver.annealing.anneal`), here within
the adjacent rule. It reads all terms of the analytical model, so it is no black-box rival;
it makes the references that others are measured against.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from go_opt.env import evaluate_batch
from go_opt.solver import anneal, placement_problem
from go_opt.solver.annealing.anneal import HOT
from go_opt.solver.orders.instance import Instance


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
    tables = instance.tables
    problem = placement_problem(instance.graph, instance.target, fusion_group)
    annealed = anneal(
        tables, problem, order, fusion_group, placement,
        passing="adjacent", moves=moves, seed=seed, hot=hot,
    )  # fmt: skip
    exact = evaluate_batch(tables, annealed.placement[None], order[None], fusion_group[None])
    return AnnealedPlacement(annealed.placement, float(exact.interval_s[0]), annealed.moves)
