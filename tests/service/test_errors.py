"""The error table, both ways, and over the wire."""

from __future__ import annotations

import grpc
import pytest
from google.rpc import code_pb2, status_pb2
from grpc_status import rpc_status

from go_opt import errors
from go_opt.errors import (
    ExhaustedError,
    GoOptError,
    GraphError,
    InfeasibleError,
    InvalidInputError,
    ServiceError,
)
from go_opt.service.messages.errors import (
    MAX_MESSAGE_BYTES,
    TABLE,
    Row,
    error_from_call,
    error_from_status,
    internal_status,
    status_from_error,
)


class FailedCall(grpc.RpcError):
    """What a client meets: a code, a message and trailers."""

    def __init__(self, status: status_pb2.Status) -> None:
        super().__init__()
        self._rpc = rpc_status.to_status(status)

    def code(self) -> grpc.StatusCode:
        return self._rpc.code

    def details(self) -> str:
        return str(self._rpc.details)

    def trailing_metadata(self) -> tuple:
        return tuple(self._rpc.trailing_metadata)


def _classes() -> list[type[GoOptError]]:
    public = [value for value in vars(errors).values() if isinstance(value, type)]
    return [value for value in public if issubclass(value, GoOptError) and value is not GoOptError]


def test_every_error_stands_in_the_table_once() -> None:
    assert sorted(row.error.__name__ for row in TABLE) == sorted(cls.__name__ for cls in _classes())
    assert len({row.reason for row in TABLE}) == len(TABLE)


@pytest.mark.parametrize("row", TABLE, ids=lambda row: row.reason)
def test_round_trip_keeps_class_message_and_field(row: Row) -> None:
    error = row.error("op 'é' is at fault.")
    if isinstance(error, InvalidInputError):
        error = row.error("op 'é' is at fault.", field="ops[3].flops")
    back = error_from_call(FailedCall(status_from_error(error)), "host:1")
    assert type(back) is row.error
    assert str(back) == str(error)
    assert getattr(back, "field", None) == getattr(error, "field", None)


@pytest.mark.parametrize("retry_s", [0.5, None])
def test_when_to_try_again_is_kept(retry_s: float | None) -> None:
    status = status_from_error(ExhaustedError("it is full.", retry_s=retry_s))
    back = error_from_call(FailedCall(status), "host:1")
    assert isinstance(back, ExhaustedError)
    assert back.retry_s == retry_s


def test_an_error_of_no_class_is_a_defect() -> None:
    assert status_from_error(GoOptError("of no class.")) == internal_status()


def test_a_subclass_that_is_not_in_the_table_counts_as_its_base() -> None:
    class ShapeError(GraphError):
        pass

    back = error_from_call(FailedCall(status_from_error(ShapeError("op 'a'."))), "host:1")
    assert type(back) is GraphError


@pytest.mark.parametrize(
    "message", ["x" * 5000, "é" * 5000, "\ud800" * 5000], ids=["ascii", "two", "surrogate"]
)
def test_long_messages_are_cut_to_fit_trailers(message: str) -> None:
    status = status_from_error(GraphError(message))
    assert len(status.message.encode()) <= MAX_MESSAGE_BYTES
    assert status.message.endswith("…")


def test_a_status_without_details_is_a_service_error() -> None:
    back = error_from_call(FailedCall(internal_status()), "host:1")
    assert type(back) is ServiceError
    assert str(back).startswith("the service at host:1 failed with INTERNAL: ")
    foreign = status_pb2.Status(code=code_pb2.INVALID_ARGUMENT, message="of another program\nin lines")
    assert "INVALID_ARGUMENT: of another program in lines." in str(
        error_from_call(FailedCall(foreign), "h:1")
    )


def test_a_conflict_is_kept() -> None:
    error = InfeasibleError("no plan.", is_proven=True, conflict=("a is on chip 0.", "a is on chip 1."))
    back = error_from_status(status_from_error(error))
    assert isinstance(back, InfeasibleError)
    assert (str(back), back.is_proven, back.conflict, back.exit_code) == ("no plan.", True, error.conflict, 3)


def test_none_found_in_time_is_no_proof() -> None:
    back = error_from_status(status_from_error(InfeasibleError("none found.")))
    assert isinstance(back, InfeasibleError)
    assert (back.is_proven, back.conflict, back.exit_code) == (False, (), 5)


def test_a_conflict_is_cut_to_fit_trailers() -> None:
    sentences = tuple(f"{i} " + 100 * "ä" for i in range(100))
    status = status_from_error(InfeasibleError("ü" * 3000, is_proven=True, conflict=sentences))
    back = error_from_status(status)
    assert isinstance(back, InfeasibleError)
    assert 1 < len(back.conflict) < 10
    assert back.conflict == sentences[: len(back.conflict)]
    # As sent: the message percent-encoded, and all of it in base64.
    assert 3 * len(status.message.encode()) + 4 * len(status.SerializeToString()) / 3 < 8000
