"""Serves training jobs as ``go_opt.v1.Training`` and ``google.longrunning.Operations``."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Container, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Final

from google.longrunning import operations_pb2
from google.protobuf.duration_pb2 import Duration
from google.protobuf.empty_pb2 import Empty
from google.protobuf.message import Message

from go_opt.errors import AlreadyExistsError, InvalidInputError, NotFoundError, UnsupportedError
from go_opt.proto import training_pb2
from go_opt.search.shared.policies import find_policy
from go_opt.service.calls.calls import Call, Method, Service, ServiceMetric, in_thread
from go_opt.service.jobs.job import QUEUED, RUNNING, Job, NewJob, job_id, operation
from go_opt.service.jobs.manager import JobManager
from go_opt.service.jobs.train import (
    check_environment,
    check_names,
    finetune_options,
    pretrain_options,
)
from go_opt.service.messages.requests import parsed

_PRETRAIN: Final = training_pb2.JOB_KIND_PRETRAIN
_FINETUNE: Final = training_pb2.JOB_KIND_FINETUNE
_REQUESTS: Final = {_PRETRAIN: training_pb2.PretrainRequest, _FINETUNE: training_pb2.FinetuneRequest}
_Request = training_pb2.PretrainRequest | training_pb2.FinetuneRequest
MOST_WAIT_S: Final = 3600.0
_DRAIN_S: Final = 2.5  # of the drain's time, for the running step of a job
_ANSWER_S: Final = 0.2  # of a call's deadline, for sending the answer
_PAGE_SIZES: Final = (50, 1000)  # default and maximum
_MOST_PAGE_BYTES: Final = 16 * 2**20  # a page of large plans has fewer operations
_MOST_TOKEN_DIGITS: Final = 20


class TrainingService(Service):
    """Starts training jobs.

    Args:
      jobs: runs the jobs; None: the service accepts no jobs.
      environments: addresses that jobs may use as their environment; None: any.
    """

    name = "go_opt.v1.Training"

    def __init__(self, jobs: JobManager | None, *, environments: Container[str] | None = ()) -> None:
        self._jobs = jobs
        self._environments = environments

    def methods(self) -> Mapping[str, Method]:
        return {
            "Pretrain": Method("quick", partial(self._create, _PRETRAIN)),
            "Finetune": Method("quick", partial(self._create, _FINETUNE)),
        }

    def close(self) -> None:
        """Does nothing: the creator of the jobs closes them."""

    def _create(self, kind: training_pb2.JobKind, data: bytes, call: Call) -> operations_pb2.Operation:
        jobs = given(self._jobs)
        message: _Request = parsed(_REQUESTS[kind], data)
        check_names(message)
        job = _same_job(jobs, kind, message, call.owner)
        if job is None:
            check_environment(message, self._environments)
            new = NewJob(
                kind,
                message.policy,
                message.request_id,
                message.SerializeToString(),
                _start_policy(jobs, message, call.owner),
                call.owner,
                message.shared,
            )
            try:
                job = jobs.create(new)
            except AlreadyExistsError:  # created by a concurrent call
                job = _same_job(jobs, kind, message, call.owner)
                if job is None:
                    raise
        return operation(job)


def given(jobs: JobManager | None) -> JobManager:
    """The jobs; UnsupportedError if the service accepts none."""
    if jobs is None:
        raise UnsupportedError("this service takes no training jobs.")
    return jobs


def _same_job(jobs: JobManager, kind: training_pb2.JobKind, message: _Request, owner: str) -> Job | None:
    """The owner's job with the same request, if there is one.

    Raises:
      AlreadyExistsError: a different request has the policy name or the request id.
    """
    for field in ("request_id", "policy"):
        value = getattr(message, field)
        found = jobs.find(owner, **{field: value}) if value else None
        if found is None:
            continue
        job, new = found
        if new.kind != kind or type(message).FromString(new.request) != message:
            raise AlreadyExistsError(f"{field} {value!r} is that of another request.", field=field)
        return job
    return None


def _start_policy(jobs: JobManager, message: _Request, owner: str) -> bytes | None:
    """Checks the request and returns the file content of its initial policy, to store with the job."""
    if isinstance(message, training_pb2.PretrainRequest):
        pretrain_options(message)
        return None
    finetune_options(message)
    if message.from_policy == "none":
        return None
    try:
        if message.from_policy in ("", "default"):
            path = find_policy("default")
        else:
            path = jobs.find_policy(message.from_policy, owner)
        if path is None:
            raise NotFoundError("no policy is shipped with this version; give none.", field="from_policy")
        return path.read_bytes()
    except (NotFoundError, FileNotFoundError) as error:  # FileNotFoundError: its job was just deleted
        reason = str(error) if isinstance(error, NotFoundError) else "it was deleted."
        raise NotFoundError(f"from_policy: {reason}", field="from_policy") from None


class OperationsService(Service):
    """Gets, waits for, lists, cancels and deletes jobs; reports metrics; stops jobs in a drain.

    Args:
      jobs: None: the service accepts no jobs.
    """

    name = "google.longrunning.Operations"

    def __init__(self, jobs: JobManager | None) -> None:
        self._jobs = jobs
        self._is_closed = False

    def methods(self) -> Mapping[str, Method]:
        return {
            "ListOperations": Method("quick", self._list),
            "GetOperation": self._of_job(
                operations_pb2.GetOperationRequest, lambda jobs, job, owner: operation(jobs.job(job, owner))
            ),
            "WaitOperation": Method("poll", self._wait),
            "CancelOperation": self._of_job(operations_pb2.CancelOperationRequest, JobManager.cancel),
            "DeleteOperation": self._of_job(operations_pb2.DeleteOperationRequest, JobManager.delete),
        }

    def metrics(self) -> Sequence[ServiceMetric]:
        return [
            ServiceMetric("jobs_running", "Training jobs that run.", lambda: self._count(RUNNING)),
            ServiceMetric("jobs_queued", "Training jobs that wait.", lambda: self._count(QUEUED)),
        ]

    async def drain(self) -> None:
        """Let running steps of jobs end while the calls drain."""
        await asyncio.wrap_future(in_thread(self.close))

    def close(self) -> None:
        if self._jobs is not None and not self._is_closed:
            self._is_closed = True
            self._jobs.close(_DRAIN_S)

    def _count(self, state: int) -> int:
        return 0 if self._jobs is None or self._is_closed else self._jobs.count(state)

    def _list(self, data: bytes, call: Call) -> Message:
        """A page of the operations that the caller may see, newest first.

        Raises:
          InvalidInputError: a filter, an invalid page token, or a negative page size.
        """
        message = parsed(operations_pb2.ListOperationsRequest, data)
        jobs = given(self._jobs)
        if message.name not in ("", "operations"):
            raise InvalidInputError(
                f"name must be 'operations' or empty, not {message.name[:100]!r}.", field="name"
            )
        if message.filter:
            raise InvalidInputError("filter must be empty: jobs are not filtered.", field="filter")
        size = _page_size(message.page_size)
        before = _number(message.page_token) if message.page_token else None
        response = operations_pb2.ListOperationsResponse()
        page_bytes, last = 0, None
        for job in jobs.page(before, size + 1, call.owner):
            listed = operation(job)
            page_bytes += listed.ByteSize()
            if last is not None and (len(response.operations) == size or page_bytes > _MOST_PAGE_BYTES):
                response.next_page_token = str(last.number)
                break
            response.operations.append(listed)
            last = job
        return response

    def _of_job(
        self, kind: type[Message], answer: Callable[[JobManager, str, str], Message | None]
    ) -> Method:
        """A method about the job that its request names."""

        def work(data: bytes, call: Call) -> Message:
            name: str = parsed(kind, data).name
            return answer(given(self._jobs), job_id(name), call.owner) or Empty()

        return Method("quick", work)

    async def _wait(self, data: bytes, call: Call) -> Message:
        """The operation once it is done, or its state after the requested timeout."""
        message = parsed(operations_pb2.WaitOperationRequest, data)
        timeout_s = _timeout_s(message, call.deadline_s)
        jobs, job = given(self._jobs), job_id(message.name)
        ended, loop = asyncio.Event(), asyncio.get_running_loop()
        with jobs.watch(job, lambda: loop.call_soon_threadsafe(ended.set)):
            found = await asyncio.to_thread(jobs.job, job, call.owner)
            if not found.is_ended:
                with suppress(TimeoutError):
                    await asyncio.wait_for(ended.wait(), timeout_s)
                found = await asyncio.to_thread(jobs.job, job, call.owner)
            return operation(found)


def _timeout_s(message: operations_pb2.WaitOperationRequest, deadline_s: float | None) -> float:
    timeout_s = MOST_WAIT_S
    if message.HasField("timeout"):
        timeout_s = min(timeout_s, _seconds(message.timeout))
    if deadline_s is not None:
        timeout_s = min(timeout_s, deadline_s - _ANSWER_S - time.monotonic())
    return max(timeout_s, 0.0)


def _seconds(duration: Duration) -> float:
    seconds: float = duration.seconds + 1e-9 * duration.nanos
    if seconds < 0 or not -(10**9) < duration.nanos < 10**9:
        raise InvalidInputError("timeout must be a duration and not be negative.", field="timeout")
    return seconds


def _page_size(requested: int) -> int:
    default, most = _PAGE_SIZES
    if requested < 0:
        raise InvalidInputError(f"page_size must not be negative, not {requested}.", field="page_size")
    return min(requested, most) or default


def _number(token: str) -> int:
    """The number of the last job of the previous page; the token format is not public."""
    number = int(token) if token.isdecimal() and len(token) < _MOST_TOKEN_DIGITS else 0
    if not 0 < number < 2**63:
        raise InvalidInputError(
            "page_token must be the next_page_token of an earlier call.", field="page_token"
        )
    return number
