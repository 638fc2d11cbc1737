"""The policy as a method among its rivals: the same harness, the same samples, the same checks."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from tempfile import TemporaryDirectory

import numpy as np
from policy_rivals import POLICY_RIVALS
from policy_runs import Part, Row

import go_opt
from go_opt.agents.decoding.outputs import Outputs
from go_opt.agents.networks import PolicyConfig, initial_parameters
from go_opt.agents.policy.network import Policy, trainable
from go_opt.agents.policy.policy_file import load_policy
from go_opt.agents.training.finetune import FinetuneRequest, finetune, finetuning_settings
from go_opt.agents.training.problems.cases import Case, case
from go_opt.agents.training.problems.environment import Evaluations
from go_opt.agents.training.problems.lessons import Lesson
from go_opt.agents.training.problems.rollout import decide, play
from go_opt.bench.rivals import Limits, Outcome, Problem, Rival, Trial, compete
from go_opt.env import Target
from go_opt.env.evaluation import Plans
from go_opt.env.model.metrics import Fidelity, Metrics
from go_opt.model.graph import Graph
from go_opt.model.plan import Plan
from go_opt.solver.orders.instance import Instance

BATCH = 16  # samples of one lesson at a time, before the next lesson has its turn

Search = Callable[[Trial, int], None]


def policy_of(part: Part) -> Policy:
    """The policy of the file that ``part`` names."""
    return trainable(load_policy(part.policy))


def zero_shot(policy: Policy, lessons: Sequence[Lesson]) -> Search:
    """The policy's mean decisions, then draws, the lessons in turn; nothing is learned."""

    def search(trial: Trial, seed: int) -> None:
        known = case(trial.problem.graph, trial.problem.target)
        outputs, session = policy(known.features), Counted(trial)
        try_means(known, outputs, lessons, session)
        for turn, lesson in enumerate(itertools.cycle(lessons)):
            trial.check()
            few = replace(lesson, samples=int(min(BATCH, trial.left)), elites=1)
            play(known, outputs, few, session, int(np.random.default_rng((seed, turn)).integers(2**31)))

    return search


def finetuned(policy: Policy, lessons: Sequence[Lesson]) -> Search:
    """The policy's mean decisions, then finetuning with all samples that are left."""

    def search(trial: Trial, seed: int) -> None:
        graph, target = trial.problem.graph, trial.problem.target
        known, session = case(graph, target), Counted(trial)
        try_means(known, policy(known.features), lessons, session)
        trial.check()
        few = tuple(replace(lesson, samples=BATCH) for lesson in lessons)
        settings = replace(finetuning_settings(), lessons=few)
        request = FinetuneRequest(graph, target, policy, int(trial.left), seed, settings)
        with TemporaryDirectory() as folder:
            finetune(request, folder, session)

    return search


def from_scratch(lessons: Sequence[Lesson]) -> Search:
    """The same from parameters that know nothing, other ones for each seed."""
    config = PolicyConfig()

    def search(trial: Trial, seed: int) -> None:
        start = Policy(config, initial_parameters(config, seed))
        finetuned(start, lessons)(trial, seed)

    return search


def try_means(known: Case, outputs: Outputs, lessons: Sequence[Lesson], session: Counted) -> None:
    """Spend a sample on the mean decision of each lesson, while there are any."""
    for lesson in lessons:
        decoded = decide(known, outputs, lesson)
        session.evaluate(decoded.placement, decoded.order, decoded.fusion_group)


@dataclass(frozen=True, eq=False)
class Counted:
    """A trial as an environment, and its session.

    The last batch of a training may ask for more than are left: the rest is answered as
    invalid, which moves a last update alone, and nothing is drawn after that.
    """

    trial: Trial

    def open(self, graph: Graph, target: Target) -> Counted:
        return self

    def evaluate(self, placement: Plans, order: Plans, fusion_group: Plans) -> Evaluations:
        interval_s = self.trial.evaluate(placement, order, fusion_group)
        return Evaluations(interval_s, np.isfinite(interval_s))

    def close(self) -> None:
        """Nothing is held."""


def searched(search: Search | str, problem: Problem, evaluations: int, seed: int) -> Outcome:
    """What a search reaches, or the rival of that name."""
    rival = POLICY_RIVALS[search] if isinstance(search, str) else Rival("policy", search)
    return compete(rival, problem, Limits(evaluations=evaluations), seed)


def outcome_row(outcome: Outcome, evaluations: int) -> Row:
    """The line of a run: its best-so-far curve as the samples where it falls."""
    falls = [[point.evaluations, point.interval_s] for point in outcome.curve]
    return {"evaluations": evaluations, "falls": falls, "spent": outcome.evaluations}


def checked_row(
    problem: Problem, outcome: Outcome, evaluations: int, fidelity: Fidelity = "analytical"
) -> Row:
    """The line of a run whose best plan passed the verifier and costs what was reported."""
    row = outcome_row(outcome, evaluations)
    if outcome.plan is None:
        return row
    metrics = checked(problem.instance, outcome.plan, fidelity)
    assert math.isclose(metrics.interval_s, outcome.interval_s, rel_tol=1e-9)
    return row | {"streams": bool(metrics.stream_bytes.any()), "bottleneck": metrics.bottleneck}


def checked(instance: Instance, plan: Plan, fidelity: Fidelity = "analytical") -> Metrics:
    """What ``plan`` costs, if the verifier has nothing against it."""
    assert go_opt.verify(instance.graph, instance.target, plan) == []
    metrics = go_opt.evaluate(instance.graph, instance.target, plan, fidelity=fidelity)
    assert metrics.valid
    return metrics
