"""What a process of a run is told."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Job:
    """The work of one process."""

    model: str
    parallel: str
    steps: int
    seed: int
    shardings: str  # path of the exported module
    out: str  # path of the arrays that it writes; its other results stand beside it as .json
    rank: int = -1  # -1: the step on one device
    actions: tuple[tuple[Any, ...], ...] = ()  # of the rank
    address: str = ""  # of the process of rank 0, if there are several
