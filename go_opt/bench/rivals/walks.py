"""The learned policy among its rivals: the walk with zero weights, with the shipped ones, and finetuned.

A walk reads the cost tables, as its features describe loads, traffic and memory; it sees what a plan
costs through evaluations alone.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from go_opt.agents.walk.case import WalkCase
from go_opt.agents.walk.learning import BATCH, WalkLearner
from go_opt.agents.walk.walk_file import shipped_walk
from go_opt.bench.rivals.placement_search import evaluate_units, random_placements
from go_opt.bench.rivals.problem import Problem, unit_problem
from go_opt.bench.rivals.trial import Trial
from go_opt.solver.walk.problem import walk_problem

# Tuned on three validation and six training graphs, five seeds: after 600 samples the geometric mean of
# greedy / best is 3.22 with both, 3.17 with the weights alone, 3.03 with neither.
WEIGHTS_RATE: Final = 0.05
HEAD_RATE: Final = 1.0
RANDOM_SHARE: Final = 0.75  # of the samples, until a walk is valid


def policy_untrained(trial: Trial, seed: int) -> None:
    """Draws walks with weights of zero: the control of what is learned."""
    _walk(trial, seed, WalkLearner.start())


def policy(trial: Trial, seed: int) -> None:
    """Draws walks with the shipped weights: nothing is learned here."""
    _walk(trial, seed, WalkLearner.start(shipped_walk().weights))


def policy_finetuned(trial: Trial, seed: int) -> None:
    """Starts as ``policy``, and learns from each batch of its own samples."""
    _walk(trial, seed, WalkLearner.start(shipped_walk().weights), learns=True)


def walk_case(problem: Problem) -> WalkCase:
    """The default order and kernels of ``problem`` for a walk."""
    along = walk_problem(problem.instance.tables, problem.order, problem.kernels)
    return WalkCase(unit_problem(problem), along, problem.is_adjacent)


def _walk(trial: Trial, seed: int, learner: WalkLearner, *, learns: bool = False) -> None:
    """Where memory leaves few plans, all walks may be invalid: then most samples are drawn at random."""
    case, rng = walk_case(trial.problem), np.random.default_rng(seed)
    has_plan, random_share = False, 0.0
    while True:
        size = int(min(BATCH, trial.left))
        at_random = int(random_share * size)
        if at_random:
            evaluate_units(trial, case.units, random_placements(trial, case.units, rng, at_random))
        drawn = case.draw(learner.weights, size - at_random, rng, learner.head)
        interval_s = evaluate_units(trial, case.units, drawn.placement)
        has_plan = has_plan or bool(np.isfinite(interval_s).any())
        random_share = 0.0 if has_plan else RANDOM_SHARE
        if learns:
            learner = learner.learn(case, drawn.is_cut, interval_s, WEIGHTS_RATE, HEAD_RATE)
