"""Names of chips where stages are replicated: a stage goes by all its chips, ``chips 4-7``."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Final

from go_opt.model.plan import Plan

_OF_CHIP: Final = re.compile(r"chip (\d+) compute")  # with transfers, chips of a stage differ


class StageNames:
    """The names of one plan.

    Args:
      size: chips of each stage by its first chip; a chip that is missing is alone.
    """

    def __init__(self, size: Mapping[int, int]) -> None:
        self._size = size

    @staticmethod
    def of_plan(plan: Plan) -> StageNames:
        return StageNames(dict(zip(plan.placement.tolist(), plan.replication.tolist(), strict=True)))

    def named(self, first_chip: int) -> str:
        """``chip 3``, or ``chips 4-7`` of a stage."""
        return named_stage(first_chip, self._size.get(first_chip, 1))

    def chips(self, first_chips: Iterable[int]) -> list[int]:
        """All chips of some stages."""
        return [chip for first in first_chips for chip in range(first, first + self._size.get(first, 1))]

    def term(self, name: str) -> str:
        """The name of a term of the interval: ``chip 4 compute`` is that of all chips of its stage."""
        match = _OF_CHIP.fullmatch(name)
        return f"{self.named(int(match[1]))} compute" if match else name


def binds(bottleneck: str, first_chip: int, last_chip: int) -> bool:
    """Whether a term of the interval is of one of these chips."""
    return any(bottleneck.startswith(f"chip {chip} ") for chip in range(first_chip, last_chip + 1))


def named_stage(first_chip: int, size: int) -> str:
    """``chip 3``, or ``chips 4-7`` where it is of several."""
    return f"chip{'s' if size > 1 else ''} {stage_range(first_chip, size)}"


def stage_range(first_chip: int, size: int) -> str:
    """``3``, or ``4-7``."""
    return str(first_chip) if size == 1 else f"{first_chip}-{first_chip + size - 1}"


def stage_cell(first_chip: int, size: int) -> str:
    """The first cell of a row: ``3``, or ``4-7 x4``."""
    return stage_range(first_chip, size) + (f" x{size}" if size > 1 else "")
