"""Maps go-opt's errors to gRPC statuses and back with one table.

A status has an ``ErrorInfo`` whose reason names the error class, and a ``BadRequest`` that
names the field at fault. So a client raises the same error as the service.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple, TypeVar

import grpc
from google.protobuf import any_pb2
from google.protobuf.message import Message
from google.rpc import code_pb2, error_details_pb2, status_pb2
from grpc_status import rpc_status

from go_opt import errors
from go_opt.proto import optimizer_pb2

DOMAIN: Final = "go_opt"
# A status is sent as HTTP/2 trailers, which peers refuse above 8 KiB. The message is sent three
# times, percent-encoded and in base64.
MAX_MESSAGE_BYTES: Final = 1000
_MAX_CONFLICT_BYTES: Final = 1500
_Detail = TypeVar("_Detail", bound=Message)


class Row(NamedTuple):
    """One line of the table."""

    reason: str  # of ErrorInfo
    error: type[errors.GoOptError]
    code: int  # google.rpc.Code


TABLE: Final = (
    Row("INVALID_INPUT", errors.InvalidInputError, code_pb2.INVALID_ARGUMENT),
    Row("INVALID_GRAPH", errors.GraphError, code_pb2.INVALID_ARGUMENT),
    Row("INVALID_MODEL", errors.ModelError, code_pb2.INVALID_ARGUMENT),
    Row("INVALID_TARGET", errors.TargetError, code_pb2.INVALID_ARGUMENT),
    Row("INVALID_PLAN", errors.PlanError, code_pb2.INVALID_ARGUMENT),
    Row("INVALID_POLICY", errors.PolicyError, code_pb2.INVALID_ARGUMENT),
    Row("NOT_FOUND", errors.NotFoundError, code_pb2.NOT_FOUND),
    Row("ALREADY_EXISTS", errors.AlreadyExistsError, code_pb2.ALREADY_EXISTS),
    Row("INFEASIBLE", errors.InfeasibleError, code_pb2.FAILED_PRECONDITION),
    Row("PRECONDITION", errors.PreconditionError, code_pb2.FAILED_PRECONDITION),
    Row("UNAVAILABLE", errors.ServiceError, code_pb2.UNAVAILABLE),
    Row("EXHAUSTED", errors.ExhaustedError, code_pb2.RESOURCE_EXHAUSTED),
    Row("UNAUTHENTICATED", errors.UnauthenticatedError, code_pb2.UNAUTHENTICATED),
    Row("UNSUPPORTED", errors.UnsupportedError, code_pb2.UNIMPLEMENTED),
    Row("CANCELLED", errors.CancelledError, code_pb2.CANCELLED),
    # Not ABORTED or INTERNAL: the environment behind the service failed, and may recover.
    Row("ENVIRONMENT_FAILED", errors.EnvironmentFailedError, code_pb2.UNAVAILABLE),
)


def status_from_error(error: errors.GoOptError) -> status_pb2.Status:
    """The status for an error; a subclass that is not in the table counts as its base class."""
    rows = {row.error: row for row in TABLE}
    row = next((rows[base] for base in type(error).__mro__ if base in rows), None)
    if row is None:  # a class without a row
        return internal_status()
    message = _shortened(str(error))
    details: list[Message] = [error_details_pb2.ErrorInfo(reason=row.reason, domain=DOMAIN)]
    if isinstance(error, errors.InfeasibleError):
        kept = _within(error.conflict, _MAX_CONFLICT_BYTES)
        details.append(optimizer_pb2.Conflict(is_proven=error.is_proven, constraints=kept))
    if isinstance(error, errors.InvalidInputError):
        violation = error_details_pb2.BadRequest.FieldViolation(field=error.field, description=message)
        details.append(error_details_pb2.BadRequest(field_violations=[violation]))
    if isinstance(error, errors.ExhaustedError) and error.retry_s is not None:
        retry = error_details_pb2.RetryInfo()
        retry.retry_delay.FromMicroseconds(round(1e6 * error.retry_s))
        details.append(retry)
    return status_pb2.Status(code=row.code, message=message, details=[_packed(d) for d in details])


def internal_status() -> status_pb2.Status:
    """The status for a defect; only the service's log has the details."""
    message = "the service failed on this call; its log has the reason."
    return status_pb2.Status(code=code_pb2.INTERNAL, message=message)


def error_from_call(error: grpc.RpcError, address: str) -> errors.GoOptError:
    """The error that the service at ``address`` raised, or a ServiceError if it sent none."""
    status = _status_of(error)
    raised = None if status is None else error_from_status(status)
    if raised is not None:
        return raised
    code, text = error.code(), " ".join((error.details() or "no reason given").split())
    if code is grpc.StatusCode.DEADLINE_EXCEEDED:
        return errors.ServiceError(
            f"the service at {address} did not answer within the time limit of the call."
        )
    return errors.ServiceError(f"the service at {address} failed with {code.name}: {text.rstrip('.')}.")


def error_from_status(status: status_pb2.Status) -> errors.GoOptError | None:
    """The error from which a status was made; None if go-opt did not make the status."""
    rows = {row.reason: row for row in TABLE}
    row = rows.get(_detail(status, error_details_pb2.ErrorInfo()).reason)
    if row is None:
        return None
    if issubclass(row.error, errors.InvalidInputError):
        violations = _detail(status, error_details_pb2.BadRequest()).field_violations
        return row.error(status.message, field=violations[0].field if violations else "")
    if issubclass(row.error, errors.InfeasibleError):
        conflict = _detail(status, optimizer_pb2.Conflict())
        return row.error(status.message, is_proven=conflict.is_proven, conflict=tuple(conflict.constraints))
    if issubclass(row.error, errors.ExhaustedError):
        retry = _detail(status, error_details_pb2.RetryInfo())
        delay_s = retry.retry_delay.ToMicroseconds() / 1e6 if retry.HasField("retry_delay") else None
        return row.error(status.message, retry_s=delay_s)
    return row.error(status.message)


def _status_of(error: grpc.RpcError) -> status_pb2.Status | None:
    try:
        return rpc_status.from_call(error)
    except ValueError:  # contradictory trailers, from a service that is not go-opt
        return None


def _detail(status: status_pb2.Status, empty: _Detail) -> _Detail:
    """Fills ``empty`` from the status's detail of the same type, if there is one."""
    for detail in status.details:
        if detail.Is(empty.DESCRIPTOR):
            detail.Unpack(empty)
    return empty


def _packed(detail: Message) -> any_pb2.Any:
    packed = any_pb2.Any()
    packed.Pack(detail)
    return packed


def _within(sentences: Iterable[str], most_bytes: int) -> list[str]:
    """The first sentences that fit into ``most_bytes``, each shortened if necessary."""
    kept: list[str] = []
    for sentence in sentences:
        short = _shortened(sentence)
        most_bytes -= len(short.encode("utf-8"))
        if most_bytes < 0:
            break
        kept.append(short)
    return kept


def _shortened(message: str) -> str:
    raw = message.encode("utf-8", "replace")
    if len(raw) <= MAX_MESSAGE_BYTES:
        return raw.decode("utf-8")
    return raw[: MAX_MESSAGE_BYTES - 3].decode("utf-8", "ignore") + "…"
