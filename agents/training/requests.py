"""Pretraining, one policy for many graphs and packages; and finetuning, which improves it on one graph."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

import jax

from go_opt.agents.networks import PolicyConfig
from go_opt.agents.policy.network import Policy, parameters_digest, save_policy, untrained
from go_opt.agents.training.metric_log import read_metric
from go_opt.agents.training.problems.cases import LEAST_OPS, Curriculum, case, common_bucket
from go_opt.agents.training.problems.environment import Environment, environment_name
from go_opt.agents.training.problems.rollout import Lesson, Settings
from go_opt.agents.training.run import Job, Progress, Trained, run
from go_opt.agents.training.updates.learner import Step
from go_opt.agents.training.updates.walk_learner import FINETUNING_RATE, HEAD_RATE
from go_opt.common.files import remove_temporaries
from go_opt.env import Target
from go_opt.errors import InvalidInputError
from go_opt.model.graph import Graph

POLICY_NAME: Final = "policy.safetensors"


@dataclass(frozen=True, eq=False)
class PretrainRequest:
    """The graphs to learn from, and the number of samples."""

    graphs: Sequence[Graph]
    validation: Sequence[Graph]  # selects the policy to keep; if empty, the last is kept
    target: Target
    samples: int = 60_000  # evaluations without validation; rounded up to whole steps
    seed: int = 0
    settings: Settings = field(default_factory=Settings)
    config: PolicyConfig = field(default_factory=PolicyConfig)
    generated_share: float = 0.4  # chance of a generated graph; see Curriculum
    plain_share: float = 0.6  # chance of the target as given
    most_ops: int = 512  # of any graph, generated or not
    validate_every: int = 100  # steps

    def __post_init__(self) -> None:
        if self.samples < 1:
            raise InvalidInputError(f"samples is {self.samples}, must be 1 or more.", field="samples")
        for name in ("generated_share", "plain_share"):
            if not 0.0 <= getattr(self, name) <= 1.0:
                raise InvalidInputError(f"{name} is {getattr(self, name)}, must be 0 to 1.", field=name)
        if self.most_ops < LEAST_OPS:
            raise InvalidInputError(
                f"most_ops is {self.most_ops}, must be {LEAST_OPS} or more.", field="most_ops"
            )
        if self.validate_every < 1:
            raise InvalidInputError(
                f"validate_every is {self.validate_every}, must be 1 or more.", field="validate_every"
            )
        for graph in self.graphs:
            if not LEAST_OPS <= graph.num_ops <= self.most_ops:
                raise InvalidInputError(
                    f"graph {graph.name!r} has {graph.num_ops} ops, pretraining takes {LEAST_OPS} to "
                    f"{self.most_ops} (most_ops).",
                    field="graphs",
                )

    def to_json(self) -> dict[str, Any]:
        """The request as plain values, which distinguish it from others."""
        return {
            "task": "pretrain",
            "graphs": _named(self.graphs),
            "validation": _named(self.validation),
            "target": {"name": self.target.name, "fingerprint": self.target.fingerprint},
            "samples": self.samples,
            "seed": self.seed,
            "generated_share": self.generated_share,
            "plain_share": self.plain_share,
            "most_ops": self.most_ops,
            "validate_every": self.validate_every,
            "settings": self.settings.to_json(),
            "network": asdict(self.config),
        }


def pretrain(
    request: PretrainRequest,
    folder: str | Path,
    environment: Environment,
    *,
    workers: int = 1,
    on_progress: Callable[[Progress], None] = lambda progress: None,
    should_stop: Callable[[], bool] = lambda: False,
) -> Trained:
    """Train; checkpoint, metrics and ``policy.safetensors`` go to ``folder``.

    Resumes if the folder holds a checkpoint of the same request.

    Raises:
      InvalidInputError: the request is invalid, or the folder belongs to another run.
      EnvironmentFailedError: the environment failed; the checkpoint of the last step is written.
    """
    settings = request.settings
    record = request.to_json() | {"environment": environment_name(environment)}
    curriculum = Curriculum(
        tuple(request.graphs), request.target, request.generated_share, request.plain_share, request.most_ops
    )
    job = Job(
        request=record,
        settings=settings,
        policy=untrained(request.config, request.seed),
        draw=lambda step: curriculum.draw(request.seed, step, settings.graphs_per_step),
        environment=environment,
        samples=request.samples,
        seed=request.seed,
        validation=[case(graph, request.target) for graph in request.validation],
        validate_every=request.validate_every,
        workers=workers,
    )
    trained = run(job, folder, on_progress=on_progress, should_stop=should_stop)
    if jax.process_index() == 0:
        curve = read_metric(folder, "validation")
        save_policy_of_run(folder, trained.policy, _card(record, trained, curve))
    return trained


def save_policy_of_run(folder: str | Path, policy: Policy, card: Mapping[str, Any]) -> None:
    """Write the policy of a run, in place of what killed processes of the run left."""
    path = Path(folder) / POLICY_NAME
    remove_temporaries(path)
    save_policy(path, policy, card)


def _card(record: Mapping[str, Any], trained: Trained, curve: Sequence[tuple[int, float]]) -> dict[str, Any]:
    """The origin of the policy, to be stored in its file."""
    return {
        "request": record,
        "steps": trained.step,
        "of_steps": trained.steps,
        "samples": trained.samples,
        "validation": "mean log speed-up over greedy, best of 16 proposals, mean of the lessons",
        "validation_best": trained.best_score,
        "validation_curve": [[step, round(value, 4)] for step, value in curve],
    }


def _named(graphs: Sequence[Graph]) -> dict[str, str]:
    """Fingerprints by name."""
    return {graph.name: graph.fingerprint for graph in graphs}


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
