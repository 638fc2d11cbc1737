"""A policy's outputs for a graph, and its raw decisions as plans: kernels, an order, then a placement.

Fusion priorities determine kernels (:mod:`go_opt.env.kernels.fusion`), schedule priorities
their order (list scheduling; the ops of a kernel stay together), and one of the modes
places them on chips:

* ``slice_cheapest``: the exact slicer. It reads costs, so it must not be used if the reward
  is a black box. Falls back to greedy slicing if no slicing fits in memory.
* ``walk``: the walk along the order (:mod:`go_opt.solver.walk.walk`), made valid by FIX.

Axes: ``R`` rows of keys, ``S`` plans, ``N`` ops, ``M`` kernels, ``F`` features of the walk.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal, NamedTuple, get_args

import numpy as np

from go_opt.agents.decoding.walk_case import WalkCase, walk_case
from go_opt.agents.inputs.features import NUM_EXPLORED
from go_opt.common.arrays import BoolArray, FloatArray
from go_opt.errors import InfeasibleError, InvalidInputError
from go_opt.model.plan import Candidate
from go_opt.solver.orders.cheapest import cheapest_slicing
from go_opt.solver.orders.instance import OrderProblem
from go_opt.solver.orders.orders import schedule


class Outputs(NamedTuple):
    """The outputs of a policy for one graph, in its own order of ops; or their gradient.

    Axes: ``N`` ops, ``W`` features of the walk, ``F`` exploration features.
    """

    walk_weights: FloatArray  # [W]
    walk_head: FloatArray  # [N]
    schedule_key: FloatArray  # [N]
    fusion_key: FloatArray  # [N]
    exploration_log_std: FloatArray  # [2, F] schedule, fusion


def neutral_outputs(walk_weights: FloatArray, walk_head: FloatArray) -> Outputs:
    """Those of a policy whose network has no opinion: the default order and kernels, noise of spread one."""
    no_key = np.zeros(len(walk_head))
    return Outputs(walk_weights, walk_head, no_key, no_key, np.zeros((2, NUM_EXPLORED)))


Mode = Literal["slice_cheapest", "walk"]
MODES: Final[tuple[Mode, ...]] = get_args(Mode)


@dataclass(frozen=True, eq=False)
class Decisions:
    """A policy's decisions about a graph, before they are made valid."""

    schedule_priority: FloatArray  # [R, N] a kernel has the largest of its ops; high is early
    fusion_priority: FloatArray  # [R, N] finite, 0 is neutral
    walk_weights: FloatArray  # [F]
    walk_head: FloatArray  # [N] a kernel has the mean of its ops


class Walked(NamedTuple):
    """The cuts of one walk, to which its log-probability refers."""

    case: WalkCase
    is_cut: BoolArray  # [M]


class Decoded(NamedTuple):
    """A plan, and how it was placed."""

    plan: Candidate
    is_repaired: bool  # whether FIX moved a kernel of the walk, or no slicing fits
    walk: Walked | None = None  # none for slice_cheapest


def decode(
    instance: OrderProblem,
    decisions: Decisions,
    mode: Mode,
    *,
    seed: int = 0,
    draws: int = 1,
    misses: int | None = None,
) -> tuple[list[Decoded], int | None]:
    """``S = R * draws`` plans, grouped by row of keys, and ``misses`` for the next call.

    Deterministic for a seed.

    Args:
      draws: placements per row of keys; must be 1 for ``slice_cheapest``, which draws nothing.
      misses: see :meth:`WalkCase.draw`.

    Raises:
      InfeasibleError: not all required chips can be used, or no allowed chip can run an op.
    """
    if mode not in MODES:
        raise InvalidInputError(f"mode is {mode!r}, must be one of {', '.join(MODES)}.", field="mode")
    if draws > 1 and mode != "walk":
        raise InvalidInputError(f"draws is {draws}, must be 1: {mode} draws nothing.", field="draws")
    keys = zip(decisions.schedule_priority, decisions.fusion_priority, strict=True)
    plans: list[Decoded] = []
    for r, (schedule_priority, fusion_priority) in enumerate(keys):
        group, order = schedule(instance, schedule_priority, fusion_priority)
        if mode == "slice_cheapest":
            cheapest = cheapest_slicing(instance, order, group)
            plans.append(Decoded(cheapest, cheapest.expected_s == np.inf))
            continue
        case, rng = walk_case(instance, order, group), np.random.default_rng((seed, r))
        drawn = case.draw(decisions.walk_weights, decisions.walk_head, draws, rng, misses)
        if (drawn.placement < 0).any():
            raise InfeasibleError("no placement was found that uses the chips it must and may use.")
        misses = drawn.misses
        for placement, is_repaired, is_cut in zip(
            drawn.placement[:, case.units.unit_of_op], drawn.is_repaired, drawn.is_cut, strict=True
        ):
            plan = Candidate("policy: placement", placement, order, group)
            plans.append(Decoded(plan, bool(is_repaired), Walked(case, is_cut)))
    return plans, misses
