"""A search for plans on a thread of its own, beside the methods that take turns on the first one.

Only that makes plans there: they are evaluated, verified and told where everything else is.
Searches counted in evaluations have no such thread: what they try may not depend on which
thread is faster, and nobody waits for them.
"""

from __future__ import annotations

import math
import threading
import time
from collections import deque
from collections.abc import Iterator
from types import TracebackType
from typing import Final, Self

from go_opt.common.cores import num_cores
from go_opt.search.compiling.kernel_cache import until_compiled
from go_opt.search.methods.proposal import Proposal, SearchState, Tried, better_or_miss

_POLL_S: Final = 0.02


def has_core_to_spare(search: SearchState) -> bool:
    """Whether a core is left for a search beside the others, and the time is what is short."""
    return search.request.max_evaluations is None and num_cores() > 1


def beside(
    search: SearchState, methods: Iterator[Proposal | None], tried: Iterator[Tried]
) -> Iterator[Proposal | None]:
    """What ``methods`` propose, and each better plan among those tried on the other thread.

    The thread ends with the generator, at the latest once it has tried what it is at; an error in
    it is raised here.
    """
    with _Thread(search, tried) as thread:
        for proposal in methods:
            if search.is_late:  # and there may be no other turn
                yield from _better(search, thread.heard())
            yield proposal
            yield from _better(search, thread.heard())
        while thread.is_alive:
            thread.wait()
            yield from _better(search, thread.heard())
            yield None
        yield from _better(search, thread.heard())


def _better(search: SearchState, heard: list[Tried]) -> Iterator[Proposal]:
    """The best of the plans, where it is better than what is known; the rest are misses."""
    by_interval = sorted(heard, key=lambda tried: math.inf if tried[1] is None else tried[1].interval_s)
    for rank, (method, plan) in enumerate(by_interval):
        proposal = better_or_miss(search, method, plan if rank == 0 else None)
        if proposal is not None:
            yield proposal


class _Thread:
    """Runs a generator ahead of who hears it, as long as what it makes does not come too late."""

    def __init__(self, search: SearchState, tried: Iterator[Tried]) -> None:
        self._search, self._tried = search, tried
        self._heard: deque[Tried] = deque()
        self._error: BaseException | None = None
        self._is_over = threading.Event()
        # A search that is abandoned while it waits for the thread does not keep the process.
        self._thread = threading.Thread(target=self._run, name="go-opt beside", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        self._is_over.set()
        self._thread.join()

    @property
    def is_alive(self) -> bool:
        return self._thread.is_alive()

    def wait(self) -> None:
        """A moment, for the thread to end."""
        self._thread.join(_POLL_S)

    def heard(self) -> list[Tried]:
        """What was tried since this was asked last."""
        if self._error is not None:
            raise self._error
        return [self._heard.popleft() for _ in range(len(self._heard))]

    def _run(self) -> None:
        try:
            for _ in until_compiled():
                if self._is_over.is_set():
                    return
            took_s = 0.0
            while not self._is_over.is_set() and took_s < self._search.left_s:
                started_s = time.monotonic()
                try:
                    self._heard.append(next(self._tried))
                except StopIteration:
                    return
                took_s = time.monotonic() - started_s
        except BaseException as error:  # for the search to raise: a thread has nobody to tell
            self._error = error
