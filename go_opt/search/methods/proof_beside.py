"""A refinement on a thread of its own, beside the methods that look for plans.

It proves on whoever's turn it is; what it knows is published after each stretch of work. It is
nicer than the others: where all cores are busy plans come first. Only for searches short of time:
those counted in evaluations may not depend on which thread is faster.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from collections import deque
from typing import Final, NamedTuple

from go_opt.search.methods.proposal import IntArray
from go_opt.solver import Refinement
from go_opt.solver.certify.problem.problem import RefinementProblem

EXPANSIONS: Final = 16  # between two looks at what others found
NICER: Final = 2  # beside two busy threads on two cores it gets half of one
WAIT_S: Final = 0.005
# Telling why takes as long as a step of the proof: not for every small rise of the bound.
RISE: Final = 1.002


class _News(NamedTuple):
    """What the refinement knew after its last stretch."""

    lower_bound_s: float
    reason: str
    placement: IntArray | None
    replication: IntArray | None
    upper_s: float
    is_over: bool


class RefinementBeside:
    """The face of a :class:`Refinement`, which works between the calls."""

    def __init__(self, problem: RefinementProblem) -> None:
        self.problem = problem
        self._refinement = Refinement(problem)
        self._news = self._seen(0.0, "")
        self._others: deque[IntArray] = deque()
        self._error: BaseException | None = None
        self._is_closed = threading.Event()
        # A search that is abandoned does not keep the process.
        self._thread = threading.Thread(target=self._run, name="go-opt proof", daemon=True)
        self._thread.start()

    @property
    def _known(self) -> _News:
        if self._error is not None:
            raise self._error
        return self._news

    @property
    def lower_bound_s(self) -> float:
        return self._known.lower_bound_s

    @property
    def reason(self) -> str:
        return self._known.reason

    @property
    def placement(self) -> IntArray | None:
        return self._known.placement

    @property
    def replication(self) -> IntArray | None:
        return self._known.replication

    @property
    def upper_s(self) -> float:
        return self._known.upper_s

    @property
    def is_over(self) -> bool:
        return self._known.is_over

    def run(self, expansions: int) -> bool:
        """A moment of waiting; it runs anyway."""
        self._thread.join(WAIT_S)
        return self.is_over

    def consider(self, placement: IntArray) -> bool:
        """Take a placement into account before the next stretch; whether it is better shows then."""
        self._others.append(placement)
        return False

    def close(self) -> None:
        """End the thread after its stretch."""
        self._is_closed.set()
        self._thread.join()

    def _run(self) -> None:
        if sys.platform == "linux":  # where threads have a niceness of their own
            with contextlib.suppress(OSError):
                os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), NICER)
        try:
            while not self._is_closed.is_set() and not self._refinement.is_over:
                while self._others:
                    self._refinement.consider(self._others.popleft())
                self._refinement.run(EXPANSIONS)
                self._news = self._seen(self._news.lower_bound_s, self._news.reason)
        except BaseException as error:  # for the search to raise: a thread has nobody to tell
            self._error = error

    def _seen(self, told_s: float, reason: str) -> _News:
        refinement = self._refinement
        bound_s, is_over = refinement.lower_bound_s, refinement.is_over
        if bound_s > told_s * (1.0 if is_over else RISE):
            told_s, reason = bound_s, refinement.reason
        return _News(
            told_s, reason, refinement.placement, refinement.replication, refinement.upper_s, is_over
        )
