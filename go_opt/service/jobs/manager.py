"""Creates, finds, runs, cancels and deletes the jobs of a service, and resumes interrupted ones."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from google.longrunning import operations_pb2
from google.rpc import code_pb2, status_pb2

from go_opt.errors import CancelledError, ExhaustedError, NotFoundError, PreconditionError, ServiceError
from go_opt.proto import training_pb2
from go_opt.service.jobs.job import (
    CANCELLED,
    CANCELLING,
    FAILED,
    QUEUED,
    RUNNING,
    SUCCEEDED,
    Attempt,
    Job,
    NewJob,
    checkpoint_step,
    no_such_job,
    reached_text,
)
from go_opt.service.jobs.job_process import LocalRunner
from go_opt.service.jobs.store import DataDirectory, is_out_of_space, sync_folder
from go_opt.service.messages.errors import status_from_error

POLICY_NAME: Final = "policy.safetensors"
_STORE_AGAIN_S: Final = 2.0  # after a failure of the store
_RETRY_RANGE_S: Final = (2.0, 300.0)  # four times as long after each start without progress
_FULL_DISK_RETRY_S: Final = 15.0
_FULL_RETRY_S: Final = 30.0  # the delay that refused callers get
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class JobLimits:
    """Limits on the number of jobs, and on the retries of one job."""

    running: int = 1
    waiting: int = 100  # more are refused
    failed_attempts: int = 5  # consecutive starts without progress before a job fails
    grace_s: float = 60.0  # for the running step of a cancelled job


class _Running:
    """What a thread of the manager runs for a job; guarded by the manager's lock."""

    def __init__(self) -> None:
        self._attempt: Attempt | None = None
        self._grace_s: float | None = None  # once the job is to stop
        self._kill: threading.Timer | None = None

    def started(self, attempt: Attempt) -> None:
        self._attempt = attempt
        if self._grace_s is not None:
            self.stop(self._grace_s)

    def stop(self, grace_s: float) -> None:
        """Stop after the running step; kill after ``grace_s``."""
        self._grace_s = grace_s
        if self._attempt is None:
            return
        self._attempt.stop()
        if self._kill is not None:
            self._kill.cancel()
        self._kill = threading.Timer(grace_s, self._attempt.kill)
        self._kill.daemon = True
        self._kill.start()

    def ended(self) -> None:
        self._attempt = None
        if self._kill is not None:
            self._kill.cancel()


class JobManager:
    """The jobs of a data directory, run by a runner, a few at a time.

    A job has ended once its end is stored. Until then it is restarted from its checkpoint, after
    a crash of its process or the service, or a disk failure.

    Thread-safe. The manager closes the directory and the runner. An ``owner`` is a caller's name
    by token or certificate; callers without a name share the empty owner. An owner cannot see
    other owners' jobs unless they are shared, and cannot change them.
    """

    def __init__(
        self, directory: DataDirectory, runner: LocalRunner, limits: JobLimits | None = None
    ) -> None:
        self._directory, self._store, self._runner = directory, directory.store, runner
        self._limits = limits or JobLimits()
        self._running: dict[str, _Running] = {}
        self._due_s: dict[str, float] = {}  # earliest restart, on the monotonic clock
        self._changed = threading.Condition()  # guards the running jobs, and changes of state
        self._watchers: set[tuple[str, Callable[[], object]]] = set()
        self._watching = threading.Lock()  # not the other lock, which is held while files are synced
        self._is_closing = False
        for job in self._store.in_states((RUNNING,)):  # its service was killed
            self._store.update(job.id, state=QUEUED)
        self._threads = [
            threading.Thread(target=self._work, name=f"go-opt job {i}", daemon=True)
            for i in range(self._limits.running)
        ]
        for thread in self._threads:
            thread.start()

    def create(self, new: NewJob) -> Job:
        """Store a job and queue it; the job is durable once this returns.

        Raises:
          AlreadyExistsError: another job has this policy name or request id.
          ExhaustedError: too many jobs are waiting.
          ServiceError: the job cannot be stored, or the service is draining.
        """
        with self._changed:
            if self._is_closing:
                raise ServiceError("the service is draining.")
            waiting = len(self._store.in_states((QUEUED,)))
            if waiting >= self._limits.waiting:
                raise ExhaustedError(
                    f"{waiting} training jobs wait already, the limit is {self._limits.waiting}.",
                    retry_s=_FULL_RETRY_S,
                )
            job = self._store.create(new)
            self._changed.notify_all()
        return job

    def find(self, owner: str = "", *, policy: str = "", request_id: str = "") -> tuple[Job, NewJob] | None:
        """The owner's job with this policy or this request id, and its request."""
        job = self._store.find(owner, policy=policy, request_id=request_id)
        return None if job is None else (job, self._store.request(job.id))

    def job(self, job_id: str, owner: str = "") -> Job:
        """The current state of the job; NotFoundError if the owner sees no such job."""
        job = self._store.job(job_id)
        if not job.is_seen_by(owner):
            raise no_such_job(job_id)
        return job

    def page(self, before: int | None, size: int, owner: str = "") -> list[Job]:
        """At most ``size`` jobs with a number below ``before``, newest first."""
        return self._store.page(before, size, owner)

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

    @contextmanager
    def watch(self, job_id: str, on_end: Callable[[], object]) -> Iterator[None]:
        """Call ``on_end``, from another thread, if the job ends or is deleted during the block.

        Does not check whether the caller may see the job, or whether it exists.
        """
        with self._watching:
            self._watchers.add((job_id, on_end))
        try:
            yield
        finally:
            with self._watching:
                self._watchers.discard((job_id, on_end))

    def cancel(self, job_id: str, owner: str = "") -> None:
        """End the owner's job and keep its progress; does nothing if it has ended."""
        self._own(job_id, owner)
        with self._changed:
            job, running = self._store.job(job_id), self._running.get(job_id)
            if job.is_ended or job.state == CANCELLING:
                return
            if running is None and not job.attempts:
                self._end(job_id, CANCELLED, error=_cancelled("before it was started"))
                return
            # A job that waits for a restart is started once more, to make a policy from its checkpoint.
            self._store.update(job_id, state=CANCELLING)
            self._due_s.pop(job_id, None)
            if running is not None:
                running.stop(self._limits.grace_s)
            self._changed.notify_all()

    def delete(self, job_id: str, owner: str = "") -> None:
        """Delete the owner's job, which must have ended, with its policy and all its files."""
        with self._changed:
            if not self._own(job_id, owner).is_ended:
                raise PreconditionError(f"operations/{job_id} has not ended; cancel it, or wait for its end.")
            with self._directory.removing(job_id):
                self._store.delete(job_id)
        self._notify(job_id)

    def close(self, grace_s: float = 3.0) -> None:
        """Stop running jobs, after their step if it ends in time; a later manager resumes them."""
        with self._changed:
            self._is_closing = True
            for running in self._running.values():
                running.stop(grace_s)
            self._changed.notify_all()
        for thread in self._threads:
            thread.join()
        self._runner.close()
        self._directory.close()

    def _own(self, job_id: str, owner: str) -> Job:
        """The job, if the owner may change it.

        Raises:
          NotFoundError: the owner sees no such job.
          PreconditionError: it is another owner's shared job.
        """
        job = self.job(job_id, owner)
        if job.owner != owner:
            raise PreconditionError(f"operations/{job_id} is shared; only its owner may end or delete it.")
        return job

    def _work(self) -> None:
        while (job := self._take()) is not None:
            self._settle(job.id, self._run(job))

    def _take(self) -> Job | None:
        """Waits for the next job to run; returns it as before its start, or None if the manager closes."""
        with self._changed:
            while not self._is_closing:
                try:
                    job, wait_s = self._take_due()
                except ServiceError as error:
                    _log.warning("%s", error)
                    job, wait_s = None, _STORE_AGAIN_S
                if job is not None:
                    return job
                self._changed.wait(wait_s)
        return None

    def _take_due(self) -> tuple[Job | None, float | None]:
        """A job that may start now, else the seconds until a job may start."""
        now_s, waits_s = time.monotonic(), []
        for job in self._store.in_states((QUEUED, CANCELLING)):
            wait_s = self._due_s.get(job.id, now_s) - now_s
            if job.id in self._running:
                continue
            if wait_s > 0:
                waits_s.append(wait_s)
            elif job.failed_attempts >= self._limits.failed_attempts:
                self._give_up(job)
            else:
                self._start(job)
                return job, None
        return None, min(waits_s, default=None)

    def _start(self, job: Job) -> None:
        # Count the start first, because the job may crash the service.
        self._store.update(
            job.id,
            state=CANCELLING if job.state == CANCELLING else RUNNING,
            started_ns=job.started_ns or time.time_ns(),
            attempts=job.attempts + 1,
            failed_attempts=job.failed_attempts + 1,
        )
        running = self._running[job.id] = _Running()
        if job.state == CANCELLING:
            running.stop(self._limits.grace_s)

    def _run(self, job: Job) -> operations_pb2.Operation | status_pb2.Status:
        """The job's final message, or the status that says why the job was interrupted."""
        running = self._running[job.id]
        try:
            attempt = self._runner.start(self._store.request(job.id), self._directory.folder(job.id))
            with self._changed:
                running.started(attempt)
            try:
                last = attempt.wait(lambda progress: self._on_progress(job, progress))
            finally:
                with self._changed:
                    running.ended()
        except (OSError, ServiceError) as error:
            reason = getattr(error, "strerror", None) or str(error).rstrip(".")
            code = code_pb2.UNAVAILABLE if is_out_of_space(error) else code_pb2.ABORTED
            return _status(code, f"the job cannot be run: {reason}.")
        except Exception:  # a runner's defect: retry the job and keep this thread
            _log.exception("job %s: its runner failed.", job.id)
            last = None
        if last is None:
            return _status(code_pb2.INTERNAL, "the job's process ended before its time.")
        if last.HasField("error") and last.error.code == code_pb2.UNAVAILABLE:
            return last.error
        return last

    def _on_progress(self, job: Job, progress: training_pb2.TrainingProgress) -> None:
        """Store the progress of a job started as ``job``; a start that gets further has not failed."""
        got_further = progress.checkpoint_step > checkpoint_step(job.progress)
        counted = {"failed_attempts": 0} if got_further else {}
        try:
            self._store.update(job.id, progress=progress.SerializeToString(), **counted)
        except ServiceError as error:  # the job continues; the next report is stored
            _log.warning("job %s: %s", job.id, error)

    def _settle(self, job_id: str, last: operations_pb2.Operation | status_pb2.Status) -> None:
        """Store the outcome of an attempt; retries until the store works."""
        with self._changed:
            while True:
                try:
                    self._store_end(self._store.job(job_id), last)
                    break
                except ServiceError as error:
                    _log.warning("job %s: %s", job_id, error)
                    if self._is_closing:  # the next service resumes the job
                        break
                    self._changed.wait(_STORE_AGAIN_S)
            del self._running[job_id]
            self._changed.notify_all()

    def _store_end(self, job: Job, last: operations_pb2.Operation | status_pb2.Status) -> None:
        if isinstance(last, status_pb2.Status):
            self._put_back(job, last)
            return
        progress = training_pb2.TrainingProgress.FromString(job.progress + last.metadata.value)
        reached = {"progress": progress.SerializeToString()}
        if last.HasField("response"):
            self._end(job.id, SUCCEEDED, result=last.response.value, **reached)
        elif last.error.code != code_pb2.CANCELLED:
            self._end(job.id, FAILED, error=last.error.SerializeToString(), **reached)
        elif job.state == CANCELLING:
            self._end(job.id, CANCELLED, error=_cancelled(reached_text(progress)), **reached)
        else:  # this service drains, or someone else sent a signal
            self._put_back(job, _status(code_pb2.INTERNAL, "the job's process was stopped."))

    def _put_back(self, job: Job, reason: status_pb2.Status) -> None:
        """Queue an interrupted job for a restart."""
        failed_attempts = job.failed_attempts
        # A cancelled job does not wait for disk space: only its policy would be lost.
        waits_for_room = reason.code == code_pb2.UNAVAILABLE and job.state != CANCELLING
        if self._is_closing or waits_for_room:  # not the job's fault
            failed_attempts = max(failed_attempts - 1, 0)
        if not self._is_closing:
            folder = self._directory.folder(job.id)
            said = "job %s was cut off in attempt %d: %s See what it printed in %s."
            _log.warning(said, job.id, job.attempts, reason.message, folder)
            if failed_attempts < self._limits.failed_attempts:
                delay_s = _FULL_DISK_RETRY_S if waits_for_room else _delay_s(failed_attempts)
                self._due_s[job.id] = time.monotonic() + delay_s
        self._store.update(
            job.id,
            state=CANCELLING if job.state == CANCELLING else QUEUED,
            failed_attempts=failed_attempts,
            error=reason.SerializeToString(),
        )

    def _give_up(self, job: Job) -> None:
        if job.state == CANCELLING:
            self._end(job.id, CANCELLED, error=_cancelled("and could not be run to make its policy"))
            return
        reason = _status(code_pb2.INTERNAL, "the service ended each time.")
        if job.error is not None:
            reason = status_pb2.Status.FromString(job.error)
        reason.message = f"given up after {job.failed_attempts} starts that got no further: {reason.message}"
        self._end(job.id, FAILED, error=reason.SerializeToString())

    def _end(self, job_id: str, state: int, **values: Any) -> None:
        sync_folder(self._directory.folder(job_id))
        ended: Mapping[str, Any] = {"error": None, "ended_ns": time.time_ns(), **values}
        self._store.update(job_id, state=state, **ended)
        self._due_s.pop(job_id, None)
        self._notify(job_id)

    def _notify(self, job_id: str) -> None:
        with self._watching:  # so that a watcher is not called after it has left
            for watched, on_end in self._watchers:
                if watched == job_id:
                    on_end()


def _delay_s(failed_attempts: int) -> float:
    least_s, most_s = _RETRY_RANGE_S
    return min(least_s * 4.0 ** max(failed_attempts - 1, 0), most_s)


def _status(code: int, message: str) -> status_pb2.Status:
    return status_pb2.Status(code=code, message=message)


def _cancelled(when: str) -> bytes:
    data = status_from_error(CancelledError(f"the job was cancelled {when}.")).SerializeToString()
    assert isinstance(data, bytes)
    return data
