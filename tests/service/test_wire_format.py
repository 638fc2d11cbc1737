"""Messages taken apart by their bytes."""

from __future__ import annotations

import pytest
from google.protobuf.message import DecodeError

from go_opt.proto import optimizer_pb2
from go_opt.service.messages.wire_format import broken_field, wire_fields

REQUEST = optimizer_pb2.OptimizeRequest(budget_s=0.5, seed=2**40, policy="p" * 200)


def test_fields_are_found_where_they_are() -> None:
    data = REQUEST.SerializeToString()
    fields = list(wire_fields(data))
    assert [field.tag >> 3 for field in fields] == [4, 6, 12]
    assert b"".join(data[field.start : field.end] for field in fields) == data
    assert data[fields[-1].content : fields[-1].end] == b"p" * 200


@pytest.mark.parametrize(
    "data",
    [b"\xff" * 11, b"\x80", b"\x0a\x05a", b"\x21\x00", b"\x0b\x0c", b"\x08\x01" * 1001],
    ids=["endless number", "cut number", "cut text", "cut double", "group", "too many"],
)
def test_bytes_that_are_no_message(data: bytes) -> None:
    with pytest.raises(DecodeError):
        list(wire_fields(data))


@pytest.mark.parametrize(
    ("data", "field"),
    [
        (b"\x62\x01\xff", "policy"),  # no UTF-8
        (b"\x30\x01\x0a\x02\x12\x7f", "graph"),  # an op that is cut
        (b"\x30", "go_opt.v1.OptimizeRequest"),
        (b"\xff", "go_opt.v1.OptimizeRequest"),
    ],
)
def test_what_is_broken_is_named(data: bytes, field: str) -> None:
    with pytest.raises(DecodeError):
        optimizer_pb2.OptimizeRequest.FromString(data)
    assert broken_field(optimizer_pb2.OptimizeRequest, data) == field
