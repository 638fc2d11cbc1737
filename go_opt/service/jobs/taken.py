"""The scheduler's state of a running job, and the callbacks for the ends of jobs."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable

from go_opt.service.jobs.job import Attempt, Job, checkpoint_step


class Taken:
    """A job that a thread of the scheduler runs; guarded by the scheduler's lock."""

    def __init__(self, job: Job) -> None:
        self.job = job  # as of its start
        self.progress = job.progress
        self.stored_s = -math.inf
        self._attempt: Attempt | None = None
        self._is_stopping = False
        self._grace_s = 0.0
        self._kill: threading.Timer | None = None

    @property
    def vain_starts(self) -> int:
        """Consecutive starts without progress; 0 once the checkpoint has advanced."""
        got_further = checkpoint_step(self.progress) > checkpoint_step(self.job.progress)
        return 0 if got_further else self.job.vain_starts

    def started(self, attempt: Attempt) -> None:
        self._attempt = attempt
        if self._is_stopping:
            self.stop(self._grace_s)

    def stop(self, grace_s: float) -> None:
        """Stop after the running step; kill after ``grace_s``."""
        self._is_stopping, self._grace_s = True, grace_s
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


class Watchers:
    """Callbacks for the ends of jobs; thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._by_job: dict[str, list[Callable[[], None]]] = {}

    def add(self, job_id: str, on_end: Callable[[], None]) -> Callable[[], None]:
        """Call ``on_end`` when the job ends or is deleted; returns a function that cancels this."""
        with self._lock:
            self._by_job.setdefault(job_id, []).append(on_end)

        def forget() -> None:
            with self._lock:
                left = [each for each in self._by_job.pop(job_id, []) if each is not on_end]
                if left:
                    self._by_job[job_id] = left

        return forget

    def notify(self, job_id: str) -> None:
        """Runs a job's callbacks under the lock, so that a cancelled callback is never called later."""
        with self._lock:
            for on_end in self._by_job.pop(job_id, []):
                on_end()
