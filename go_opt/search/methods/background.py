"""Work on a thread of its own, in the background of the methods that take turns.

What it makes is taken by its owner, and evaluated, verified and reported where everything else is.
Only for searches short of time: those counted in evaluations may not depend on which thread is
faster, and nobody waits for them.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Generator, Iterator
from contextlib import closing
from typing import Final, Generic, TypeVar

from go_opt.common.processes import num_cores
from go_opt.search.compiling.kernel_cache import are_compiled
from go_opt.search.methods.events import POLL_S, Event, Miss, Proposal, SearchView, Waiting, waiting_until

Item = TypeVar("Item")
CLOSING_S: Final = 0.5  # for a thread to end; what it is at may take long on large graphs


def has_core_to_spare(search: SearchView) -> bool:
    """Whether a core is left for work in the background, and the time is what is short."""
    return search.request.max_evaluations is None and num_cores() > 1


class Worker(Generic[Item]):
    """Runs an iterator, from now on, to its end or until it is closed."""

    def __init__(self, work: Iterator[Item], name: str) -> None:
        self._work = work
        self._made: deque[Item] = deque()
        self._error: BaseException | None = None
        self._is_closed = threading.Event()
        # A search that is abandoned while it waits for the thread does not keep the process.
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End, once the item it is at is made; do not wait long for it."""
        self._is_closed.set()
        self._thread.join(CLOSING_S)

    @property
    def is_over(self) -> bool:
        """Whether nothing more will be made."""
        return not self._thread.is_alive()

    def wait(self) -> None:
        """A moment, for the thread to end."""
        self._thread.join(POLL_S)

    def received(self) -> list[Item]:
        """What was made since this was asked last; raises what the work raised."""
        if self._error is not None:
            raise self._error
        return [self._made.popleft() for _ in range(len(self._made))]

    def _run(self) -> None:
        try:
            for item in self._work:
                self._made.append(item)
                if self._is_closed.is_set():
                    return
        except BaseException as error:  # for the owner to raise: a thread has nobody to report to
            self._error = error


def in_background(
    search: SearchView, others: Iterator[Event], method: Iterator[Event]
) -> Generator[Event, None, None]:
    """The events of ``others`` and, between them, the best of what ``method`` proposed meanwhile.

    The thread ends with the generator, at the latest once it has tried what it is at; an error in
    it is raised here.
    """
    with closing(Worker(_in_time(search, method), "go-opt background")) as worker:
        for event in others:
            if search.is_late:  # and there may be no other turn
                yield from _best(search, worker.received())
            yield event
            yield from _best(search, worker.received())
        while not worker.is_over:
            worker.wait()
            yield from _best(search, worker.received())
            yield Waiting()
        yield from _best(search, worker.received())


def _in_time(search: SearchView, method: Iterator[Event]) -> Iterator[Event]:
    """Its events, as long as the next does not come too late; no kernel is compiled on its time."""
    yield from waiting_until(are_compiled)
    started_s = time.monotonic()
    for event in method:
        took_s = time.monotonic() - started_s
        yield event
        if took_s >= search.left_s:
            return
        started_s = time.monotonic()


def _best(search: SearchView, events: list[Event]) -> Iterator[Event]:
    """The proposal that expects most, where that is better than what is known; the rest are misses."""
    proposals = [event for event in events if isinstance(event, Proposal)]
    best = min(proposals, key=lambda proposal: proposal.expected_s, default=None)
    for event in events:
        if isinstance(event, Proposal):
            is_better = event is best and event.expected_s < search.best_s
            yield event if is_better else Miss(event.method)
        elif isinstance(event, Miss):
            yield event
