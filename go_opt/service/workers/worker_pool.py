"""A pool of worker processes, with one warm spare for when a worker is lost."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from go_opt.errors import CancelledError, ServiceError
from go_opt.service.workers.worker import Worker

_SPARES: Final = 1
_POLL_S: Final = 0.01


class WorkerPool:
    """Lends workers; thread-safe.

    Args:
      size: workers lent at once.
    """

    def __init__(self, size: int) -> None:
        self._size = size
        self._changed = threading.Condition()
        self._lent: list[Worker] = []
        # The last used worker is last in the list and is taken first: its caches are warm, and as few
        # workers as possible have started a policy's process.
        self._idle = [Worker() for _ in range(size + _SPARES)]
        self._is_closed = False
        self.replaced = 0  # workers that ended for any reason and were replaced
        self.killed = 0  # of these, killed during a search

    @contextmanager
    def worker(self, stop: threading.Event) -> Iterator[Worker]:
        """Lends a ready worker for one call.

        Raises:
          CancelledError: ``stop`` was set before a worker was ready.
          ServiceError: the pool is closed, or the worker could not start.
        """
        worker = self._taken(stop)
        try:
            while not worker.is_ready(_POLL_S):
                _check(stop)
            yield worker
        finally:
            self._give_back(worker)

    def is_ready(self) -> bool:
        """Whether at least ``size`` workers have loaded everything."""
        with self._changed:
            self._drop_dead()
            lent = sum(worker.has_loaded for worker in self._lent)
            return lent + sum(map(_is_ready, self._idle)) >= self._size

    def close(self) -> None:
        """End all workers; calls under way fail."""
        with self._changed:
            self._is_closed = True
            for worker in (*self._lent, *self._idle):
                worker.end()
            for worker in self._idle:  # the borrowing threads close the lent workers
                worker.close()
            self._idle.clear()

    def _taken(self, stop: threading.Event) -> Worker:
        with self._changed:
            while not self._is_closed:
                self._drop_dead()
                if self._idle and len(self._lent) < self._size:
                    return self._lend()
                self._changed.wait(_POLL_S)
                _check(stop)
        raise ServiceError("the service has stopped.")

    def _lend(self) -> Worker:
        lent = next(filter(_is_ready, reversed(self._idle)), self._idle[-1])
        self._idle.remove(lent)
        self._lent.append(lent)
        return lent

    def _give_back(self, worker: Worker) -> None:
        with self._changed:
            self._lent.remove(worker)
            if self._is_closed:
                worker.close()
            elif worker.is_free:
                self._idle.append(worker)
            else:
                self._replace(worker)
            self._changed.notify()

    def _drop_dead(self) -> None:
        """Replace idle workers that have died, for example killed for memory."""
        for worker in [worker for worker in self._idle if not worker.is_alive()]:
            self._idle.remove(worker)
            self._replace(worker)

    def _replace(self, worker: Worker) -> None:
        """Kill a worker, and start a new one in a thread, because the exit of a large process is slow."""
        self.replaced += 1
        self.killed += worker.is_hung
        worker.end()

        def replace() -> None:
            worker.close()
            new = Worker()
            with self._changed:
                if self._is_closed:
                    new.close()
                    return
                self._idle.insert(0, new)
                self._changed.notify()

        threading.Thread(target=replace, name="go-opt-worker", daemon=True).start()


def _is_ready(worker: Worker) -> bool:
    try:
        return worker.is_ready()
    except ServiceError:  # it has just ended; its borrower gets the error
        return False


def _check(stop: threading.Event) -> None:
    if stop.is_set():
        raise CancelledError("the call was cancelled.")
