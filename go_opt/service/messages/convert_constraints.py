"""The user's constraints to and from their messages."""

from __future__ import annotations

from collections.abc import Iterable

from go_opt.errors import InvalidInputError
from go_opt.proto import optimizer_pb2
from go_opt.solver.problem.user_constraints import KINDS, UserConstraint


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
    (name,) = (name for name, kind in KINDS.items() if isinstance(constraint, kind))
    message = getattr(optimizer_pb2, type(constraint).__name__)(**vars(constraint))
    return optimizer_pb2.Constraint(**{name: message})


def _from_proto(i: int, message: optimizer_pb2.Constraint) -> UserConstraint:
    name = message.WhichOneof("kind")
    if name is None:
        raise InvalidInputError(f"constraints[{i}] is of no kind.", field="constraints")
    asked = getattr(message, name)
    given = {
        field.name: getattr(asked, field.name)
        for field in asked.DESCRIPTOR.fields
        if not field.has_presence or asked.HasField(field.name)
    }
    lists = {key: tuple(value) for key, value in given.items() if not isinstance(value, int | float)}
    try:
        return KINDS[name](**given | lists)
    except InvalidInputError as error:
        raise InvalidInputError(f"constraints[{i}]: {error}", field="constraints") from None
