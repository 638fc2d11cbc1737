"""Rivals that learn costs from evaluations only: random sampling, and annealing through FIX.

Both place the default kernels along the default order, as Xie et al. (MLSys 2022) do:
``Constrained reinforcement learning for multi-chip modules``, sections 4 and 5.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from go_opt.bench.baselines.harness import Samples
from go_opt.errors import InfeasibleError
from go_opt.solver import PlacementProblem, fix_adjacent, greedy_slicing, placement_problem, sample
from go_opt.solver.orders.instance import Instance

BATCH: Final = 64
MOST_REPEATS: Final = 20  # moves that FIX undid before one is evaluated all the same


@dataclass(frozen=True)
class Annealing:
    """Constants of annealing.

    Tuned on eight training graphs (MobileNetV2, ResNet-50, Swin-T, T5-small, ConvLSTM,
    SqueezeNet, EfficientNet-B0, BART) by the mean of log(T / slice) over medians of three to
    five seeds; seeds alone move it by 0.03. At 256 evaluations random sampling reaches 0.02,
    these constants -0.10 (at 1,024: -0.08 and -0.20). Steps of up to two chips reach -0.10, of
    four -0.07, of 36 -0.02; windows of units that move together -0.12 and, at 1,024, the same.
    A start at 0.02 or 0.2 instead of ``hot`` and a quarter instead of ``first_share`` change
    less than seeds do at the end; the tenth gets there sooner.
    """

    first_share: float = 0.1  # of the evaluations: uniform samples, the best of which is the start
    hot: float = 0.05  # temperature at the start, in log seconds
    cold: float = 0.002  # and at the end


def random_sampling(instance: Instance, samples: Samples, seed: int) -> None:
    """SAMPLE from uniform rows; the adjacent core repairs what the engine cannot finish."""
    problem = _problem(instance)
    rng = np.random.default_rng(seed)
    while samples.left > 0:
        _evaluate(instance, samples, problem, _uniform(problem, rng, min(BATCH, samples.left)))


def anneal(instance: Instance, samples: Samples, seed: int, constants: Annealing = Annealing()) -> None:
    """Annealing that starts from the best of some uniform samples."""
    problem = _problem(instance)
    rng = np.random.default_rng(seed)
    units = _uniform(problem, rng, max(1, round(constants.first_share * samples.left)))
    interval_s = _evaluate(instance, samples, problem, units)
    best = int(np.argmin(interval_s))
    _anneal(instance, samples, problem, rng, constants, units[best], float(interval_s[best]))


def anneal_from_greedy(
    instance: Instance, samples: Samples, seed: int, constants: Annealing = Annealing()
) -> None:
    """Annealing that is given the compiler's greedy plan as its first sample."""
    order, group = instance.order, instance.fusion_group
    placement = greedy_slicing(instance.tables, order, group, adjacent=instance.is_adjacent).placement
    anneal_from(instance, samples, seed, constants, placement, samples.one(placement, order, group))


def anneal_from(
    instance: Instance,
    samples: Samples,
    seed: int,
    constants: Annealing,
    placement: NDArray[np.int32],
    interval_s: float,
) -> None:
    """Annealing that goes on from ``placement`` [N], which took ``interval_s``."""
    problem = _problem(instance)
    units = np.zeros(problem.num_units, dtype=np.int32)
    units[problem.unit_of_op] = placement
    _anneal(instance, samples, problem, np.random.default_rng(seed), constants, units, interval_s)


def _anneal(
    instance: Instance,
    samples: Samples,
    problem: PlacementProblem,
    rng: np.random.Generator,
    constants: Annealing,
    current: NDArray[np.int32],
    current_s: float,
) -> None:
    """Perturb the placement [U], let FIX make it valid, accept by Metropolis on the log interval."""
    total = samples.left
    while samples.left > 0:
        temperature = constants.hot * (constants.cold / constants.hot) ** (1.0 - samples.left / total)
        moved = _neighbour(problem, rng, current)
        interval_s = float(_evaluate(instance, samples, problem, moved[None])[0])
        # Two invalid plans are as good as each other, so that the walk can leave them.
        worse = 0.0 if math.isinf(current_s) else math.log(interval_s / current_s)
        if worse <= 0 or rng.random() < math.exp(-worse / temperature):
            current, current_s = moved, interval_s


def _neighbour(
    problem: PlacementProblem, rng: np.random.Generator, current: NDArray[np.int32]
) -> NDArray[np.int32]:
    """A valid placement [U] near ``current``: one unit moves by a chip, FIX repairs the rest."""
    for _ in range(MOST_REPEATS):
        unit = int(rng.integers(problem.num_units))
        proposal = current.copy()
        proposal[unit] = np.clip(proposal[unit] + rng.choice([-1, 1]), 0, problem.num_chips - 1)
        # The unit that moved is visited first: what FIX meets first it can keep.
        order = np.concatenate([[unit], rng.permutation(np.delete(np.arange(problem.num_units), unit))])
        moved: NDArray[np.int32] = fix_adjacent(problem, proposal[None], orders=order[None]).placement[0]
        if (moved != current).any():
            return moved
    return current


def _problem(instance: Instance) -> PlacementProblem:
    return placement_problem(instance.graph, instance.target, instance.fusion_group)


def _uniform(problem: PlacementProblem, rng: np.random.Generator, num_samples: int) -> NDArray[np.int32]:
    """[S, U] placements from uniform rows."""
    rows = np.zeros((problem.num_units, problem.num_chips))
    seed = int(rng.integers(2**31))
    drawn = sample(problem, rows, seed=seed, num_samples=num_samples, rule="adjacent")
    if not drawn.found.all():
        raise InfeasibleError("no placement was found that uses the chips it must and may use.")
    return drawn.placement


def _evaluate(
    instance: Instance, samples: Samples, problem: PlacementProblem, units: NDArray[np.int32]
) -> NDArray[np.float64]:
    """[S] interval_s of placements [S, U] of the default kernels."""
    shape = (len(units), instance.graph.num_ops)
    return samples(
        units[:, problem.unit_of_op],
        np.ascontiguousarray(np.broadcast_to(instance.order, shape)),
        np.ascontiguousarray(np.broadcast_to(instance.fusion_group, shape)),
    )
