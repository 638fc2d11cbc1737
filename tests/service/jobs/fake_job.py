"""A job's process that trains nothing: the seed of the request picks what happens in it."""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from go_opt.common.files import write_atomically, write_bytes_atomically
from go_opt.errors import EnvironmentFailedError, InvalidInputError
from go_opt.proto import training_pb2
from go_opt.service.jobs.job import Trained
from go_opt.service.jobs.job_process import main

STEPS: Final = 4
RUNS, WAITS, CRASHES, FAILS, DISK_IS_FULL, IS_DEAF, CRASHES_AND_GETS_ON = range(7)
STANDS: Final = "stands"  # a file that is there once the process waits, or sleeps
GO: Final = "go"  # a file that it waits for


def train(
    kind: int,
    request: bytes,
    *,
    start_file: Path | None,
    folder: Path,
    on_progress: Callable[[training_pb2.TrainingProgress], None],
    should_stop: Callable[[], bool],
) -> Trained:
    seed = training_pb2.PretrainRequest.FromString(request).seed  # of both requests
    write_atomically(folder / "pid", str(os.getpid()))
    start = start_file.read_bytes() if start_file else b""
    checkpoint = folder / "step"
    step = int(checkpoint.read_text()) if checkpoint.exists() else 0

    def progress() -> training_pb2.TrainingProgress:
        return training_pb2.TrainingProgress(step=step, steps=STEPS, samples=10 * step, checkpoint_step=step)

    while step < STEPS:
        if should_stop():
            write_bytes_atomically(folder / "policy.safetensors", b"stopped")
            return Trained(progress())
        if step == 2:
            trip(seed, folder, should_stop)
        step += 1
        write_atomically(checkpoint, str(step))
        on_progress(progress())
        if seed == CRASHES_AND_GETS_ON:
            os._exit(9)
    write_bytes_atomically(folder / "policy.safetensors", b"trained from " + start)
    return Trained(progress(), training_pb2.TrainingResult(best_interval_s=0.5))


def trip(seed: int, folder: Path, should_stop: Callable[[], bool]) -> None:
    (folder / STANDS).touch()
    if seed == WAITS:
        while not ((folder / GO).exists() or should_stop()):
            time.sleep(0.01)
    elif seed == IS_DEAF:
        time.sleep(600)
    elif seed == CRASHES:
        os._exit(9)
    elif seed == FAILS:
        raise EnvironmentFailedError("the board is on fire.")
    elif seed == DISK_IS_FULL and not (folder / GO).exists():
        try:
            raise OSError(errno.ENOSPC, "No space left on device")
        except OSError:
            raise InvalidInputError("'step' cannot be written: No space left on device.") from None


if __name__ == "__main__":
    main(train, niceness=0)
