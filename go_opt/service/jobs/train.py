"""Runs a training job: converts its request, calls :mod:`go_opt.training`, converts the result."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from go_opt import training
from go_opt.errors import InfeasibleError
from go_opt.proto import training_pb2
from go_opt.service.jobs.convert import finetune_options, pretrain_options
from go_opt.service.jobs.job import OnProgress, Trained
from go_opt.service.messages.graphs import SentGraph

if TYPE_CHECKING:
    from go_opt.agents.training.job import Progress


def train_job(
    kind: int,
    request: bytes,
    *,
    start_file: Path | None,
    folder: Path,
    on_progress: OnProgress,
    should_stop: Callable[[], bool],
) -> Trained:
    """Train, or resume the job's run in ``folder``.

    Args:
      start_file: the policy from which finetuning starts; None: an untrained policy.

    Raises:
      InfeasibleError: finetuning found no valid plan.
      EnvironmentFailedError, PolicyError, InvalidInputError: as by ``go_opt.training``.
    """
    watched = _Watched(folder, on_progress, should_stop)
    try:
        result = _train(kind, request, start_file, folder, watched)
    except _StoppedBeforeStartError:
        return Trained(training_pb2.TrainingProgress())
    progress = training_pb2.TrainingProgress(
        step=result.step,
        steps=result.steps,
        samples=result.samples,
        checkpoint_step=result.step,
        best_score=result.best_score,
    )
    if not result.is_complete:
        return Trained(progress)
    if kind == training_pb2.JOB_KIND_PRETRAIN:
        return Trained(progress, training_pb2.TrainingResult())
    sent = SentGraph.from_proto(training_pb2.FinetuneRequest.FromString(request).graph)
    return Trained(progress, _finetuned(result, sent))


def _train(
    kind: int, request: bytes, start_file: Path | None, folder: Path, watched: _Watched
) -> training.TrainingResult:
    watch: dict[str, Any] = {"on_progress": watched.on_progress, "should_stop": watched.should_stop}
    watched.should_stop()  # before JAX loads
    if kind == training_pb2.JOB_KIND_PRETRAIN:
        options = pretrain_options(training_pb2.PretrainRequest.FromString(request))
        return training.pretrain(folder, **options, **watch)
    options = finetune_options(training_pb2.FinetuneRequest.FromString(request))
    return training.finetune(options.pop("graph"), folder, policy=start_file, **options, **watch)


def _finetuned(result: training.TrainingResult, sent: SentGraph) -> training_pb2.TrainingResult:
    if result.plan is None:
        raise InfeasibleError(f"none of the {result.samples} plans met is valid.")
    reference_s = result.reference_interval_s
    return training_pb2.TrainingResult(
        best_plan=sent.plan_to_proto(result.plan),
        best_interval_s=result.best_interval_s,
        reference_interval_s=math.inf if reference_s is None else reference_s,
    )


class _StoppedBeforeStartError(Exception):
    """The job was stopped before it had any progress to keep."""


class _Watched:
    """Passes on progress and stop requests."""

    def __init__(self, folder: Path, on_progress: OnProgress, should_stop: Callable[[], bool]) -> None:
        self._on_progress, self._should_stop = on_progress, should_stop
        self._has_step = (folder / "checkpoint.safetensors").exists()

    def should_stop(self) -> bool:
        is_requested = self._should_stop()
        if is_requested and not self._has_step:
            raise _StoppedBeforeStartError
        return is_requested

    def on_progress(self, progress: Progress) -> None:
        self._has_step = True
        fields = {name: value for name, value in vars(progress).items() if name != "score"}
        self._on_progress(training_pb2.TrainingProgress(**fields))
