"""As many worker processes as may work at once, and one more that is warm when one is lost."""

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
    """Lends workers; used by many threads.

    Args:
      size: workers lent at once.
    """

    def __init__(self, size: int) -> None:
        self._size = size
        self._changed = threading.Condition()
        self._lent: list[Worker] = []
        # The last one used stands last and is taken first: its caches are warm, and as few as
        # possible have started a policy's process.
        self._idle = [Worker() for _ in range(size + _SPARES)]
        self._is_closed = False
        self.replaced = 0  # workers that ended, for whatever reason, and were started anew
        self.killed = 0  # of these, ended in the middle of a search

    @contextmanager
    def worker(self, stop: threading.Event) -> Iterator[Worker]:
        """A worker that is ready, for one call.

        Raises:
          CancelledError: ``stop`` was set before there was one.
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
        """Whether as many workers as may work at once have loaded everything."""
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
            for worker in self._idle:  # the thread that has one of the others closes it
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
        """Those that ended while they had nothing to do, such as for want of memory."""
        for worker in [worker for worker in self._idle if not worker.is_alive()]:
            self._idle.remove(worker)
            self._replace(worker)

    def _replace(self, worker: Worker) -> None:
        """End a worker and start another, in a thread: the end of a large one takes its time."""
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
    except ServiceError:  # it has just ended; who is given it is told so
        return False


def _check(stop: threading.Event) -> None:
    if stop.is_set():
        raise CancelledError("the call was cancelled.")
