"""A training job of a service: its progress, waiting for it, and its result."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final, Literal, TypeAlias

from google.longrunning import operations_pb2
from google.protobuf.timestamp_pb2 import Timestamp
from google.rpc import code_pb2

from go_opt.errors import ServiceError
from go_opt.model.codecs.wire import plan_from_proto
from go_opt.model.plan import Plan
from go_opt.proto import training_pb2
from go_opt.service.client.connection import CALL_TIMEOUT_S
from go_opt.service.messages.convert import value_of
from go_opt.service.messages.errors import error_from_status

if TYPE_CHECKING:
    from go_opt.service.client.connection import Connection
    from go_opt.service.client.local_client import LocalConnection

    AnyConnection: TypeAlias = Connection | LocalConnection

JobKind = Literal["pretrain", "finetune"]
JobState = Literal["QUEUED", "RUNNING", "CANCELLING", "SUCCEEDED", "FAILED", "CANCELLED"]
_POLL_S: Final = 30.0  # one long poll; proxies cut connections that are silent for longer


@dataclass(frozen=True)
class JobProgress:
    """The progress of a job."""

    policy: str
    kind: JobKind
    state: JobState
    created: datetime
    started: datetime | None  # the first attempt; None while queued
    ended: datetime | None
    step: int
    steps: int  # of the whole job
    samples: int  # evaluations so far
    checkpoint_step: int  # the step that survives a crash now
    reward: float  # of the last step: mean of ln(reference / objective)
    best_interval_s: float  # of any plan so far; infinite before the first valid one
    best_score: float | None  # on the validation graphs
    samples_per_s: float
    left_s: float  # estimated
    attempts: int  # starts, one more after each interruption
    owner: str = ""  # who created it, by token or certificate; empty if callers have no names
    shared: bool = False  # whether every caller may see it and use its policy

    @property
    def score(self) -> float | None:
        """The score on the validation graphs; a service reports only the best."""
        return self.best_score

    @property
    def is_done(self) -> bool:
        """Whether the job has ended."""
        return self.state in ("SUCCEEDED", "FAILED", "CANCELLED")


@dataclass(frozen=True, eq=False)
class JobResult:
    """The result of a job."""

    policy: str  # its name for ``optimize``
    progress: JobProgress
    # Finetuning only:
    plan: Plan | None = None  # the best plan found, verified
    best_interval_s: float | None = None  # of the plan, by the environment
    reference_interval_s: float | None = None  # of the greedy plan; None if invalid


class Operation:
    """A handle to a job; the job runs on without it.

    Attributes:
      name: ``client.operation(name)`` gives a new handle.
      latest: the last progress received.
    """

    def __init__(self, connection: AnyConnection, message: operations_pb2.Operation) -> None:
        self._connection = connection
        self._message = message
        self.name: str = message.name
        self.latest = _progress(message)

    def progress(self) -> JobProgress:
        """The current progress."""
        request = operations_pb2.GetOperationRequest(name=self.name)
        return self._seen(self._connection.call("GetOperation", request))

    def wait(self, timeout_s: float | None = None) -> JobProgress:
        """The progress when the job is done, or after ``timeout_s``, whichever comes first."""
        deadline_s = math.inf if timeout_s is None else time.monotonic() + timeout_s
        while not self.latest.is_done:
            left_s = max(deadline_s - time.monotonic(), 0.0)
            self._poll(min(left_s, _POLL_S))
            if time.monotonic() >= deadline_s:
                break
        return self.latest

    def result(self, timeout_s: float | None = None) -> JobResult:
        """Waits for the job and returns its result.

        Raises:
          GoOptError: the error of the job; CancelledError if it was cancelled.
          ServiceError: the job is not done within ``timeout_s``.
        """
        if not self.wait(timeout_s).is_done:
            raise ServiceError(f"{self.name} is not done after {timeout_s:g} s.")
        if self._message.HasField("error"):
            status = self._message.error
            code = code_pb2.Code.Name(status.code)
            unnamed = ServiceError(f"{self.name} failed with {code}: {status.message.rstrip('.')}.")
            raise error_from_status(status) or unnamed
        response = training_pb2.TrainingResult()
        self._message.response.Unpack(response)
        return _result(response, self.latest)

    def cancel(self) -> None:
        """Request that the job end and keep its progress; does nothing for a finished job."""
        request = operations_pb2.CancelOperationRequest(name=self.name)
        self._connection.call("CancelOperation", request)

    def delete(self) -> None:
        """Delete the job, which must have ended."""
        request = operations_pb2.DeleteOperationRequest(name=self.name)
        self._connection.call("DeleteOperation", request)

    def __repr__(self) -> str:
        return f"Operation({self.name!r}, {self.latest.state})"

    def _poll(self, poll_s: float) -> None:
        request = operations_pb2.WaitOperationRequest(name=self.name)
        request.timeout.FromMicroseconds(round(1e6 * poll_s))
        self._seen(self._connection.call("WaitOperation", request, timeout_s=poll_s + CALL_TIMEOUT_S))

    def _seen(self, message: operations_pb2.Operation) -> JobProgress:
        self._message, self.latest = message, _progress(message)
        return self.latest


def _progress(operation: operations_pb2.Operation) -> JobProgress:
    message = training_pb2.TrainingProgress()
    operation.metadata.Unpack(message)
    return value_of(
        message,
        JobProgress,
        created=_time(message.create_time),
        started=_time(message.start_time) if message.HasField("start_time") else None,
        ended=_time(message.end_time) if message.HasField("end_time") else None,
    )


def _result(message: training_pb2.TrainingResult, progress: JobProgress) -> JobResult:
    if not message.HasField("best_plan"):
        return JobResult(message.policy, progress)
    reference_s = message.reference_interval_s
    return JobResult(
        policy=message.policy,
        progress=progress,
        plan=plan_from_proto(message.best_plan),
        best_interval_s=message.best_interval_s,
        reference_interval_s=reference_s if math.isfinite(reference_s) else None,
    )


def _time(stamp: Timestamp) -> datetime:
    return datetime.fromtimestamp(stamp.ToMicroseconds() / 1e6, UTC)
