"""Placements that a walk draws for one graph on one target, made valid by FIX.

Where memory is short, learned weights may never find a plan that fits (they cut less the fuller the chip is,
and on WaveNets ever less). So until a walk fits by the model, every second walk is an untrained one.

Axes: ``S`` samples, ``N`` ops, ``U`` units, ``M`` kernels, ``F`` features.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from go_opt.common.arrays import BoolArray, FloatArray, IntArray
from go_opt.env import CostTables, evaluate_batch
from go_opt.solver import PlacementProblem, fix, place_adjacent, placement_problem
from go_opt.solver.orders.instance import OrderProblem
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
