"""Who wants to know when a job ends."""

from __future__ import annotations

import threading
from collections.abc import Callable


class Watchers:
    """Callbacks by job; several threads may use it at once."""

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
