"""Serves ``go_opt.v1.Training``: stores a job for each request and answers with its operation."""

from __future__ import annotations

from collections.abc import Container, Mapping
from functools import partial
from typing import Final

from google.longrunning import operations_pb2

from go_opt.errors import AlreadyExistsError, NotFoundError, UnsupportedError
from go_opt.proto import training_pb2
from go_opt.search.policies import find_policy
from go_opt.service.calls.calls import Call, Method, Service
from go_opt.service.jobs.convert import (
    check_environment,
    check_names,
    finetune_options,
    pretrain_options,
)
from go_opt.service.jobs.job import Job, NewJob, operation
from go_opt.service.jobs.manager import JobManager
from go_opt.service.messages.requests import parsed

_PRETRAIN: Final = training_pb2.JOB_KIND_PRETRAIN
_FINETUNE: Final = training_pb2.JOB_KIND_FINETUNE
_REQUESTS: Final = {_PRETRAIN: training_pb2.PretrainRequest, _FINETUNE: training_pb2.FinetuneRequest}
_Request = training_pb2.PretrainRequest | training_pb2.FinetuneRequest


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
