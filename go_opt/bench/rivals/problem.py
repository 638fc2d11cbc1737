"""What every rival is given: a graph on a target, what may be decided, and one evaluator.

Axes: ``B`` plans, ``N`` ops.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from go_opt.common.arrays import FloatArray, IntArray
from go_opt.env import BatchMetrics, Target, evaluate_batch
from go_opt.env.evaluation import Evaluate, Plans
from go_opt.model.graph import Graph
from go_opt.model.plan import Plan
from go_opt.solver.copies.relayed_terms import relay_copies, terms_with_copies
from go_opt.solver.copies.relays import needed_relays, relays_of_arrays
from go_opt.solver.orders.instance import Instance, instance
from go_opt.solver.problem.passing import Passing

Decide = Literal["placement", "all"]


@dataclass(frozen=True, eq=False)
class Problem:
    """A graph on a target, under the rules that the portfolio has too."""

    instance: Instance
    passing: Passing
    decide: Decide
    kernels: IntArray  # [N] the default ones: greedy fusion, or one per op
    evaluate: Evaluate | None = None  # what says how long plans take; None: the analytical model

    @property
    def graph(self) -> Graph:
        return self.instance.graph

    @property
    def target(self) -> Target:
        return self.instance.target

    @property
    def order(self) -> IntArray:
        """[N] the default order."""
        return self.instance.order

    @property
    def is_adjacent(self) -> bool:
        """Whether no tensor may pass a chip."""
        return self.passing == "adjacent"

    def interval_s(self, placement: Plans, order: Plans, fusion_group: Plans) -> FloatArray:
        """[B] of plans; infinite where activations do not fit."""
        if self.evaluate is not None:
            return self.evaluate(placement, order, fusion_group)
        if self.passing != "relayed":
            return _interval_s(evaluate_batch(self.instance.tables, placement, order, fusion_group))
        terms = [self._relayed(*plan) for plan in zip(placement, order, fusion_group, strict=True)]
        return np.array([_interval_s(of_one)[0] for of_one in terms])

    def _relayed(self, placement: IntArray, order: IntArray, fusion_group: IntArray) -> BatchMetrics:
        tables = self.instance.tables
        copies = relay_copies(tables, placement, self.target.constraints.triangle)
        return terms_with_copies(tables, placement, order, fusion_group, copies)

    def plan(
        self,
        placement: IntArray,
        order: IntArray,
        fusion_group: IntArray,
        rival: str,
    ) -> Plan:
        """The plan of one placement, with its relays."""
        plan = Plan.create(
            self.graph,
            self.target.source,
            self.target.fingerprint,
            placement=placement,
            order=order,
            fusion_group=fusion_group,
            provenance=rival,
        )
        if self.passing != "relayed":
            return plan
        relays = needed_relays(self.instance.tables, placement, self.target.constraints.triangle)
        return replace(plan, relays=relays_of_arrays(self.graph, *relays))


def pose(
    graph: Graph,
    target: Target,
    *,
    relays: bool,
    decide: Decide = "all",
    evaluate: Evaluate | None = None,
) -> Problem:
    """The problem of ``graph`` on ``target``; relays need a triangle rule to be of use.

    Args:
      evaluate: tells rivals how long plans take, in place of the analytical model: hardware, say.
    """
    case = instance(graph, target)
    passing: Passing = "relayed" if relays else "adjacent"
    if target.constraints.triangle == "off":
        passing = "free"
    kernels = case.order if decide == "placement" else case.fusion_group
    return Problem(case, passing, decide, kernels, evaluate)


def _interval_s(terms: BatchMetrics) -> FloatArray:
    return np.where(terms.fits, terms.interval_s, np.inf)
