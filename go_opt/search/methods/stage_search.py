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
from go_opt.env.copies.stage_tables import stage_tables
from go_opt.env.copies.stages import Stages, stages_of, stages_of_sizes
from go_opt.model.plan import Plan
from go_opt.search.methods.events import Proposal, SearchView
from go_opt.solver.copies.relays import relayed_terms
from go_opt.solver.problem.replica_allocation import allocated_chips

_ALONE: Final = 1


class StageRing:
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

    def as_it_stands(self, method: str) -> Proposal:
        """The plan on this ring, on the target's chips."""
        (first, size), placement = self.stages, self.placement
        plan = first[placement], self.plan.order, self.plan.fusion_group
        if _is_plain(self.stages):
            return Proposal(method, *plan)
        used = np.unique(placement)
        forwards = tuple(first[used[self.forwards[used]]].tolist())
        return Proposal(method, *plan, replication=size[placement], forwards=forwards)

    def allotted(self) -> StageRing:
        """The same stages, of as many chips each as makes the slowest of them the fastest."""
        terms, num_used = self._terms(), int(self.placement.max()) + 1
        work_s = (terms.compute_s[0] * self.stages.size)[:num_used]  # of each stage on one chip
        # Below what the busiest link takes more chips are of no use.
        sizes = allocated_chips(work_s, self.search.target.num_chips, float(terms.link_s[0].max()))
        return StageRing(
            self.search, self.plan, stages_of_sizes(sizes), self.placement, self.forwards[:num_used]
        )

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
