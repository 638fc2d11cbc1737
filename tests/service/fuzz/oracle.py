"""Calls with any bytes, and what may not become of them."""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import grpc
from google.protobuf.message import DecodeError, Message
from google.rpc import error_details_pb2
from grpc_status import rpc_status

from tests.service.fuzz.methods import Method
from tests.service.fuzz.process import SECRET

_MOST_REPLIES: Final = 64
_FORBIDDEN: Final = ("UNKNOWN", "INTERNAL", "ABORTED", "DATA_LOSS", "UNAVAILABLE", "PERMISSION_DENIED")
_PATH: Final = re.compile(r"([a-z_0-9]+)(?:\[(\d+)\])?")
# Above what the call was given: gRPC tells the caller at once.
_SLACK_S: Final = 2.0


@dataclass(frozen=True)
class Outcome:
    """What became of a call."""

    code: str
    text: str
    fields: tuple[str, ...]  # of BadRequest
    replies: tuple[bytes, ...]
    wall_s: float


def call(channel: grpc.Channel, method: Method, requests: Sequence[bytes], timeout_s: float) -> Outcome:
    """Send the requests, one after the other, whatever the method takes."""
    start_s = time.monotonic()
    replies: list[bytes] = []
    rpc: Any = channel.stream_stream(method.path)(iter(requests), timeout=timeout_s)
    try:
        for reply in rpc:
            replies.append(reply)
            if len(replies) == _MOST_REPLIES:
                rpc.cancel()
    except grpc.RpcError:
        pass
    fields: list[str] = []
    status = rpc_status.from_call(rpc) if rpc.code() is not grpc.StatusCode.OK else None
    for detail in status.details if status is not None else ():
        bad = error_details_pb2.BadRequest()
        if detail.Unpack(bad):
            fields.extend(violation.field for violation in bad.field_violations)
    wall_s = time.monotonic() - start_s
    return Outcome(rpc.code().name, rpc.details() or "", tuple(fields), tuple(replies), wall_s)


def fault(method: Method, requests: Sequence[bytes], outcome: Outcome, timeout_s: float) -> str:
    """What is wrong with the outcome, one sentence; empty where nothing is."""
    code = outcome.code
    if code in _FORBIDDEN:
        return f"ended with {code}: {outcome.text}"
    if outcome.wall_s > timeout_s + _SLACK_S:
        return f"took {outcome.wall_s:.1f} s of {timeout_s} s"
    if code == "DEADLINE_EXCEEDED" and not (method.is_search or method.is_watch):
        return f"did not answer within {timeout_s} s"
    if SECRET in outcome.text or any(SECRET.encode() in reply for reply in outcome.replies):
        return "told the content of a file"
    if any(word in outcome.text for word in ("Traceback", "Error(", 'File "')):
        return f"told of its code: {outcome.text}"
    if code == "INVALID_ARGUMENT" and requests:
        if not outcome.fields:
            return f"named no field: {outcome.text}"
        for field in outcome.fields:
            if not any(_has_field(method.request, data, field) for data in requests):
                return f"named the field {field!r}, which the request does not have: {outcome.text}"
    return ""


def _has_field(kind: type[Message], data: bytes, path: str) -> bool:
    """Whether a path leads to a field of the message; entries must be there, if it can be read."""
    message: Any
    try:
        message = kind.FromString(data)
    except DecodeError:
        message = None
    if path == kind.DESCRIPTOR.full_name:  # the request as a whole, such as bytes that are none
        return True
    descriptor = kind.DESCRIPTOR
    for part in path.split("."):
        match = _PATH.fullmatch(part)
        if match is None or descriptor is None or match[1] not in descriptor.fields_by_name:
            return False
        field = descriptor.fields_by_name[match[1]]
        message = None if message is None else getattr(message, field.name)
        if match[2] is not None:
            if not field.is_repeated or (message is not None and int(match[2]) >= len(message)):
                return False
            message = None if message is None else message[int(match[2])]
        descriptor = field.message_type
    return True
