"""The jobs of a service: made, looked at, cancelled and deleted; a scheduler runs them."""

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
_FULL_RETRY_S: Final = 30.0  # said to who is refused


class JobManager:
    """The jobs of a data directory, run by a runner; what was cut off is taken up again.

    Several threads may use it at once. It closes the directory and the runner. An ``owner`` is
    who asks, by token or certificate; the empty one is everyone without a name. Jobs of other
    owners are not there, unless they are shared, and then not to be changed.
    """

    def __init__(self, directory: DataDirectory, runner: Runner, limits: JobLimits | None = None) -> None:
        self._directory, self._store = directory, directory.store
        self._limits = limits or JobLimits()
        self._scheduler = Scheduler(directory, runner, self._limits)

    def create(self, new: NewJob) -> Job:
        """Store a job and run it when its turn comes; it survives once this returns.

        Raises:
          AlreadyExistsError: its policy or request id is another job's.
          ExhaustedError: too many jobs wait.
          ServiceError: it cannot be stored, or the service is draining.
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
        """The owner's job with this policy or this request id, and what was asked for."""
        job = self._store.find(owner, policy=policy, request_id=request_id)
        return None if job is None else (self._scheduler.seen(job), self._store.request(job.id))

    def job(self, job_id: str, owner: str = "") -> Job:
        """The job as it is now; NotFoundError where there is none for the owner."""
        return self._scheduler.seen(self._stored(job_id, owner))

    def page(self, before: int | None, size: int, owner: str = "") -> list[Job]:
        """At most ``size`` jobs, newest first, older than number ``before``."""
        return [self._scheduler.seen(job) for job in self._store.page(before, size, owner)]

    def count(self, state: int) -> int:
        """The jobs in a state, of all owners."""
        return len(self._store.in_states((state,)))

    def find_policy(self, name: str, owner: str = "") -> Path:
        """The file of the policy that a job made; NotFoundError where there is none for the owner.

        Args:
          name: of the owner's own, or ``OWNER/NAME`` of a shared one.
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
        """Call ``on_end`` from another thread when the job ends; what is returned undoes it.

        Whether there is such a job for who asks is not told here.
        """
        return self._scheduler.watchers.add(job_id, on_end)

    def cancel(self, job_id: str, owner: str = "") -> None:
        """End the owner's job and keep what it reached; nothing happens to one that has ended."""
        self._own(job_id, owner)
        self._scheduler.cancel(job_id)

    def delete(self, job_id: str, owner: str = "") -> None:
        """Forget the owner's job, which has ended, with its policy and all its files."""
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
        """The job, to be changed.

        Raises:
          NotFoundError: there is none for the owner.
          PreconditionError: it is another's, and shared.
        """
        job = self._stored(job_id, owner)
        if job.owner != owner:
            raise PreconditionError(f"operations/{job_id} is shared; only its owner may end or delete it.")
        return job

    def close(self, grace_s: float = 3.0) -> None:
        """Cut off what runs, after its step where that ends in time; a later manager goes on with it."""
        self._scheduler.close(grace_s)
        self._directory.close()
