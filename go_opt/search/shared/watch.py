"""What a caller hears of a search, and how it stops one."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from go_opt.result import OptimizeResult, Step


class Watch(NamedTuple):
    """Callbacks of the caller."""

    on_step: Callable[[Step], None]
    on_improvement: Callable[[OptimizeResult], None]
    should_stop: Callable[[], bool]
    on_interrupt: Callable[[], None] = lambda: None  # Ctrl-C ended a search, which returns its best plan
