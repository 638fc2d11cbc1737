"""A training job as it is stored, and the messages made of it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

from google.longrunning import operations_pb2
from google.rpc import status_pb2

from go_opt.errors import NotFoundError
from go_opt.proto import training_pb2
from go_opt.proto.training_pb2 import JobKind, JobState

QUEUED: Final = training_pb2.JOB_STATE_QUEUED
RUNNING: Final = training_pb2.JOB_STATE_RUNNING
CANCELLING: Final = training_pb2.JOB_STATE_CANCELLING
SUCCEEDED: Final = training_pb2.JOB_STATE_SUCCEEDED
FAILED: Final = training_pb2.JOB_STATE_FAILED
CANCELLED: Final = training_pb2.JOB_STATE_CANCELLED
ENDED: Final = (SUCCEEDED, FAILED, CANCELLED)
STOP: Final = b"stop"  # to a job's process: end after the running step
_PREFIX: Final = "operations/"
OnProgress = Callable[[training_pb2.TrainingProgress], None]


@dataclass(frozen=True)
class NewJob:
    """What is asked for."""

    kind: JobKind
    policy: str
    request_id: str  # empty: none
    request: bytes  # PretrainRequest or FinetuneRequest
    start_policy: bytes | None = None  # the file of the policy to start from; None: an untrained one
    owner: str = ""  # who asks, by token or certificate; empty: nobody with a name
    is_shared: bool = False  # everyone may see the job and use its policy


@dataclass(frozen=True)
class Job:
    """What became of it so far. Times are of the wall clock, to be shown and not to reckon with."""

    number: int  # in order of creation
    id: str
    kind: JobKind
    policy: str
    state: JobState
    created_ns: int
    started_ns: int | None = None
    ended_ns: int | None = None
    attempts: int = 0
    vain_starts: int = 0  # in a row, since the checkpoint last got further
    progress: bytes = b""  # TrainingProgress, as far as the job's process knows it
    result: bytes | None = None  # TrainingResult, likewise
    error: bytes | None = None  # google.rpc.Status
    owner: str = ""  # as of NewJob
    is_shared: int = 0  # SQL has no bool

    def is_seen_by(self, owner: str) -> bool:
        """Whether the job is there at all for this owner."""
        return bool(self.is_shared) or self.owner == owner

    @property
    def is_ended(self) -> bool:
        return self.state in ENDED


@dataclass(frozen=True, eq=False)
class Trained:
    """What a job came to in its process."""

    progress: training_pb2.TrainingProgress
    result: training_pb2.TrainingResult | None = None  # None: it was stopped before its last step


def last_message(messages: Iterable[bytes], on_progress: OnProgress) -> operations_pb2.Operation | None:
    """The message of a job's process that is done, if there is one; those before it are progress."""
    for data in messages:
        message = operations_pb2.Operation.FromString(data)
        if message.done:
            return message
        progress = training_pb2.TrainingProgress()
        message.metadata.Unpack(progress)
        on_progress(progress)
    return None


def checkpoint_step(progress: bytes) -> int:
    """What a TrainingProgress says that the checkpoint holds."""
    step: int = training_pb2.TrainingProgress.FromString(progress).checkpoint_step
    return step


def job_id(name: str) -> str:
    """The job of an operation's name."""
    if not name.startswith(_PREFIX):
        raise NotFoundError(f"no operation {name[:100]!r}: names begin with {_PREFIX!r}.", field="name")
    return name.removeprefix(_PREFIX)


def no_such_job(job: str) -> NotFoundError:
    """What to raise for a job that is not there."""
    return NotFoundError(f"no operation {(_PREFIX + job)[:100]!r}, or it was deleted.", field="name")


def operation(job: Job) -> operations_pb2.Operation:
    """The operation of a job."""
    message = operations_pb2.Operation(name=_PREFIX + job.id, done=job.is_ended)
    progress = _progress(job)
    message.metadata.Pack(progress)
    if job.result is not None:
        result = training_pb2.TrainingResult.FromString(job.result)
        result.policy = job.policy
        result.progress.CopyFrom(progress)
        message.response.Pack(result)
    elif job.is_ended and job.error is not None:
        message.error.CopyFrom(status_pb2.Status.FromString(job.error))
    return message


def _progress(job: Job) -> training_pb2.TrainingProgress:
    message: training_pb2.TrainingProgress = training_pb2.TrainingProgress.FromString(job.progress)
    message.policy, message.kind, message.state = job.policy, job.kind, job.state
    message.attempts = job.attempts
    message.owner, message.shared = job.owner, bool(job.is_shared)
    for field, time_ns in (
        (message.create_time, job.created_ns),
        (message.start_time, job.started_ns),
        (message.end_time, job.ended_ns),
    ):
        if time_ns is not None:
            field.FromNanoseconds(time_ns)
    return message


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

    def start(self, new: NewJob, folder: Path) -> Attempt:
        """Start a job, or go on with one whose folder, where it leaves its files, holds a checkpoint.

        A job that is cut off must end, or have ended, before it is started again.

        Raises:
          OSError: it cannot be started now.
        """

    def close(self) -> None:
        """Free what the runner holds; all jobs have ended."""
