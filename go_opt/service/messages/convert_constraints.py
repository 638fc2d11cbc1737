"""The user's constraints to and from their messages."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Final

from go_opt.errors import InvalidInputError
from go_opt.proto import optimizer_pb2
from go_opt.solver.problem.user_constraints import (
    LIMITS,
    ChipLimit,
    Colocate,
    CutAfter,
    Forbid,
    Pin,
    UserConstraint,
)


def constraints_to_proto(constraints: Iterable[UserConstraint]) -> list[optimizer_pb2.Constraint]:
    """The messages of constraints; :func:`constraints_from_proto` gives the same constraints back."""
    return [_to_proto(constraint) for constraint in constraints]


def constraints_from_proto(messages: Iterable[optimizer_pb2.Constraint]) -> tuple[UserConstraint, ...]:
    """The constraints of messages.

    Raises:
      InvalidInputError: one says nothing, or something that cannot be.
    """
    return tuple(_from_proto(i, message) for i, message in enumerate(messages))


def _to_proto(constraint: UserConstraint) -> optimizer_pb2.Constraint:
    (name,) = (name for name, (kind, _) in _KINDS.items() if isinstance(constraint, kind))
    message = getattr(optimizer_pb2, type(constraint).__name__)(**vars(constraint))
    return optimizer_pb2.Constraint(**{name: message})


def _from_proto(i: int, message: optimizer_pb2.Constraint) -> UserConstraint:
    name = message.WhichOneof("kind")
    if name is None:
        raise InvalidInputError(f"constraints[{i}] is of no kind.", field="constraints")
    try:
        return _KINDS[name][1](getattr(message, name))
    except InvalidInputError as error:
        raise InvalidInputError(f"constraints[{i}]: {error}", field="constraints") from None


def _limit(message: Any) -> ChipLimit:
    given = {name: getattr(message, name) for name in LIMITS if message.HasField(name)}
    return ChipLimit(message.chip, **given)


# By the name of its field in the message: the class, and what reads it.
_KINDS: Final[dict[str, tuple[type[UserConstraint], Callable[[Any], UserConstraint]]]] = {
    "pin": (Pin, lambda message: Pin(tuple(message.ops), message.chip)),
    "forbid": (Forbid, lambda message: Forbid(tuple(message.ops), tuple(message.chips))),
    "colocate": (Colocate, lambda message: Colocate(tuple(message.ops))),
    "cut_after": (CutAfter, lambda message: CutAfter(tuple(message.ops))),
    "limit": (ChipLimit, _limit),
}
