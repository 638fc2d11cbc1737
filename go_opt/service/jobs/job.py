"""A stored training job, and its messages."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
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
_PREFIX: Final = "operations/"
OnProgress = Callable[[training_pb2.TrainingProgress], None]


@dataclass(frozen=True)
class NewJob:
    """A request for a job."""

    kind: JobKind
    policy: str
    request_id: str  # empty: none
    request: bytes  # PretrainRequest or FinetuneRequest
    start_policy: bytes | None = None  # file content of the initial policy; None: untrained
    owner: str = ""  # the caller, by token or certificate; empty: unnamed
    is_shared: bool = False  # whether everyone may see the job and use its policy


@dataclass(frozen=True)
class Job:
    """The state of a job. Times are wall-clock times for display, not for arithmetic."""

    number: int  # in order of creation
    id: str
    kind: JobKind
    policy: str
    state: JobState
    created_ns: int
    started_ns: int | None = None
    ended_ns: int | None = None
    attempts: int = 0
    failed_attempts: int = 0  # consecutive starts without checkpoint progress
    progress: bytes = b""  # TrainingProgress, with the fields that the job's process sets
    result: bytes | None = None  # TrainingResult, likewise
    error: bytes | None = None  # google.rpc.Status
    owner: str = ""  # as of NewJob
    is_shared: int = 0  # SQL has no bool

    def is_seen_by(self, owner: str) -> bool:
        """Whether this owner may see the job."""
        return bool(self.is_shared) or self.owner == owner

    @property
    def is_ended(self) -> bool:
        return self.state in ENDED


@dataclass(frozen=True, eq=False)
class Trained:
    """The outcome of a job in its process."""

    progress: training_pb2.TrainingProgress
    result: training_pb2.TrainingResult | None = None  # None: stopped before the last step


def last_message(messages: Iterable[bytes], on_progress: OnProgress) -> operations_pb2.Operation | None:
    """Passes on progress messages and returns the final message of a job's process, if any."""
    for data in messages:
        message = operations_pb2.Operation.FromString(data)
        if message.done:
            return message
        progress = training_pb2.TrainingProgress()
        message.metadata.Unpack(progress)
        on_progress(progress)
    return None


def checkpoint_step(progress: bytes) -> int:
    """The checkpoint's step in a serialised TrainingProgress."""
    step: int = training_pb2.TrainingProgress.FromString(progress).checkpoint_step
    return step


def reached_text(progress: training_pb2.TrainingProgress) -> str:
    """When a job was stopped, as the end of a sentence."""
    return f"after step {progress.step} of {progress.steps}" if progress.step else "before its first step"


def job_id(name: str) -> str:
    """The job id in an operation's name."""
    if not name.startswith(_PREFIX):
        raise NotFoundError(f"no operation {name[:100]!r}: names begin with {_PREFIX!r}.", field="name")
    return name.removeprefix(_PREFIX)


def no_such_job(job: str) -> NotFoundError:
    """The error for a job that does not exist."""
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
    """A started job."""

    def wait(self, on_progress: OnProgress) -> operations_pb2.Operation | None:
        """Waits for the job; returns its final message, or None if it was interrupted.

        The message has a TrainingResult or an error status: CANCELLED (the job was stopped),
        UNAVAILABLE (the disk is full, so retry later), or a status from training.proto.
        """

    def stop(self) -> None:
        """Request a stop after the running step, with progress kept; does not wait."""

    def kill(self) -> None:
        """Kill the job at once."""
