"""A job's process that searches instead of training; ``samples`` above 1000 wait to be stopped."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from go_opt import api
from go_opt.common.files import write_bytes_atomically
from go_opt.model.codecs.wire import plan_to_proto
from go_opt.proto import training_pb2
from go_opt.service.jobs.job import Trained
from go_opt.service.jobs.job_process import main
from go_opt.service.jobs.train import finetune_options


def train(
    kind: int,
    request: bytes,
    *,
    start_file: Path | None,
    folder: Path,
    on_progress: Callable[[training_pb2.TrainingProgress], None],
    should_stop: Callable[[], bool],
) -> Trained:
    is_finetuning = kind == training_pb2.JOB_KIND_FINETUNE
    message = training_pb2.FinetuneRequest if is_finetuning else training_pb2.PretrainRequest
    samples = message.FromString(request).samples
    progress = training_pb2.TrainingProgress(step=1, steps=2, samples=samples, best_interval_s=2.0)
    on_progress(progress)
    write_bytes_atomically(folder / "policy.safetensors", b"no policy")
    while samples > 1000:
        if should_stop():
            return Trained(progress)
        time.sleep(0.01)
    progress.step = 2
    if not is_finetuning:
        return Trained(progress, training_pb2.TrainingResult())
    options = finetune_options(training_pb2.FinetuneRequest.FromString(request))
    found = api.optimize(options["graph"], options["target"], max_evaluations=2, policy=None)
    result = training_pb2.TrainingResult(
        best_plan=plan_to_proto(found.plan),
        best_interval_s=found.metrics.interval_s,
        reference_interval_s=found.reference_s,
    )
    return Trained(progress, result)


if __name__ == "__main__":
    main(train)
