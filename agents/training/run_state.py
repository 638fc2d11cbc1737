"""The state of a training run between two steps, and its checkpoint."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from go_opt.agents.policy.network import Policy
from go_opt.agents.training.checkpoint import (
    Checkpoint,
    from_arrays,
    load_checkpoint,
    save_checkpoint,
    to_arrays,
)
from go_opt.agents.training.job import Job
from go_opt.agents.training.updates.learner import Learner, LearnerState
from go_opt.agents.training.updates.walk_learner import WalkLearner
from go_opt.errors import InvalidInputError
from go_opt.model.plan import Candidate

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
