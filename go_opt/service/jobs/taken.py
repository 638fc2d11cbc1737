"""What a scheduler keeps of jobs: of one that it has taken up, and who wants to know when one ends."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable

from go_opt.service.jobs.job import Attempt, Job, checkpoint_step


class Taken:
    """A job that a thread of the manager has taken; guarded by the manager's lock."""

    def __init__(self, job: Job) -> None:
        self.job = job  # as it was started
        self.progress = job.progress
        self.stored_s = -math.inf
        self._attempt: Attempt | None = None
        self._is_stopping = False
        self._grace_s = 0.0
        self._kill: threading.Timer | None = None

    @property
    def vain_starts(self) -> int:
        """None where the checkpoint got further."""
        got_further = checkpoint_step(self.progress) > checkpoint_step(self.job.progress)
        return 0 if got_further else self.job.vain_starts

    def started(self, attempt: Attempt) -> None:
        self._attempt = attempt
        if self._is_stopping:
            self.stop(self._grace_s)

    def stop(self, grace_s: float) -> None:
        """Stop after the running step; kill after this time."""
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
    """Callbacks for the ends of jobs; several threads may use it at once."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._by_job: dict[str, list[Callable[[], None]]] = {}

    def add(self, job_id: str, on_end: Callable[[], None]) -> Callable[[], None]:
        """Have ``on_end`` called when the job ends or is deleted; what is returned undoes it."""
        with self._lock:
            self._by_job.setdefault(job_id, []).append(on_end)

        def forget() -> None:
            with self._lock:
                left = [each for each in self._by_job.pop(job_id, []) if each is not on_end]
                if left:
                    self._by_job[job_id] = left

        return forget

    def notify(self, job_id: str) -> None:
        """The job ended. Called under the lock: a callback that was undone is called no more."""
        with self._lock:
            for on_end in self._by_job.pop(job_id, []):
                on_end()
