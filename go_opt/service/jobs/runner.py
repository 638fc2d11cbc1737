"""What runs a job: anything that starts its process, passes on what it says, and ends it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from google.longrunning import operations_pb2

from go_opt.proto import training_pb2

OnProgress = Callable[[training_pb2.TrainingProgress], None]


@dataclass(frozen=True)
class JobSpec:
    """All that a job's process is told."""

    kind: int  # training_pb2.JobKind
    request: bytes  # PretrainRequest or FinetuneRequest
    start_policy: bytes | None  # the file of the policy to start from; None: an untrained one
    folder: Path  # that the job leaves its files in, and goes on from


class Attempt(Protocol):
    """A job that was started."""

    def wait(self, on_progress: OnProgress) -> operations_pb2.Operation | None:
        """Its last message, which is done; None where it was cut off.

        It has a TrainingResult, or one of the statuses CANCELLED (it was told to stop),
        UNAVAILABLE (the disk is full, so try again later) and those of training.proto.
        """

    def stop(self) -> None:
        """Tell it to stop after the running step and keep what it reached; does not wait."""

    def kill(self) -> None:
        """End it at once."""


class Runner(Protocol):
    """Starts jobs; several threads may use it at once."""

    def start(self, spec: JobSpec) -> Attempt:
        """Start a job, or go on with one whose folder holds a checkpoint.

        A job that is cut off must end, or have ended, before it is started again.

        Raises:
          OSError: it cannot be started now.
        """

    def close(self) -> None:
        """Free what the runner holds; all jobs have ended."""
