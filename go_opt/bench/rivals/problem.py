"""The input of every rival: a graph on a target, the open decisions, and one evaluator.

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
from go_opt.model.plan import Candidate, Plan
from go_opt.solver import PlacementProblem, placement_problem
from go_opt.solver.copies.relays import needed_relays, relayed_terms, relays_of_arrays
from go_opt.solver.orders.instance import OrderProblem, instance
from go_opt.solver.problem.forwarding_mode import ForwardingMode
from go_opt.solver.problem.problem import NO_SKIP_OFF, TRIANGLE_OFF

Decide = Literal["placement", "all"]


@dataclass(frozen=True, eq=False)
class Problem:
    """A graph on a target, with the same rules as for the portfolio."""

    instance: OrderProblem
    passing: ForwardingMode
    decide: Decide
    kernels: IntArray  # [N] the default ones: greedy fusion, or one per op
    evaluate: Evaluate | None = None  # gives the intervals of plans; None: the analytical model

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
        """[B] intervals of plans; infinite where activations do not fit."""
        if self.evaluate is not None:
            return self.evaluate(placement, order, fusion_group)
        if self.passing != "relayed":
            return _interval_s(evaluate_batch(self.instance.tables, placement, order, fusion_group))
        terms = [self._relayed(*plan) for plan in zip(placement, order, fusion_group, strict=True)]
        return np.array([_interval_s(of_one)[0] for of_one in terms])

    def _relayed(self, placement: IntArray, order: IntArray, fusion_group: IntArray) -> BatchMetrics:
        triangle = self.target.constraints.triangle
        return relayed_terms(self.instance.tables, placement, order, fusion_group, triangle)

    def plan(
        self,
        placement: IntArray,
        order: IntArray,
        fusion_group: IntArray,
        rival: str,
    ) -> Plan:
        """The plan of one placement, with its relays."""
        plan = Candidate(rival, placement, order, fusion_group).plan(self.graph, self.target)
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
) -> Problem:
    """The problem of ``graph`` on ``target``; relays need a triangle rule to be of use."""
    case = instance(graph, target)
    passing: ForwardingMode = "relayed" if relays else "adjacent"
    if target.constraints.triangle == "off":
        passing = "free"
    kernels = case.order if decide == "placement" else case.fusion_group
    return Problem(case, passing, decide, kernels)


def _interval_s(terms: BatchMetrics) -> FloatArray:
    return np.where(terms.fits, terms.interval_s, np.inf)


def unit_problem(problem: Problem, unit_of_op: IntArray | None = None) -> PlacementProblem:
    """The default kernels, or units of whole kernels, with the rules that the rival itself must keep.

    If tensors may pass chips, the triangle rule is off, and empty chips are removed afterwards.
    """
    groups = problem.kernels if unit_of_op is None else unit_of_op
    units = placement_problem(problem.graph, problem.target, groups)
    if problem.is_adjacent:
        return units
    return units._replace(triangle=TRIANGLE_OFF, no_skip=NO_SKIP_OFF)
