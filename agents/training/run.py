"""The definition of a training run, its progress reports, and its result."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import jax
import numpy as np

from go_opt.agents.decoding.decode import neutral_outputs
from go_opt.agents.inputs.padding import Bucket
from go_opt.agents.policy.network import Policy
from go_opt.agents.training.checkpoint import (
    Checkpoint,
    from_arrays,
    load_checkpoint,
    save_checkpoint,
    to_arrays,
)
from go_opt.agents.training.metric_log import MetricLog
from go_opt.agents.training.problems.cases import Case
from go_opt.agents.training.problems.environment import Environment, Session, Sessions
from go_opt.agents.training.problems.rollout import Lesson, Settings, play
from go_opt.agents.training.updates.learner import Learner, LearnerState, Step, take_step
from go_opt.agents.training.updates.walk_learner import WalkLearner
from go_opt.errors import EnvironmentFailedError, InvalidInputError
from go_opt.model.plan import Candidate


@dataclass(frozen=True, eq=False)
class Job:
    """One run of training. The same job gives the same policy, interrupted or not."""

    request: dict[str, Any]  # JSON that tells this job from others; a folder goes on with its own alone
    settings: Settings
    policy: Policy  # to start from
    draw: Callable[[int], tuple[list[Case], Bucket]]  # the graphs of a step, from its number alone
    environment: Environment
    samples: int  # evaluations, validation left out; rounded up to whole steps
    seed: int
    validation: Sequence[Case] = ()  # with some, the policy kept is the best on them; else the last
    validate_every: int = 100  # steps
    workers: int = 1  # threads that play the graphs of a step

    @property
    def samples_per_step(self) -> int:
        """Evaluations of a step, of all hosts."""
        return self.settings.graphs_per_step * self.settings.samples_per_graph

    @property
    def steps(self) -> int:
        """Steps that take at least so many samples."""
        return math.ceil(self.samples / self.samples_per_step)


@dataclass(frozen=True)
class Progress:
    """The progress of a run, after each step."""

    step: int
    steps: int
    samples: int  # evaluations so far, validation left out
    reward: float  # mean of the step, log times faster than greedy
    best_interval_s: float  # of any plan so far
    score: float | None  # last validation
    best_score: float | None
    samples_per_s: float
    left_s: float
    checkpoint_step: int  # what survives if everything stops now


@dataclass(frozen=True, eq=False)
class Trained:
    """The result of a run."""

    policy: Policy  # the best on validation, else the last
    best_plan: Candidate | None  # the fastest met, of any graph: of use where there is only one
    step: int
    steps: int
    samples: int
    best_score: float | None

    @property
    def is_complete(self) -> bool:
        """False where the run was stopped before its last step."""
        return self.step == self.steps


PROPOSALS: Final = 16
ROUNDS: Final = 3  # the mean of whose bests is the score
# Counted for a plan that is not valid: -5 would outweigh all the other graphs.
LEAST_REWARD: Final = -1.0


@dataclass(frozen=True)
class Score:
    """Log speed-up over the greedy plan of the best of ``PROPOSALS``, the mean of ``ROUNDS``."""

    by_graph: dict[str, dict[str, float]]  # lesson → graph → log speed-up

    @property
    def by_lesson(self) -> dict[str, float]:
        """Means over graphs."""
        return {lesson: float(np.mean(list(graphs.values()))) for lesson, graphs in self.by_graph.items()}

    @property
    def mean(self) -> float:
        """Of all lessons."""
        return float(np.mean(list(self.by_lesson.values())))

    def metrics(self) -> dict[str, float]:
        """By name, for the log."""
        by_graph = {
            f"validation/{lesson}/{graph}": value
            for lesson, graphs in self.by_graph.items()
            for graph, value in graphs.items()
        }
        return (
            {"validation": self.mean} | {f"validation/{k}": v for k, v in self.by_lesson.items()} | by_graph
        )


def validate(
    policy: Policy, cases: Sequence[Case], sessions: Sequence[Session], lessons: Sequence[Lesson], seed: int
) -> Score:
    """The score of ``policy``; the same for the same ``seed``."""
    by_graph: dict[str, dict[str, float]] = {lesson.name: {} for lesson in lessons}
    asks_network = any(lesson.draws_keys for lesson in lessons)
    for case, session in zip(cases, sessions, strict=True):
        no_head = np.zeros(case.instance.graph.num_ops)
        outputs = policy(case.features) if asks_network else neutral_outputs(policy.walk_weights, no_head)
        for lesson in lessons:
            batch = replace(lesson, samples=PROPOSALS)
            best = [
                play(case, outputs, batch, session, ROUNDS * seed + i, misses=0).reward.max()
                for i in range(ROUNDS)
            ]
            by_graph[lesson.name][case.instance.graph.name] = float(np.maximum(best, LEAST_REWARD).mean())
    return Score(by_graph)


CHECKPOINT_EVERY_S: Final = 20.0
METHOD: Final = "policy: finetuned"  # that has found the best plan


@dataclass(frozen=True, eq=False)
class RunState:
    """A run between two steps."""

    learner: LearnerState
    step: int = 0
    samples: int = 0
    score: float | None = None
    best_score: float | None = None
    best_policy: Policy | None = None
    best_plan: Candidate | None = None


def save_state(job: Job, state: RunState, folder: str | Path) -> None:
    arrays = to_arrays("parameters", state.learner.parameters)
    arrays |= to_arrays("optimizer", state.learner.optimizer)
    walk = state.learner.walk
    arrays |= {f"walk/{name}": getattr(walk, name) for name in ("weights", "mean", "square")}
    if walk.head is not None:
        arrays["walk/head"] = walk.head
    best = state.best_policy
    if best is not None:
        arrays |= to_arrays("best", best.parameters) | {"best walk": best.walk_weights}
    plan = state.best_plan
    if plan is not None:
        arrays |= {
            "plan/placement": plan.placement,
            "plan/order": plan.order,
            "plan/fusion": plan.fusion_group,
        }
    progress = {
        "step": state.step,
        "walk_updates": walk.updates,
        "samples": state.samples,
        "score": state.score,
        "best_score": state.best_score,
        "best_interval_s": None if plan is None else plan.expected_s,
    }
    save_checkpoint(folder, Checkpoint(job.request, progress, arrays))


def resumed(job: Job, learner: Learner, folder: str | Path) -> RunState:
    """The state in ``folder``, or that of a fresh run."""
    fresh = learner.start(job.policy)
    found = load_checkpoint(folder)
    if found is None:
        return RunState(fresh)
    _check_same(job.request, found.request, folder)
    arrays = found.arrays
    progress = found.progress
    plan = None
    if progress["best_interval_s"] is not None:
        rows = (np.array(arrays[f"plan/{name}"]) for name in ("placement", "order", "fusion"))
        placement, order, group = rows
        plan = Candidate(METHOD, placement, order, group, expected_s=progress["best_interval_s"])
    best = None
    if progress["best_score"] is not None:
        parameters = from_arrays("best", arrays, job.policy.parameters)
        best = Policy(job.policy.config, parameters, np.array(arrays["best walk"]))
    weights, mean, square = (np.array(arrays[f"walk/{name}"]) for name in ("weights", "mean", "square"))
    head = np.array(arrays["walk/head"]) if "walk/head" in arrays else None
    return RunState(
        learner.place(
            LearnerState(
                from_arrays("parameters", arrays, fresh.parameters),
                from_arrays("optimizer", arrays, fresh.optimizer),
                WalkLearner(weights, mean, square, progress["walk_updates"], head),
            )
        ),
        step=progress["step"],
        samples=progress["samples"],
        score=progress["score"],
        best_score=progress["best_score"],
        best_policy=best,
        best_plan=plan,
    )


def _check_same(request: dict[str, Any], found: Mapping[str, Any], folder: str | Path) -> None:
    requested = json.loads(json.dumps(request))  # tuples become lists, as in the file
    for name in requested.keys() | found.keys():
        if requested.get(name) != found.get(name):
            raise InvalidInputError(
                f"{str(folder)!r} holds another run: its {name} is {found.get(name)!r:.80}, "
                f"not {requested.get(name)!r:.80}; give another folder or the same request.",
                field="out",
            )


def run(
    job: Job,
    folder: str | Path,
    *,
    on_progress: Callable[[Progress], None] = lambda progress: None,
    on_step: Callable[[Step], None] = lambda step: None,
    should_stop: Callable[[], bool] = lambda: False,
) -> Trained:
    """Train until the last step or until ``should_stop``, which is checked between steps.

    Checkpoint and metrics go to ``folder``. If it holds a checkpoint of the same job, the run
    resumes from there.

    Raises:
      InvalidInputError: the folder holds another job, or cannot be written to.
      EnvironmentFailedError: the environment failed; the last whole step is saved first.
    """
    learner = Learner(job.policy.config, job.settings, job.steps)
    state = resumed(job, learner, folder)
    is_first = jax.process_index() == 0
    with (
        MetricLog(folder) if is_first else nullcontext() as log,
        ThreadPoolExecutor(job.workers, thread_name_prefix="play") as executor,
        Sessions(job.environment) as sessions,
    ):
        if log is not None:
            log.truncate_after(state.step - 1)
        clock = _Clock(state.samples)
        saved_step, saved_s = state.step, time.monotonic()
        try:
            while state.step < job.steps and not should_stop():
                state, values = _advance(job, learner, state, sessions, executor, on_step)
                if log is not None:
                    log.write(state.step - 1, values | clock.rates(state.samples))
                on_progress(_progress(job, state, values["reward"], clock, saved_step))
                if is_first and time.monotonic() - saved_s > CHECKPOINT_EVERY_S:
                    save_state(job, state, folder)
                    saved_step, saved_s = state.step, time.monotonic()
        except EnvironmentFailedError as error:
            if is_first:
                save_state(job, state, folder)
            raise EnvironmentFailedError(
                f"{str(error).rstrip('.')}; training stopped, {str(folder)!r} holds step {state.step} "
                f"of {job.steps} to go on from."
            ) from error
        if is_first:
            save_state(job, state, folder)
    return _trained(job, learner, state)


def _advance(
    job: Job,
    learner: Learner,
    state: RunState,
    sessions: Sessions,
    executor: ThreadPoolExecutor,
    on_step: Callable[[Step], None],
) -> tuple[RunState, dict[str, float]]:
    """The state after the next step, and its metrics."""
    cases, bucket = job.draw(state.step)
    cases = _of_this_host(cases)
    after, step = take_step(
        learner,
        state.learner,
        cases,
        bucket,
        sessions.open(cases),
        job.settings,
        seed=(job.seed, state.step, jax.process_index()),
        executor=executor,
    )
    on_step(step)
    samples = state.samples + job.samples_per_step
    state = replace(
        state, learner=after, step=state.step + 1, samples=samples, best_plan=_best(state.best_plan, step)
    )
    values = dict(step.metrics)
    is_due = state.step % job.validate_every == 0 or state.step == job.steps
    if job.validation and is_due and jax.process_index() == 0:
        state, scores = _validated(job, learner, state)
        values |= scores
    return state, values | {"best_interval_s": _best_interval_s(state), "samples": float(samples)}


def _validated(job: Job, learner: Learner, state: RunState) -> tuple[RunState, dict[str, float]]:
    """The state with its score; its parameters become the best if none scored as well."""
    policy = learner.policy(state.learner)
    with Sessions(job.environment) as sessions:
        score = validate(
            policy, job.validation, sessions.open(job.validation), job.settings.lessons, job.seed
        )
    state = replace(state, score=score.mean)
    if state.best_score is None or score.mean > state.best_score:
        state = replace(state, best_score=score.mean, best_policy=policy)
    return state, score.metrics()


def _best(known: Candidate | None, step: Step) -> Candidate | None:
    for batch in step.batches:
        for episodes in batch.episodes:
            i = int(np.argmin(episodes.interval_s))
            interval_s = float(episodes.interval_s[i])
            if np.isfinite(interval_s) and (known is None or interval_s < known.expected_s):
                known = replace(episodes.decoded[i].plan, method=METHOD, expected_s=interval_s)
    return known


def _best_interval_s(state: RunState) -> float:
    return np.inf if state.best_plan is None else state.best_plan.expected_s


def _of_this_host(cases: list[Case]) -> list[Case]:
    share = len(cases) // jax.process_count()
    first = share * jax.process_index()
    return cases[first : first + share]


def _trained(job: Job, learner: Learner, state: RunState) -> Trained:
    policy = learner.policy(state.learner) if state.best_policy is None else state.best_policy
    return Trained(policy, state.best_plan, state.step, job.steps, state.samples, state.best_score)


class _Clock:
    """The speed of this process, without the samples of earlier ones."""

    def __init__(self, samples: int) -> None:
        self._started_s, self._before = time.monotonic(), samples

    def rates(self, samples: int) -> dict[str, float]:
        elapsed_s = time.monotonic() - self._started_s
        return {"elapsed_s": elapsed_s, "samples_per_s": (samples - self._before) / max(elapsed_s, 1e-9)}


def _progress(job: Job, state: RunState, reward: float, clock: _Clock, saved_step: int) -> Progress:
    samples_per_s = clock.rates(state.samples)["samples_per_s"]
    left = (job.steps - state.step) * (state.samples / state.step)
    return Progress(
        step=state.step,
        steps=job.steps,
        samples=state.samples,
        reward=reward,
        best_interval_s=_best_interval_s(state),
        score=state.score,
        best_score=state.best_score,
        samples_per_s=samples_per_s,
        left_s=left / max(samples_per_s, 1e-9),
        checkpoint_step=saved_step,
    )
