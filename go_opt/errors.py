"""The errors of go-opt; each class also subclasses the matching builtin exception.

Every message is one sentence that names the op, field or limit at fault. The
command line maps an error to its ``exit_code``; the service maps it to the
status code of the same name (``go_opt.service.messages.errors``).
"""

from __future__ import annotations


class GoOptError(Exception):
    """Base of every error go-opt raises on purpose."""

    exit_code = 2


class InvalidInputError(GoOptError, ValueError):
    """An argument, file or message is malformed; ``field`` names the part at fault."""

    def __init__(self, message: str, *, field: str = "") -> None:
        super().__init__(message)
        self.field = field


class GraphError(InvalidInputError):
    """A graph breaks a rule of :class:`go_opt.model.graph.Graph`."""


class ModelError(InvalidInputError):
    """A model file or function cannot be turned into a graph."""


class TargetError(InvalidInputError):
    """A target file is malformed or a target is unknown."""


class PlanError(InvalidInputError):
    """A plan is malformed, or belongs to another graph or target."""


class PolicyError(InvalidInputError):
    """A policy or checkpoint file is malformed or of another version."""


class InfeasibleError(GoOptError, ValueError):
    """No valid plan exists or was found; the message names op, demand and limit.

    Args:
      is_proven: whether it is proven that no plan exists. Otherwise none was found in time.
      conflict: the user's constraints that no plan satisfies together, as sentences.
    """

    exit_code = 5

    def __init__(self, message: str, *, is_proven: bool = False, conflict: tuple[str, ...] = ()) -> None:
        super().__init__(message)
        self.is_proven, self.conflict = is_proven, conflict
        if is_proven:
            self.exit_code = 3


class NotFoundError(InvalidInputError):
    """A session, job or policy that a request names does not exist, or no longer exists."""


class AlreadyExistsError(InvalidInputError):
    """The name that a request gives is already taken."""


class PreconditionError(GoOptError, ValueError):
    """The request cannot be served in the current state, but may succeed later."""


class ServiceError(GoOptError, ConnectionError):
    """A remote go-opt service is unreachable or failed."""

    exit_code = 4


class ExhaustedError(ServiceError):
    """A service has reached its limit of calls, sessions, jobs or plans.

    ``retry_s`` says when to try again. None: the same request always exceeds the limit.
    """

    def __init__(self, message: str, *, retry_s: float | None = 1.0) -> None:
        super().__init__(message)
        self.retry_s = retry_s


class UnauthenticatedError(ServiceError):
    """The service requires a token, and the call carries no token that the service knows."""


class UnsupportedError(ServiceError):
    """The service does not support the request."""


class CancelledError(ServiceError):
    """The call or job was cancelled."""


class EnvironmentFailedError(GoOptError, RuntimeError):
    """The environment failed or gave an invalid answer; the message names the environment and batch."""

    exit_code = 4
