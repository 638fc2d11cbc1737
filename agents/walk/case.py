"""Placements that a walk draws for one graph on one target, made valid by FIX.

Axes: ``S`` samples, ``U`` units, ``M`` kernels, ``F`` features.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from go_opt.common.arrays import BoolArray, FloatArray, IntArray
from go_opt.solver import PlacementProblem, fix, fix_adjacent
from go_opt.solver.walk.problem import WalkProblem
from go_opt.solver.walk.walk import draw_walks


class Drawn(NamedTuple):
    """Walks and their placements. FIX is a part of the environment: the walk's own choice is the cuts."""

    is_cut: BoolArray  # [S, M]
    placement: IntArray  # [S, U]; -1 if FIX found none
    is_repaired: BoolArray  # [S] whether FIX moved a unit


@dataclass(frozen=True, eq=False)
class WalkCase:
    """The kernels of a graph, as the units of FIX and along the order of the walk."""

    units: PlacementProblem
    problem: WalkProblem
    is_adjacent: bool  # whether FIX must keep the adjacent rule

    @property
    def no_head(self) -> FloatArray:
        """[M] zeros."""
        return np.zeros(self.problem.num_kernels)

    def draw(
        self, weights: FloatArray, num_samples: int, rng: np.random.Generator, head: FloatArray | None = None
    ) -> Drawn:
        """``num_samples`` walks with ``weights`` [F] and ``head`` [M], zero by default.

        Raises:
          InfeasibleError: all chips must be used, but no placement does.
        """
        uniforms = rng.random((num_samples, self.problem.num_kernels))
        is_cut, chip = draw_walks(self.problem, weights, self.no_head if head is None else head, uniforms)
        proposal = np.empty((num_samples, self.units.num_units), dtype=np.int32)
        proposal[:, self.units.unit_of_op] = chip[:, self.problem.kernel_of]
        repair = fix_adjacent if self.is_adjacent else fix
        placement = repair(self.units, proposal, seed=int(rng.integers(2**31))).placement
        return Drawn(is_cut, placement, (placement != proposal).any(axis=1))
