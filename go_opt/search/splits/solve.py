"""The search that a search with splits calls, and the callbacks of its caller."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, Protocol

from go_opt.model.graph import Graph
from go_opt.result import OptimizeResult, Request, Step


class Solve(Protocol):
    """A search that splits no ops."""

    def __call__(
        self,
        graph: Graph,
        request: Request,
        *,
        on_step: Callable[[Step], None],
        on_improvement: Callable[[OptimizeResult], None],
        should_stop: Callable[[], bool],
    ) -> OptimizeResult: ...


class Watch(NamedTuple):
    """Callbacks of the caller."""

    on_step: Callable[[Step], None]
    on_improvement: Callable[[OptimizeResult], None]
    should_stop: Callable[[], bool]
