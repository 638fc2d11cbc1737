"""Runs stored jobs, a few at a time, and resumes interrupted jobs until they end."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from google.longrunning import operations_pb2
from google.rpc import code_pb2, status_pb2

from go_opt.errors import CancelledError, ServiceError
from go_opt.proto import training_pb2
from go_opt.service.jobs.data_directory import DataDirectory, is_out_of_space, sync_folder
from go_opt.service.jobs.job import (
    CANCELLED,
    CANCELLING,
    FAILED,
    QUEUED,
    RUNNING,
    SUCCEEDED,
    Job,
    Runner,
)
from go_opt.service.jobs.taken import Taken, Watchers
from go_opt.service.messages.errors import status_from_error

_STORE_EVERY_S: Final = 1.0  # of progress
_STORE_AGAIN_S: Final = 2.0  # after a failure of the store
_RETRY_RANGE_S: Final = (2.0, 300.0)  # four times as long after each start without progress
_FULL_DISK_RETRY_S: Final = 15.0
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class JobLimits:
    """Limits on the number of jobs, and on the retries of one job."""

    running: int = 1
    waiting: int = 100  # more are refused
    vain_starts: int = 5  # consecutive starts without progress before a job fails
    grace_s: float = 60.0  # for the running step of a cancelled job


class Scheduler:
    """Starts waiting jobs and stores their outcome.

    A job has ended once its end is stored. Until then it is restarted from its checkpoint, after
    a crash of its process or the service, or a disk failure.
    """

    def __init__(self, directory: DataDirectory, runner: Runner, limits: JobLimits) -> None:
        self._directory, self._store, self._runner = directory, directory.store, runner
        self._limits = limits
        self._taken: dict[str, Taken] = {}
        self._due_s: dict[str, float] = {}  # earliest restart, on the monotonic clock
        self.changed = threading.Condition()  # guards the taken jobs, and changes of state
        self.watchers = Watchers()
        self.is_closing = False
        for job in self._store.in_states((RUNNING,)):  # its service was killed
            self._store.update(job.id, state=QUEUED)
        self._threads = [
            threading.Thread(target=self._work, name=f"go-opt job {i}", daemon=True)
            for i in range(limits.running)
        ]
        for thread in self._threads:
            thread.start()

    def seen(self, job: Job) -> Job:
        """The job with its latest progress, which may not be stored yet."""
        taken = self._taken.get(job.id)
        return job if taken is None or job.is_ended else replace(job, progress=taken.progress)

    def cancel(self, job_id: str) -> None:
        """End a job and keep its progress; does nothing if it has ended."""
        with self.changed:
            job, taken = self._store.job(job_id), self._taken.get(job_id)
            if job.is_ended or job.state == CANCELLING:
                return
            if taken is None and not job.attempts:
                self._end(job_id, CANCELLED, error=_cancelled("before it was started"))
                return
            # A job that waits for a restart is started once more, to make a policy from its checkpoint.
            self._store.update(job_id, state=CANCELLING)
            self._due_s.pop(job_id, None)
            if taken is not None:
                taken.stop(self._limits.grace_s)
            self.changed.notify_all()

    def close(self, grace_s: float) -> None:
        """Stop running jobs, kill them after ``grace_s``, and start no more jobs."""
        with self.changed:
            self.is_closing = True
            for taken in self._taken.values():
                taken.stop(grace_s)
            self.changed.notify_all()
        for thread in self._threads:
            thread.join()
        self._runner.close()

    def _work(self) -> None:
        while (taken := self._take()) is not None:
            self._settle(taken, self._run(taken))

    def _take(self) -> Taken | None:
        """Waits for the next job to run; None if the scheduler closes."""
        with self.changed:
            while not self.is_closing:
                try:
                    taken, wait_s = self._take_due()
                except ServiceError as error:
                    _log.warning("%s", error)
                    taken, wait_s = None, _STORE_AGAIN_S
                if taken is not None:
                    return taken
                self.changed.wait(wait_s)
        return None

    def _take_due(self) -> tuple[Taken | None, float | None]:
        """A job that may start now, else the seconds until a job may start."""
        now_s, waits_s = time.monotonic(), []
        for job in self._store.in_states((QUEUED, CANCELLING)):
            wait_s = self._due_s.get(job.id, now_s) - now_s
            if job.id in self._taken:
                continue
            if wait_s > 0:
                waits_s.append(wait_s)
            elif job.vain_starts >= self._limits.vain_starts:
                self._give_up(job)
            else:
                return self._start(job), None
        return None, min(waits_s, default=None)

    def _start(self, job: Job) -> Taken:
        is_cancelling = job.state == CANCELLING
        started = replace(
            job,
            state=CANCELLING if is_cancelling else RUNNING,
            started_ns=job.started_ns or time.time_ns(),
            attempts=job.attempts + 1,
            vain_starts=job.vain_starts + 1,
        )
        # Count the start first, because the job may crash the service.
        names = ("state", "started_ns", "attempts", "vain_starts")
        self._store.update(job.id, **{name: getattr(started, name) for name in names})
        taken = self._taken[job.id] = Taken(started)
        if is_cancelling:
            taken.stop(self._limits.grace_s)
        return taken

    def _run(self, taken: Taken) -> operations_pb2.Operation | status_pb2.Status:
        """The job's final message, or the status that says why the job was interrupted."""
        job_id = taken.job.id
        try:
            attempt = self._runner.start(self._store.request(job_id), self._directory.folder(job_id))
            with self.changed:
                taken.started(attempt)
            try:
                last = attempt.wait(lambda progress: self._on_progress(taken, progress))
            finally:
                with self.changed:
                    taken.ended()
        except (OSError, ServiceError) as error:
            reason = getattr(error, "strerror", None) or str(error).rstrip(".")
            code = code_pb2.UNAVAILABLE if is_out_of_space(error) else code_pb2.ABORTED
            return _status(code, f"the job cannot be run: {reason}.")
        except Exception:  # a runner's defect: retry the job and keep this thread
            _log.exception("job %s: its runner failed.", job_id)
            last = None
        if last is None:
            return _status(code_pb2.INTERNAL, "the job's process ended before its time.")
        if last.HasField("error") and last.error.code == code_pb2.UNAVAILABLE:
            return last.error
        return last

    def _on_progress(self, taken: Taken, progress: training_pb2.TrainingProgress) -> None:
        taken.progress = progress.SerializeToString()
        if time.monotonic() - taken.stored_s < _STORE_EVERY_S:
            return
        try:
            self._store.update(taken.job.id, progress=taken.progress, vain_starts=taken.vain_starts)
            taken.stored_s = time.monotonic()
        except ServiceError as error:  # the job continues; the next report is stored
            _log.warning("job %s: %s", taken.job.id, error)

    def _settle(self, taken: Taken, last: operations_pb2.Operation | status_pb2.Status) -> None:
        """Store the outcome of an attempt; retries until the store works."""
        with self.changed:
            while True:
                try:
                    self._store_end(taken, last)
                    break
                except ServiceError as error:
                    _log.warning("job %s: %s", taken.job.id, error)
                    if self.is_closing:  # the next service resumes the job
                        break
                    self.changed.wait(_STORE_AGAIN_S)
            del self._taken[taken.job.id]
            self.changed.notify_all()

    def _store_end(self, taken: Taken, last: operations_pb2.Operation | status_pb2.Status) -> None:
        job = self._store.job(taken.job.id)
        if isinstance(last, status_pb2.Status):
            self._put_back(taken, job, last)
            return
        progress = training_pb2.TrainingProgress.FromString(taken.progress)
        progress.MergeFromString(last.metadata.value)
        taken.progress = progress.SerializeToString()
        if last.HasField("response"):
            self._end(job.id, SUCCEEDED, result=last.response.value, progress=taken.progress)
        elif last.error.code != code_pb2.CANCELLED:
            self._end(job.id, FAILED, error=last.error.SerializeToString(), progress=taken.progress)
        elif job.state == CANCELLING:
            when = (
                f"after step {progress.step} of {progress.steps}"
                if progress.step
                else "before its first step"
            )
            self._end(job.id, CANCELLED, error=_cancelled(when), progress=taken.progress)
        else:  # this service drains, or someone else sent a signal
            self._put_back(taken, job, _status(code_pb2.INTERNAL, "the job's process was stopped."))

    def _put_back(self, taken: Taken, job: Job, reason: status_pb2.Status) -> None:
        """Queue an interrupted job for a restart."""
        vain_starts = taken.vain_starts
        # A cancelled job does not wait for disk space: only its policy would be lost.
        waits_for_room = reason.code == code_pb2.UNAVAILABLE and job.state != CANCELLING
        if self.is_closing or waits_for_room:  # not the job's fault
            vain_starts = max(vain_starts - 1, 0)
        if not self.is_closing:
            _log.warning(
                "job %s was cut off in attempt %d: %s See what it printed in %s.",
                job.id,
                job.attempts,
                reason.message,
                self._directory.folder(job.id),
            )
            if vain_starts < self._limits.vain_starts:
                delay_s = _FULL_DISK_RETRY_S if waits_for_room else _delay_s(vain_starts)
                self._due_s[job.id] = time.monotonic() + delay_s
        self._store.update(
            job.id,
            state=CANCELLING if job.state == CANCELLING else QUEUED,
            vain_starts=vain_starts,
            progress=taken.progress,
            error=reason.SerializeToString(),
        )

    def _give_up(self, job: Job) -> None:
        if job.state == CANCELLING:
            self._end(job.id, CANCELLED, error=_cancelled("and could not be run to make its policy"))
            return
        reason = _status(code_pb2.INTERNAL, "the service ended each time.")
        if job.error is not None:
            reason = status_pb2.Status.FromString(job.error)
        reason.message = f"given up after {job.vain_starts} starts that got no further: {reason.message}"
        self._end(job.id, FAILED, error=reason.SerializeToString())

    def _end(self, job_id: str, state: int, **values: Any) -> None:
        sync_folder(self._directory.folder(job_id))
        ended: Mapping[str, Any] = {"error": None, "ended_ns": time.time_ns(), **values}
        self._store.update(job_id, state=state, **ended)
        self._due_s.pop(job_id, None)
        self.watchers.notify(job_id)


def _delay_s(vain_starts: int) -> float:
    least_s, most_s = _RETRY_RANGE_S
    return min(least_s * 4.0 ** max(vain_starts - 1, 0), most_s)


def _status(code: int, message: str) -> status_pb2.Status:
    return status_pb2.Status(code=code, message=message)


def _cancelled(when: str) -> bytes:
    data = status_from_error(CancelledError(f"the job was cancelled {when}.")).SerializeToString()
    assert isinstance(data, bytes)
    return data
