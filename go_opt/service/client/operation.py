"""A training job of a service: its progress, waiting for it, and its result."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias, get_args

from google.longrunning import operations_pb2, operations_pb2_grpc
from google.protobuf.duration_pb2 import Duration
from google.protobuf.timestamp_pb2 import Timestamp
from google.rpc import code_pb2

from go_opt.errors import ServiceError
from go_opt.model.codecs.wire import plan_from_proto
from go_opt.model.plan import Plan
from go_opt.proto import training_pb2, training_pb2_grpc
from go_opt.service.messages.errors import error_from_status

if TYPE_CHECKING:
    from go_opt.service.client.connection import Connection
    from go_opt.service.client.local_client import LocalConnection

    AnyConnection: TypeAlias = Connection | LocalConnection

JobKind = Literal["pretrain", "finetune"]
JobState = Literal["QUEUED", "RUNNING", "CANCELLING", "SUCCEEDED", "FAILED", "CANCELLED"]
# An enum's number is the index of its name here, from 1.
_KINDS: Final[tuple[JobKind, ...]] = get_args(JobKind)
_STATES: Final[tuple[JobState, ...]] = get_args(JobState)
_SAME: Final = (  # fields that JobProgress shares with the message
    *("policy", "step", "steps", "samples", "checkpoint_step", "reward", "best_interval_s"),
    *("samples_per_s", "left_s", "attempts", "owner", "shared"),
)
CALL_TIMEOUT_S: Final = 60.0  # of calls that neither search nor wait
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


class Jobs:
    """The training jobs of a service."""

    def __init__(self, connection: AnyConnection) -> None:
        self._connection = connection
        self._training = training_pb2_grpc.TrainingStub(connection.channel)  # type: ignore[no-untyped-call]
        self._operations = operations_pb2_grpc.OperationsStub(connection.channel)

    def pretrain(self, request: training_pb2.PretrainRequest) -> Operation:
        """Starts a job; the request id also identifies the call."""
        return Operation(self, self._call(self._training.Pretrain, request, name=request.request_id))

    def finetune(self, request: training_pb2.FinetuneRequest) -> Operation:
        """As :meth:`pretrain`."""
        return Operation(self, self._call(self._training.Finetune, request, name=request.request_id))

    def get(self, name: str) -> operations_pb2.Operation:
        """The current state of the job."""
        return self._call(self._operations.GetOperation, operations_pb2.GetOperationRequest(name=name))

    def wait(self, name: str, timeout_s: float) -> operations_pb2.Operation:
        """The job once it is done, or its state after ``timeout_s``."""
        timeout = Duration()
        timeout.FromMicroseconds(round(1e6 * timeout_s))
        request = operations_pb2.WaitOperationRequest(name=name, timeout=timeout)
        return self._call(self._operations.WaitOperation, request, timeout_s=timeout_s + CALL_TIMEOUT_S)

    def cancel(self, name: str) -> None:
        """Request that the job end."""
        self._call(self._operations.CancelOperation, operations_pb2.CancelOperationRequest(name=name))

    def delete(self, name: str) -> None:
        """Delete a finished job."""
        self._call(self._operations.DeleteOperation, operations_pb2.DeleteOperationRequest(name=name))

    def list(self) -> Iterator[Operation]:
        """Yields all jobs of all pages, the newest first."""
        request = operations_pb2.ListOperationsRequest(name="operations")
        while True:
            answer = self._call(self._operations.ListOperations, request)
            yield from (Operation(self, message) for message in answer.operations)
            request.page_token = answer.next_page_token
            if not request.page_token:
                return

    def _call(self, *args: Any, timeout_s: float = CALL_TIMEOUT_S, **options: Any) -> Any:
        return self._connection.call(*args, timeout_s=timeout_s, **options)


class Operation:
    """A handle to a job; the job runs on without it.

    Attributes:
      name: ``client.operation(name)`` gives a new handle.
      latest: the last progress received.
    """

    def __init__(self, jobs: Jobs, message: operations_pb2.Operation) -> None:
        self._jobs = jobs
        self._message = message
        self.name: str = message.name
        self.latest = _progress(message)

    def progress(self) -> JobProgress:
        """The current progress."""
        return self._seen(self._jobs.get(self.name))

    def wait(self, timeout_s: float | None = None) -> JobProgress:
        """The progress when the job is done, or after ``timeout_s``, whichever comes first."""
        deadline_s = math.inf if timeout_s is None else time.monotonic() + timeout_s
        while not self.latest.is_done:
            left_s = max(deadline_s - time.monotonic(), 0.0)
            self._seen(self._jobs.wait(self.name, min(left_s, _POLL_S)))
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
        self._jobs.cancel(self.name)

    def delete(self) -> None:
        """Delete the job, which must have ended."""
        self._jobs.delete(self.name)

    def __repr__(self) -> str:
        return f"Operation({self.name!r}, {self.latest.state})"

    def _seen(self, message: operations_pb2.Operation) -> JobProgress:
        self._message, self.latest = message, _progress(message)
        return self.latest


def _progress(operation: operations_pb2.Operation) -> JobProgress:
    message = training_pb2.TrainingProgress()
    operation.metadata.Unpack(message)
    return JobProgress(
        kind=_KINDS[max(message.kind, 1) - 1],
        state=_STATES[max(message.state, 1) - 1],
        created=_time(message.create_time),
        started=_time(message.start_time) if message.HasField("start_time") else None,
        ended=_time(message.end_time) if message.HasField("end_time") else None,
        best_score=message.best_score if message.HasField("best_score") else None,
        **{name: getattr(message, name) for name in _SAME},
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
