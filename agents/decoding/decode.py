"""A policy's outputs for a graph, and its raw decisions as plans: kernels, an order, then a placement.

Fusion priorities determine kernels (:mod:`go_opt.env.kernels.fusion`), schedule priorities
their order (list scheduling; the ops of a kernel stay together), and one of the modes
places them on chips:

* ``slice_cheapest``: the exact slicer. It reads costs, so it must not be used if the reward
  is a black box. Falls back to greedy slicing if no slicing fits in memory.
* ``walk``: the walk along the order (:mod:`go_opt.solver.walk.walk`), made valid by FIX.

Axes: ``R`` rows of keys, ``S`` plans, ``N`` ops, ``M`` kernels, ``F`` features of the walk.

Where memory is short, learned weights may never find a plan that fits (they cut less the fuller the chip is,
and on WaveNets ever less). So until a walk fits by the model, every second walk is an untrained one.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Final, Literal, NamedTuple, get_args

import numpy as np

from go_opt.agents.inputs.features import NUM_EXPLORED
from go_opt.common.arrays import BoolArray, FloatArray, IntArray
from go_opt.env import CostTables, evaluate_batch
from go_opt.errors import InfeasibleError, InvalidInputError
from go_opt.model.plan import Candidate
from go_opt.solver import PlacementProblem, fix, place_adjacent, placement_problem
from go_opt.solver.orders.cheapest import cheapest_slicing
from go_opt.solver.orders.instance import OrderProblem
from go_opt.solver.orders.orders import schedule
from go_opt.solver.walk.walk import WalkProblem, draw_walks, score_walks, walk_problem


class Drawn(NamedTuple):
    """Walks and their placements. FIX is a part of the environment: the walk's own choice is the cuts."""

    is_cut: BoolArray  # [S, M]
    placement: IntArray  # [S, U]; -1 if FIX found none
    is_repaired: BoolArray  # [S] whether FIX moved a unit
    misses: int | None  # for the next draw: so many walks, of which none fits in memory


class WalkGradient(NamedTuple):
    """The log-probability of walks, and the sums of its derivatives."""

    log_prob: FloatArray  # [S]
    weights: FloatArray  # [F]
    head: FloatArray  # [N]


@dataclass(frozen=True, eq=False)
class WalkCase:
    """The kernels of a graph, as the units of FIX and along the order of the walk."""

    units: PlacementProblem
    problem: WalkProblem
    tables: CostTables
    order: IntArray  # [N]
    is_adjacent: bool  # whether FIX must keep the adjacent rule

    def draw(
        self,
        weights: FloatArray,
        head: FloatArray,
        num_samples: int,
        rng: np.random.Generator,
        misses: int | None = None,
    ) -> Drawn:
        """``num_samples`` walks with ``weights`` [F] and ``head`` [N]; a kernel has the mean of its ops.

        Args:
          misses: the number of walks before these, if none of them fits in memory: until one does, those
            after an odd number of walks are untrained. None: no walk is.

        Raises:
          InfeasibleError: all chips must be used, but no placement does.
        """
        uniforms = rng.random((num_samples, self.problem.num_kernels))
        seed = int(rng.integers(2**31))
        learned = self._placed(weights, head, uniforms, seed)
        if misses is None or not num_samples or (misses % 2 == 0 and self._fits(learned.placement[:1]).all()):
            return learned
        untrained = self._placed(np.zeros_like(weights), np.zeros_like(head), uniforms, seed)
        takes_turn = (misses + np.arange(num_samples)) % 2 == 1
        placement = np.where(takes_turn[:, None], untrained.placement, learned.placement)
        found = np.flatnonzero(self._fits(placement))
        takes_turn[found[0] + 1 if len(found) else num_samples :] = False
        parts = zip(untrained[:3], learned[:3], strict=True)
        is_cut, placement, is_repaired = (
            np.where(takes_turn.reshape((-1,) + (1,) * (a.ndim - 1)), a, b) for a, b in parts
        )
        return Drawn(is_cut, placement, is_repaired, None if len(found) else misses + num_samples)

    def _placed(self, weights: FloatArray, head: FloatArray, uniforms: FloatArray, seed: int) -> Drawn:
        """The walks of ``uniforms`` [S, M], repaired."""
        is_cut, chip = draw_walks(self.problem, weights, self._by_kernel(head), uniforms)
        proposal = np.empty((len(uniforms), self.units.num_units), dtype=np.int32)
        proposal[:, self.units.unit_of_op] = chip[:, self.problem.kernel_of]
        if self.is_adjacent:
            placement = place_adjacent(self.units, proposals=proposal, seed=seed).placement
        else:
            placement = fix(self.units, proposal, seed=seed).placement
        return Drawn(is_cut, placement, (placement != proposal).any(axis=1), None)

    def _fits(self, placement: IntArray) -> BoolArray:
        """[S] whether the activations of placements [S, U] fit in memory by the model."""
        of_ops = np.ascontiguousarray(placement[:, self.units.unit_of_op])
        fits: BoolArray = np.asarray((of_ops >= 0).all(axis=1))
        order, kernels = (np.tile(row, (int(fits.sum()), 1)) for row in (self.order, self.units.unit_of_op))
        fits[fits] = evaluate_batch(self.tables, of_ops[fits], order, kernels).fits
        return fits

    def gradient(self, weights: FloatArray, head: FloatArray, is_cut: BoolArray) -> WalkGradient:
        """The exact log-probability of walks with cuts ``is_cut`` [S, M], and its gradient."""
        scores = score_walks(self.problem, weights, self._by_kernel(head), is_cut)
        by_kernel = scores.by_head.sum(axis=0) / self._num_ops
        return WalkGradient(scores.log_prob, scores.by_weights.sum(axis=0), by_kernel[self.problem.kernel_of])

    @cached_property
    def _num_ops(self) -> FloatArray:
        """[M] of each kernel."""
        return np.bincount(self.problem.kernel_of).astype(np.float64)

    def _by_kernel(self, head: FloatArray) -> FloatArray:
        return np.bincount(self.problem.kernel_of, weights=head) / self._num_ops


def walk_case(on: OrderProblem, order: IntArray, fusion_group: IntArray) -> WalkCase:
    """The kernels of ``fusion_group`` [N] along ``order`` [N] for a walk."""
    units = placement_problem(on.graph, on.target, fusion_group)
    along = walk_problem(on.tables, order, fusion_group)
    return WalkCase(units, along, on.tables, order, on.is_adjacent)


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
