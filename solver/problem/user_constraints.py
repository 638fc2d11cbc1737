"""The user's constraints; ops are given by name or type, or by regular expressions of these.

``f(o)`` is the chip of op o. Relays count on their chip as kernels.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any, Final, get_args

import numpy as np

from go_opt.errors import InvalidInputError
from go_opt.model.codecs.fields import shown

Ops = str | Sequence[str]  # names, or regular expressions that match whole names
_MAX_CHIP: Final = 2**31 - 1
_MOST_LISTED: Final = 5


@dataclass(frozen=True)
class Pin:
    """The ops run on this chip: ``f(o) = chip``."""

    ops: Ops = ()
    chip: int = -1  # has to be given
    op_types: Ops = ()

    def __post_init__(self) -> None:
        _set_ops(self)
        _set(self, "chip", _chip(self, self.chip))

    def __str__(self) -> str:
        return f"pin {_listed(self)} to chip {self.chip}"


@dataclass(frozen=True)
class Forbid:
    """The ops run on none of these chips: ``f(o)`` is not among ``chips``."""

    ops: Ops = ()
    chips: Sequence[int] = ()
    op_types: Ops = ()

    def __post_init__(self) -> None:
        _set_ops(self)
        if not isinstance(self.chips, Sequence | np.ndarray):
            raise _wrong(f"chips must be a list of chip numbers, not {shown(self.chips)}.")
        _set(self, "chips", tuple(_chip(self, chip) for chip in self.chips))
        if not self.chips:
            raise _wrong(f"forbid {_listed(self)} forbids no chip.")

    def __str__(self) -> str:
        return f"forbid {_listed(self)} chips {', '.join(map(str, self.chips))}"


@dataclass(frozen=True)
class Colocate:
    """The ops run on one chip: ``f(o) = f(p)`` for all o and p among the ops.

    If dataflow is acyclic, all ops between them run on that chip too. This constraint also
    expresses that no cut falls between ops.
    """

    ops: Ops = ()
    op_types: Ops = ()

    def __post_init__(self) -> None:
        _set_ops(self)

    @property
    def rule(self) -> str:
        """The name of the rule that plans break."""
        return "colocate"

    def __str__(self) -> str:
        return f"colocate {_listed(self)}"


@dataclass(frozen=True)
class KeepState(Colocate):
    """The ops that touch a state run on one chip, where the state lies; it follows from the graph."""

    state: str = ""

    @property
    def rule(self) -> str:
        return "state"

    def __str__(self) -> str:
        return f"state {self.state!r} lies on one chip"


@dataclass(frozen=True)
class CutAfter:
    """A chip ends after the ops: ``f(v) > f(u)`` for every edge (u, v) from one of the ops to another op.

    So every other op that depends on them, directly or not, runs on a later chip. Chips must have
    an order: rings and chains whose dataflow is acyclic.
    """

    ops: Ops = ()
    op_types: Ops = ()

    def __post_init__(self) -> None:
        _set_ops(self)

    def __str__(self) -> str:
        return f"cut after {_listed(self)}"


@dataclass(frozen=True)
class ChipLimit:
    """Limits on a chip: bytes of weights, each tensor once, seconds of kernels per inference, ops, kernels.

    Ops are those of the graph: relays and views are none. Relays are kernels.
    """

    chip: int
    at_most_bytes: float | None = None
    at_least_bytes: float | None = None
    at_most_s: float | None = None
    at_least_s: float | None = None
    at_most_ops: float | None = None
    at_most_kernels: float | None = None

    def __post_init__(self) -> None:
        _set(self, "chip", _chip(self, self.chip))
        given = {name: value for name in LIMITS if (value := getattr(self, name)) is not None}
        if not given:
            raise _wrong(f"limit of chip {self.chip}: give one of {', '.join(LIMITS)}.")
        for name, value in given.items():
            _set(self, name, _amount(f"limit of chip {self.chip}: {name}", value))

    def __str__(self) -> str:
        given = [
            f"{name.replace('_', ' ')} {value:g}"
            for name in LIMITS
            if (value := getattr(self, name)) is not None
        ]
        return f"limit chip {self.chip} to {', '.join(given)}"


@dataclass(frozen=True)
class Stages:
    """The plan has exactly this many stages: chips, or groups of replicas, that run ops of the graph."""

    count: int

    def __post_init__(self) -> None:
        if not _is_whole(self.count) or not 1 <= self.count <= _MAX_CHIP:
            raise _wrong(f"Stages: count must be a whole number of 1 or more, not {shown(self.count)}.")
        _set(self, "count", int(self.count))

    def __str__(self) -> str:
        return f"exactly {self.count} stage{'s' * (self.count > 1)}"


LIMITS: Final = tuple(field.name for field in fields(ChipLimit) if field.name != "chip")

UserConstraint = Pin | Forbid | Colocate | CutAfter | ChipLimit | Stages
# By the names in files and messages, in file order. Fields have the same names in files and classes.
KINDS: Final[dict[str, type[UserConstraint]]] = {
    "pin": Pin,
    "forbid": Forbid,
    "colocate": Colocate,
    "cut_after": CutAfter,
    "limit": ChipLimit,
    "stages": Stages,
}


def checked_constraints(constraints: Any) -> tuple[UserConstraint, ...]:
    """Returns the caller's constraints as a tuple.

    Raises:
      InvalidInputError: an entry is not a constraint.
    """
    if isinstance(constraints, str) or not isinstance(constraints, Sequence):
        raise _wrong(f"constraints must be a list of constraints, not {shown(constraints)}.")
    for i, constraint in enumerate(constraints):
        if not isinstance(constraint, UserConstraint):
            kinds = ", ".join(kind.__name__ for kind in get_args(UserConstraint))
            raise _wrong(f"constraints[{i}] must be one of {kinds}, not {shown(constraint)}.")
    return tuple(constraints)


def _set_ops(constraint: Pin | Forbid | Colocate | CutAfter) -> None:
    """Stores names and types as tuples, so that constraints compare by value and are hashable."""
    for field in ("ops", "op_types"):
        given = getattr(constraint, field)
        names = (given,) if isinstance(given, str) else given
        if not isinstance(names, Sequence) or not all(isinstance(name, str) for name in names):
            raise _wrong(f"{field} must be a name or a list of names, not {shown(given)}.")
        _set(constraint, field, tuple(names))
    if not constraint.ops and not constraint.op_types:
        raise _wrong(f"{type(constraint).__name__} names no op.")


def _chip(constraint: Any, chip: Any) -> int:
    if not _is_whole(chip) or not 0 <= chip <= _MAX_CHIP:
        what = type(constraint).__name__
        raise _wrong(f"{what}: a chip must be a whole number of 0 or more, not {shown(chip)}.")
    return int(chip)


def _is_whole(number: Any) -> bool:
    return isinstance(number, int | np.integer) and not isinstance(number, bool)


def _amount(what: str, value: Any) -> float:
    is_number = isinstance(value, int | float | np.number) and not isinstance(value, bool)
    try:
        number = float(value) if is_number else math.nan
    except OverflowError:  # an integer larger than any float
        number = math.inf
    if not (math.isfinite(number) and number >= 0):
        raise _wrong(f"{what} must be a finite number of 0 or more, not {shown(value)}.")
    return number


def _set(constraint: Any, name: str, value: Any) -> None:
    object.__setattr__(constraint, name, value)


def _listed(constraint: Pin | Forbid | Colocate | CutAfter) -> str:
    types = [f"all {op_type}" for op_type in constraint.op_types]
    names = [*map(repr, constraint.ops), *types]
    listed = ", ".join(names[:_MOST_LISTED])
    return listed if len(names) <= _MOST_LISTED else f"{listed} and {len(names) - _MOST_LISTED} more"


def _wrong(message: str) -> InvalidInputError:
    return InvalidInputError(message, field="constraints")
