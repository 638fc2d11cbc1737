"""The learned policy among its rivals: the walk with zero weights, with the shipped ones, and finetuned.

A walk reads the cost tables, as its features describe loads, traffic and memory; it sees what a plan
costs through evaluations alone.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from go_opt.agents.decoding.walk_case import WalkCase
from go_opt.agents.training.problems.rollout import labels
from go_opt.agents.training.problems.settings import PLACEMENT
from go_opt.agents.training.updates.walk_learner import FINETUNING_RATE, HEAD_RATE, WalkLearner
from go_opt.bench.rivals.placement_search import evaluate_units, random_placements
from go_opt.bench.rivals.problem import Problem, unit_problem
from go_opt.bench.rivals.trial import Trial
from go_opt.search.shared.policies import shipped_policy
from go_opt.solver.walk.problem import walk_problem

RANDOM_SHARE: Final = 0.75  # of the samples, until a walk is valid


def policy_untrained(trial: Trial, seed: int) -> None:
    """Draws walks with weights of zero: the control of what is learned."""
    _walk(trial, seed, WalkLearner.start())


def policy(trial: Trial, seed: int) -> None:
    """Draws walks with the shipped weights: nothing is learned here."""
    _walk(trial, seed, WalkLearner.start(shipped_policy().walk_weights))


def policy_finetuned(trial: Trial, seed: int) -> None:
    """Starts as ``policy``, and learns from each batch of its own samples."""
    _walk(trial, seed, WalkLearner.start(shipped_policy().walk_weights), learns=True)


def walk_case_of(problem: Problem) -> WalkCase:
    """The default order and kernels of ``problem`` for a walk."""
    tables = problem.instance.tables
    along = walk_problem(tables, problem.order, problem.kernels)
    return WalkCase(unit_problem(problem), along, tables, problem.order, problem.is_adjacent)


def _walk(trial: Trial, seed: int, learner: WalkLearner, *, learns: bool = False) -> None:
    """Where memory leaves few plans, all walks may be invalid.

    Then every second one is untrained, and after the first batch most samples are drawn at random.
    """
    case, rng = walk_case_of(trial.problem), np.random.default_rng(seed)
    misses: int | None = 0
    random_share = 0.0
    while True:
        size = int(min(PLACEMENT.samples, trial.left))
        at_random = int(random_share * size)
        if at_random:
            evaluate_units(trial, case.units, random_placements(trial, case.units, rng, at_random))
        parameters = learner.parameters(trial.problem.graph.num_ops)
        drawn = case.draw(*parameters, size - at_random, rng, misses)
        interval_s = evaluate_units(trial, case.units, drawn.placement)
        if misses is not None:
            misses = None if np.isfinite(interval_s).any() else misses + len(interval_s)
        random_share = 0.0 if misses is None else RANDOM_SHARE
        best = labels(-np.log(interval_s), PLACEMENT.elites)
        if learns and len(best):
            gradient = case.gradient(*parameters, drawn.is_cut[best])
            learner = learner.stepped(gradient.weights, FINETUNING_RATE)
            learner = learner.with_head(HEAD_RATE * gradient.head / len(best))
