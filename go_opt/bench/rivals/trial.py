"""A trial runs one rival on one problem, counts and times every plan, and keeps the best one.

A plan counts only if it passes the verifier. A late plan counts only if it is the first, so
that every rival has an answer. The curve gives the time of each plan.

The input of every rival is a problem: a graph on a target, the open decisions, and one evaluator.
Axes: ``B`` plans, ``N`` ops.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

import numpy as np

from go_opt.common.arrays import FloatArray, IntArray
from go_opt.env import BatchMetrics, Target, evaluate_batch
from go_opt.env.evaluation import Evaluate, Plans
from go_opt.errors import InvalidInputError
from go_opt.model.graph import Graph
from go_opt.model.plan import Candidate, Plan
from go_opt.solver import PlacementProblem, placement_problem
from go_opt.solver.copies.relays import needed_relays, relayed_terms, relays_of_arrays
from go_opt.solver.orders.instance import OrderProblem, instance
from go_opt.solver.problem.forwarding_mode import ForwardingMode
from go_opt.solver.problem.problem import NO_SKIP_OFF, TRIANGLE_OFF
from go_opt.solver.verify.verifier import verify

Decide = Literal["placement", "all"]


@dataclass(frozen=True, eq=False)
class Problem:
    """A graph on a target, with the same rules as for the portfolio."""

    instance: OrderProblem
    forwarding: ForwardingMode
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
        return self.forwarding == "adjacent"

    def interval_s(self, placement: Plans, order: Plans, fusion_group: Plans) -> FloatArray:
        """[B] intervals of plans; infinite where activations do not fit."""
        if self.evaluate is not None:
            return self.evaluate(placement, order, fusion_group)
        if self.forwarding != "relayed":
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
        if self.forwarding != "relayed":
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
    forwarding: ForwardingMode = "relayed" if relays else "adjacent"
    if target.constraints.triangle == "off":
        forwarding = "free"
    kernels = case.order if decide == "placement" else case.fusion_group
    return Problem(case, forwarding, decide, kernels)


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


class Point(NamedTuple):
    """A better plan: when it was found and its interval."""

    evaluations: int  # so far, this one included
    elapsed_s: float
    interval_s: float


@dataclass(frozen=True)
class Limits:
    """The limits of a rival; the first one reached ends it."""

    budget_s: float = math.inf
    evaluations: int | None = None

    def __post_init__(self) -> None:
        if self.evaluations is None and math.isinf(self.budget_s):
            raise InvalidInputError("a rival needs a budget or a number of evaluations.", field="limits")


class SpentError(Exception):
    """The limits are spent; raised in the rival, caught by :func:`compete`."""


@dataclass(frozen=True, eq=False)
class Outcome:
    """The result of a rival."""

    plan: Plan | None
    interval_s: float  # infinite without a plan
    curve: tuple[Point, ...]  # every better plan, in the order found
    evaluations: int
    wall_s: float
    bound_s: float  # proven by the rival itself; 0 if none
    notes: tuple[str, ...]  # remarks of the rival: coarsened, gave up …


class Trial:
    """Gives one rival access to the evaluator."""

    def __init__(
        self, problem: Problem, limits: Limits, rival: str, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.problem, self.limits, self.rival = problem, limits, rival
        self.evaluations = 0
        self.best: Plan | None = None
        self.bound_s = 0.0
        self.notes: list[str] = []
        self._curve: list[Point] = []
        self._clock = clock
        self._started_s = clock()

    @property
    def best_s(self) -> float:
        """Interval of the best plan; infinite before the first plan."""
        return self._curve[-1].interval_s if self._curve else math.inf

    @property
    def elapsed_s(self) -> float:
        return self._clock() - self._started_s

    @property
    def left_s(self) -> float:
        """Seconds left; infinite if only evaluations are limited."""
        return self.limits.budget_s - self.elapsed_s

    @property
    def left(self) -> float:
        """Evaluations left; infinite if only time is limited."""
        limit = self.limits.evaluations
        return math.inf if limit is None else limit - self.evaluations

    @property
    def is_spent(self) -> bool:
        """Whether a limit is reached; the time limit always allows one evaluation."""
        return self.left <= 0 or (self.left_s <= 0 and self.evaluations > 0)

    def __call__(self, placement: Plans, order: Plans, fusion_group: Plans) -> FloatArray:
        """[B] intervals [s] of the plans, infinite where a plan is invalid.

        Raises:
          SpentError: the limits are spent, before the evaluation or after it.
        """
        self.check()
        interval_s = self.evaluate(placement, order, fusion_group)
        self.check()
        return interval_s

    def evaluate(self, placement: Plans, order: Plans, fusion_group: Plans) -> FloatArray:
        """[B] as a call, but without SpentError: infinite for plans beyond the last evaluation."""
        taken = int(min(len(placement), self.left))
        interval_s = np.full(len(placement), math.inf)
        if taken == 0:
            return interval_s
        interval_s[:taken] = self.problem.interval_s(placement[:taken], order[:taken], fusion_group[:taken])
        elapsed_s = self.elapsed_s
        for i in range(taken):
            self.evaluations += 1
            is_late = elapsed_s > self.limits.budget_s and self.best is not None
            if interval_s[i] >= self.best_s or is_late:
                continue
            plan = self.problem.plan(placement[i], order[i], fusion_group[i], self.rival)
            if verify(self.problem.graph, self.problem.target, plan):
                interval_s[i] = math.inf
                continue
            self.best = plan
            self._curve.append(Point(self.evaluations, elapsed_s, float(interval_s[i])))
        return interval_s

    def one(self, placement: IntArray, order: IntArray, fusion_group: IntArray) -> float:
        """Interval [s] of one plan ([N] each)."""
        return float(self(placement[None], order[None], fusion_group[None])[0])

    def count_miss(self) -> None:
        """Count an attempt that found no plan as one evaluation."""
        self.check()
        self.evaluations += 1
        self.check()

    def check(self) -> None:
        """Raise :class:`SpentError` if a limit is reached."""
        if self.is_spent:
            raise SpentError

    def outcome(self) -> Outcome:
        """The result so far."""
        return Outcome(
            self.best,
            self.best_s,
            tuple(self._curve),
            self.evaluations,
            self.elapsed_s,
            self.bound_s,
            tuple(self.notes),
        )


Search = Callable[[Trial, int], None]  # runs until the trial is spent; the int is the seed


@dataclass(frozen=True)
class Rival:
    """A rival and its search function."""

    name: str
    search: Search


def compete(
    rival: Rival,
    problem: Problem,
    limits: Limits,
    seed: int,
    clock: Callable[[], float] = time.monotonic,
) -> Outcome:
    """The outcome of ``rival`` on ``problem`` within ``limits``."""
    trial = Trial(problem, limits, rival.name, clock)
    with suppress(SpentError):
        rival.search(trial, seed)
    return trial.outcome()
