"""The open environment sessions of a training run."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from types import TracebackType

from go_opt.agents.training.problems.cases import Case
from go_opt.agents.training.problems.environment import CheckedSession, Environment, open_session
from go_opt.errors import EnvironmentFailedError


class Sessions:
    """Sessions of the cases of the last step; sessions of repeated cases are reused."""

    def __init__(self, environment: Environment) -> None:
        self._environment = environment
        self._open: dict[int, tuple[Case, CheckedSession]] = {}

    def __enter__(self) -> Sessions:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self.open([])
        except EnvironmentFailedError:
            if kind is None:  # else what failed first is what the caller must see
                raise

    def open(self, cases: Sequence[Case]) -> list[CheckedSession]:
        wanted = {id(case) for case in cases}
        with ExitStack() as closing:  # all, whichever fails
            for key in self._open.keys() - wanted:
                closing.callback(self._open.pop(key)[1].close)
        for case in cases:
            if id(case) not in self._open:
                session = open_session(self._environment, case.instance.graph, case.instance.target)
                self._open[id(case)] = (case, session)
        return [self._open[id(case)][1] for case in cases]
