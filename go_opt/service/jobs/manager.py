"""Creates, finds, cancels and deletes the jobs of a service; a scheduler runs them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Final

from go_opt.errors import ExhaustedError, NotFoundError, PreconditionError, ServiceError
from go_opt.proto import training_pb2
from go_opt.service.jobs.data_directory import DataDirectory
from go_opt.service.jobs.job import CANCELLED, QUEUED, SUCCEEDED, Job, NewJob, Runner, no_such_job
from go_opt.service.jobs.scheduler import JobLimits, Scheduler

POLICY_NAME: Final = "policy.safetensors"
_FULL_RETRY_S: Final = 30.0  # the delay that refused callers get


class JobManager:
    """The jobs of a data directory, run by a runner; interrupted jobs are resumed.

    Thread-safe. The manager closes the directory and the runner. An ``owner`` is a caller's name
    by token or certificate; callers without a name share the empty owner. An owner cannot see
    other owners' jobs unless they are shared, and cannot change them.
    """

    def __init__(self, directory: DataDirectory, runner: Runner, limits: JobLimits | None = None) -> None:
        self._directory, self._store = directory, directory.store
        self._limits = limits or JobLimits()
        self._scheduler = Scheduler(directory, runner, self._limits)

    def create(self, new: NewJob) -> Job:
        """Store a job and queue it; the job is durable once this returns.

        Raises:
          AlreadyExistsError: another job has this policy name or request id.
          ExhaustedError: too many jobs are waiting.
          ServiceError: the job cannot be stored, or the service is draining.
        """
        with self._scheduler.changed:
            if self._scheduler.is_closing:
                raise ServiceError("the service is draining.")
            waiting = len(self._store.in_states((QUEUED,)))
            if waiting >= self._limits.waiting:
                raise ExhaustedError(
                    f"{waiting} training jobs wait already, the limit is {self._limits.waiting}.",
                    retry_s=_FULL_RETRY_S,
                )
            job = self._store.create(new)
            self._scheduler.changed.notify_all()
        return job

    def find(self, owner: str = "", *, policy: str = "", request_id: str = "") -> tuple[Job, NewJob] | None:
        """The owner's job with this policy or this request id, and its request."""
        job = self._store.find(owner, policy=policy, request_id=request_id)
        return None if job is None else (self._scheduler.seen(job), self._store.request(job.id))

    def job(self, job_id: str, owner: str = "") -> Job:
        """The current state of the job; NotFoundError if the owner sees no such job."""
        return self._scheduler.seen(self._stored(job_id, owner))

    def page(self, before: int | None, size: int, owner: str = "") -> list[Job]:
        """At most ``size`` jobs with a number below ``before``, newest first."""
        return [self._scheduler.seen(job) for job in self._store.page(before, size, owner)]

    def count(self, state: int) -> int:
        """The number of jobs in a state, of all owners."""
        return len(self._store.in_states((state,)))

    def find_policy(self, name: str, owner: str = "") -> Path:
        """The file of a trained policy; NotFoundError if the owner sees no such policy.

        Args:
          name: the name of the owner's policy, or ``OWNER/NAME`` of a shared policy.
        """
        of, slash, policy = name.rpartition("/")
        job = self._store.find(of if slash else owner, policy=policy)
        if job is None or not job.is_seen_by(owner):
            raise NotFoundError(f"no policy {name[:100]!r} was trained by this service.", field="policy")
        path = self._directory.folder(job.id) / POLICY_NAME
        if job.state not in (SUCCEEDED, CANCELLED) or not path.is_file():
            state = training_pb2.JobState.Name(job.state).removeprefix("JOB_STATE_")
            raise NotFoundError(f"there is no policy {name!r}: its job is {state}.", field="policy")
        return path

    def watch(self, job_id: str, on_end: Callable[[], None]) -> Callable[[], None]:
        """Call ``on_end`` from another thread when the job ends; returns a function that cancels this.

        Does not check whether the caller may see the job, or whether it exists.
        """
        return self._scheduler.watchers.add(job_id, on_end)

    def cancel(self, job_id: str, owner: str = "") -> None:
        """End the owner's job and keep its progress; does nothing if it has ended."""
        self._own(job_id, owner)
        self._scheduler.cancel(job_id)

    def delete(self, job_id: str, owner: str = "") -> None:
        """Delete the owner's job, which must have ended, with its policy and all its files."""
        with self._scheduler.changed:
            if not self._own(job_id, owner).is_ended:
                raise PreconditionError(f"operations/{job_id} has not ended; cancel it, or wait for its end.")
            with self._directory.removing(job_id):
                self._store.delete(job_id)
        self._scheduler.watchers.notify(job_id)

    def _stored(self, job_id: str, owner: str) -> Job:
        job = self._store.job(job_id)
        if not job.is_seen_by(owner):
            raise no_such_job(job_id)
        return job

    def _own(self, job_id: str, owner: str) -> Job:
        """The job, if the owner may change it.

        Raises:
          NotFoundError: the owner sees no such job.
          PreconditionError: it is another owner's shared job.
        """
        job = self._stored(job_id, owner)
        if job.owner != owner:
            raise PreconditionError(f"operations/{job_id} is shared; only its owner may end or delete it.")
        return job

    def close(self, grace_s: float = 3.0) -> None:
        """Stop running jobs, after their step if it ends in time; a later manager resumes them."""
        self._scheduler.close(grace_s)
        self._directory.close()
