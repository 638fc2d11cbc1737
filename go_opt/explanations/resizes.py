"""One chip more for the stage that binds: a free one, or one of another stage that has several."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from go_opt.env import Target
from go_opt.env.copies.stages import Stages, stages_of, stages_of_sizes
from go_opt.explanations.moves import Cost, plan_cost
from go_opt.model.graph import Graph
from go_opt.model.plan import Plan
from go_opt.solver import verify
from go_opt.solver.problem.user_constraints import UserConstraint


@dataclass(frozen=True)
class Resize:
    """A stage with one more chip."""

    chip: int  # the first of the stage
    giver: int | None  # first chip of the stage that has one fewer then; None: a free chip
    cost: Cost  # of the plan then


def best_resize(
    graph: Graph, target: Target, plan: Plan, chip: int, constraints: Sequence[UserConstraint] = ()
) -> Resize | None:
    """The best legal way to one more chip for the stage that starts at ``chip``; None where there is none.

    Args:
      plan: a valid one; ops keep their kernels and their places among the stages.
    """
    if not (plan.placement == chip).any():
        return None  # results only pass it
    stages = stages_of(plan.placement, plan.replication)
    stage = int(np.searchsorted(stages.first_chip, chip))
    tried = []
    for giver, sizes in _sizes(stages, stage, target.num_chips):
        resized = _resized(plan, stages, stages_of_sizes(sizes))
        cost, excess = plan_cost(graph, target, resized)
        if not excess:
            first = None if giver is None else int(stages.first_chip[giver])
            tried.append((Resize(chip, first, cost), resized))
    tried.sort(key=lambda pair: pair[0].cost.interval_s)
    legal = (resize for resize, resized in tried if not verify(graph, target, resized, constraints))
    return next(legal, None)


def _sizes(stages: Stages, stage: int, num_chips: int) -> Iterator[tuple[int | None, np.ndarray]]:
    """Who gives a chip, and the chips of every stage then."""
    grown = stages.size.copy()
    grown[stage] += 1
    if grown.sum() <= num_chips:
        yield None, grown
        return
    for giver in np.flatnonzero(stages.size > 1).tolist():
        if giver != stage:
            sizes = grown.copy()
            sizes[giver] -= 1
            yield giver, sizes


def _resized(plan: Plan, before: Stages, after: Stages) -> Plan:
    """The plan with its stages on other chips."""
    chip_of = dict(zip(before.first_chip.tolist(), after.first_chip.tolist(), strict=True))
    stage_of_op = before.number(plan.placement)
    return replace(
        plan,
        placement=after.first_chip[stage_of_op],
        replication=after.size[stage_of_op],
        relays=tuple(replace(relay, chips=tuple(chip_of[d] for d in relay.chips)) for relay in plan.relays),
        clones=tuple(replace(clone, chip=chip_of[clone.chip]) for clone in plan.clones),
        forwards=tuple(chip_of[chip] for chip in plan.forwards),
    )
