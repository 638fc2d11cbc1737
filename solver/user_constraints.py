"""The user's constraints; ops are given by name or by regular expression."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

Ops = str | Sequence[str]  # names, or regular expressions that match whole names


@dataclass(frozen=True)
class Pin:
    """The ops run on this chip."""

    ops: Ops
    chip: int

    def __str__(self) -> str:
        return f"pin {_shown(self.ops)} to chip {self.chip}"


@dataclass(frozen=True)
class Forbid:
    """The ops run on none of these chips."""

    ops: Ops
    chips: Sequence[int]

    def __str__(self) -> str:
        return f"forbid {_shown(self.ops)} chips {', '.join(map(str, self.chips))}"


@dataclass(frozen=True)
class Colocate:
    """The ops run on one chip."""

    ops: Ops

    def __str__(self) -> str:
        return f"colocate {_shown(self.ops)}"


@dataclass(frozen=True)
class ChipLimit:
    """What a chip may hold: bytes of weights, each tensor once, and seconds of kernels."""

    chip: int
    at_most_bytes: float | None = None
    at_least_bytes: float | None = None
    at_most_s: float | None = None
    at_least_s: float | None = None

    def __str__(self) -> str:
        limits = [
            f"{name.replace('_', ' ')} {value:g}"
            for name in ("at_most_bytes", "at_least_bytes", "at_most_s", "at_least_s")
            if (value := getattr(self, name)) is not None
        ]
        return f"limit chip {self.chip} to {', '.join(limits) or 'nothing'}"


UserConstraint = Pin | Forbid | Colocate | ChipLimit


def _shown(ops: Ops) -> str:
    return repr(ops) if isinstance(ops, str) else ", ".join(map(repr, ops))
