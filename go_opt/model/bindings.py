"""What decides the graph of a model at load, beside its file and the precision."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

Numbers = float | Sequence[float]


@dataclass(frozen=True)
class Bindings:
    """Numbers for what a model leaves open."""

    dims: Mapping[str, int] = field(default_factory=dict)  # symbolic dimension -> size
    # input -> its elements in row-major order, or one number for all of them
    values: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    trips: Mapping[str, int] = field(default_factory=dict)  # loop, by the name of its op -> its trips
    # input, or a pattern -> the output that is its next value, as "NAME" or "NAME:SCOPE"; empty: no state
    states: Mapping[str, str] = field(default_factory=dict)

    @staticmethod
    def of(
        dims: Mapping[str, int] | None = None,
        values: Mapping[str, Numbers] | None = None,
        trips: Mapping[str, int] | None = None,
        states: Mapping[str, str] | None = None,
    ) -> Bindings:
        """The bindings of these arguments of :func:`go_opt.load`."""
        rows = {
            name: tuple(given) if isinstance(given, Sequence) else (given,)
            for name, given in (values or {}).items()
        }
        return Bindings(dict(dims or {}), rows, dict(trips or {}), dict(states or {}))


NO_BINDINGS: Final = Bindings()
