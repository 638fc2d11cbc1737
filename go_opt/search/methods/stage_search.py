"""Searching among plans with the stages of one plan: its stages are the chips of a ring.

Methods that improve a placement know nothing of replication. They are shown a ring with a chip
for each stage that computes as fast as the stage's chips together
(:mod:`go_opt.env.copies.stage_tables`), and what they propose there is a plan with those stages. A plan
without replication has a stage on every chip, and the ring is the target's own.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from go_opt.common.arrays import BoolArray, IntArray
from go_opt.env import BatchMetrics
from go_opt.env.copies.expanded_tables import Copies
from go_opt.env.copies.stage_tables import stage_tables
from go_opt.env.copies.stages import Stages, stages_of, stages_of_sizes
from go_opt.model.plan import Plan
from go_opt.search.methods.events import Proposal, SearchView
from go_opt.solver import PlacementProblem, placement_problem
from go_opt.solver.constraints.problem import problem_under
from go_opt.solver.copies.relayed_terms import relayed_terms
from go_opt.solver.problem.allotment import allotted_chips

_ALONE: Final = 1


class StageSearch:
    """Placements on the ring of a plan's stages, and the way back."""

    def __init__(
        self,
        search: SearchView,
        plan: Plan,
        stages: Stages | None = None,
        placement: IntArray | None = None,
        forwards: BoolArray | None = None,
    ) -> None:
        """The plan's own ring, or that of other ``stages`` with its ops on ``placement`` [N].

        Args:
          forwards: [S] whether a stage forwards the weights it streams.
        """
        self.search, self.plan = search, plan
        own = stages_of(plan.placement, plan.replication)
        self.stages = _with_free_chips(own if stages is None else stages, search.target.num_chips)
        self.placement = own.number(plan.placement) if placement is None else placement
        forwards = np.isin(own.first_chip, plan.forwards) if forwards is None else forwards
        self.forwards = np.pad(forwards, (0, len(self.stages.size) - len(forwards))) & (self.stages.size > 1)
        self.tables = search.tables
        if not _is_plain(self.stages):
            self.tables = stage_tables(search.tables, self.stages, self.forwards)

    def units(self) -> PlacementProblem:
        """Kernels of the plan on the ring, those that must share a chip as one."""
        search, group = self.search, self.plan.fusion_group
        if search.asked.constraints:
            problem = problem_under(search.asked, group).problem
        else:
            problem = placement_problem(search.graph, search.target, group)
        if _is_plain(self.stages):
            return problem
        chip_kind = problem.chip_kind[self.stages.first_chip]
        return problem._replace(num_chips=len(chip_kind), chip_kind=chip_kind)

    def proposal(
        self,
        method: str,
        placement: IntArray,
        order: IntArray,
        fusion_group: IntArray,
        copies: Copies | None = None,
    ) -> Proposal:
        """What a placement, and copies, on the ring are on the target's chips."""
        first, size = self.stages
        if copies is not None:
            copies = copies._replace(relay_chip=first[copies.relay_chip], clone_chip=first[copies.clone_chip])
        if _is_plain(self.stages):
            return Proposal(method, first[placement], order, fusion_group, copies)
        used = np.unique(placement)
        forwards = tuple(first[used[self.forwards[used]]].tolist())
        return Proposal(method, first[placement], order, fusion_group, copies, size[placement], forwards)

    def as_it_stands(self, method: str) -> Proposal:
        """The plan on this ring."""
        return self.proposal(method, self.placement, self.plan.order, self.plan.fusion_group)

    def placed(self, placement: IntArray) -> StageSearch:
        """The same ring with the ops on ``placement`` [N]."""
        return StageSearch(self.search, self.plan, self.stages, placement, self.forwards)

    def allotted(self) -> StageSearch:
        """The same stages, of as many chips each as makes the slowest of them the fastest."""
        terms, num_used = self._terms(), int(self.placement.max()) + 1
        work_s = (terms.compute_s[0] * self.stages.size)[:num_used]  # of each stage on one chip
        # Below what the busiest link takes more chips are of no use.
        sizes = allotted_chips(work_s, self.search.target.num_chips, float(terms.link_s[0].max()))
        return StageSearch(
            self.search, self.plan, stages_of_sizes(sizes), self.placement, self.forwards[:num_used]
        )

    def varied(self, rng: np.random.Generator) -> StageSearch:
        """A ring one step away: a chip moves to another stage, two stages merge, or one is split."""
        num_used, size = int(self.placement.max()) + 1, self.stages.size.astype(np.int64)
        placement, forwards = self.placement.copy(), self.forwards[:num_used]
        stage, other = int(rng.integers(num_used)), int(rng.integers(num_used))
        what = rng.integers(3)
        if what == 0 and num_used > 1:
            left = min(stage, num_used - 2)
            size[left] += size[left + 1]
            size, forwards = np.delete(size, left + 1), np.delete(forwards, left + 1)
            placement[placement > left] -= 1
        elif what == 1 and size[stage] > 1 and len(later := self._later_half(stage)):
            size = np.insert(size, stage + 1, size[stage] // 2)
            forwards = np.insert(forwards, stage + 1, forwards[stage])
            size[stage] -= size[stage + 1]
            placement[placement > stage] += 1
            placement[later] = stage + 1
        elif size[stage] > 1:
            size[stage] -= 1
            size[other] += 1
        sizes = size[: int(placement.max()) + 1]
        return StageSearch(self.search, self.plan, stages_of_sizes(sizes), placement, forwards)

    def _later_half(self, stage: int) -> IntArray:
        """Ops of ``stage`` behind the middle of its work, whole kernels along the plan's order."""
        order, group = self.plan.order, self.plan.fusion_group
        here = order[self.placement[order] == stage]
        kernel = np.concatenate([[0], np.cumsum(group[here][1:] != group[here][:-1])])
        work = np.cumsum(self.tables.kernel_floor_s().min(axis=0)[here])
        middle = kernel[np.searchsorted(work, work[-1] / 2)]
        later: IntArray = here[kernel >= max(1, middle)]
        return later

    def _terms(self) -> BatchMetrics:
        triangle = self.search.target.constraints.triangle if self.search.passing == "relayed" else "off"
        plan = (self.placement, self.plan.order, self.plan.fusion_group)
        return relayed_terms(self.tables, *plan, triangle)


def _is_plain(stages: Stages) -> bool:
    return bool((stages.size == _ALONE).all())


def _with_free_chips(stages: Stages, num_chips: int) -> Stages:
    """Chips behind the last stage, each a stage of its own."""
    free = num_chips - int(stages.size.sum())
    return stages_of_sizes(np.concatenate([stages.size, np.full(free, _ALONE)]))
