"""Finetuning: improves a policy on one graph, and keeps the best plan found on the way."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import jax

from go_opt.agents.policy.network import Policy, parameters_digest
from go_opt.agents.training.job import Job, Progress, Trained
from go_opt.agents.training.pretrain import save_policy_of_run
from go_opt.agents.training.problems.cases import case
from go_opt.agents.training.problems.curriculum import common_bucket
from go_opt.agents.training.problems.environment import Environment, environment_name
from go_opt.agents.training.problems.settings import Lesson, Settings
from go_opt.agents.training.run import run
from go_opt.agents.training.updates.step import Step
from go_opt.agents.training.updates.walk_learner import FINETUNING_RATE, HEAD_RATE
from go_opt.env import Target
from go_opt.errors import InvalidInputError
from go_opt.model.graph import Graph


def finetuning_settings(lessons: Sequence[Lesson] = Settings().lessons) -> Settings:
    """Settings that suit a few hundred samples of one graph."""
    return Settings(
        lessons=tuple(lessons),
        graphs_per_step=len(jax.devices()),
        warm_up_updates=4,
        last_walk_rate=FINETUNING_RATE,
        walk_rate=FINETUNING_RATE,
        walk_head_rate=HEAD_RATE,
    )


@dataclass(frozen=True, eq=False)
class FinetuneRequest:
    """A graph, the policy to start from, and the number of samples."""

    graph: Graph
    target: Target
    policy: Policy
    samples: int = 200  # evaluations; rounded up to whole steps
    seed: int = 0
    settings: Settings = field(default_factory=finetuning_settings)

    def __post_init__(self) -> None:
        if self.samples < 1:
            raise InvalidInputError(f"samples is {self.samples}, must be 1 or more.", field="samples")

    def to_json(self) -> dict[str, Any]:
        """The request as plain values, which distinguish it from others."""
        return {
            "task": "finetune",
            "graph": {"name": self.graph.name, "fingerprint": self.graph.fingerprint},
            "target": {"name": self.target.name, "fingerprint": self.target.fingerprint},
            "policy": parameters_digest(self.policy),
            "samples": self.samples,
            "seed": self.seed,
            "settings": self.settings.to_json(),
            "network": asdict(self.policy.config),
        }


def finetune(
    request: FinetuneRequest,
    folder: str | Path,
    environment: Environment,
    *,
    workers: int = 1,
    on_progress: Callable[[Progress], None] = lambda progress: None,
    on_step: Callable[[Step], None] = lambda step: None,
    should_stop: Callable[[], bool] = lambda: False,
) -> Trained:
    """Train on one graph; checkpoint, metrics and ``policy.safetensors`` go to ``folder``.

    Raises:
      InvalidInputError: the request is invalid, or the folder belongs to another run.
      EnvironmentFailedError: the environment failed; the checkpoint of the last step is written.
    """
    settings = request.settings
    record = request.to_json() | {"environment": environment_name(environment)}
    only = case(request.graph, request.target)
    cases, bucket = [only] * settings.graphs_per_step, common_bucket([only])
    job = Job(
        request=record,
        settings=settings,
        policy=request.policy,
        draw=lambda step: (cases, bucket),
        environment=environment,
        samples=request.samples,
        seed=request.seed,
        workers=workers,
    )
    trained = run(job, folder, on_progress=on_progress, on_step=on_step, should_stop=should_stop)
    if jax.process_index() == 0:
        card = {"request": record, "steps": trained.step, "samples": trained.samples}
        save_policy_of_run(folder, trained.policy, card)
    return trained
