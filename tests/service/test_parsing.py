"""Health checks and reflection: bytes that are no message, and those that are."""

from __future__ import annotations

import grpc
import pytest
from google.rpc import error_details_pb2
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection_pb2
from grpc_status import rpc_status

HEALTH, REFLECTION = "grpc.health.v1.Health", "grpc.reflection.v1alpha.ServerReflection"


@pytest.mark.parametrize(
    ("method", "field"),
    [
        (f"/{HEALTH}/Check", "service"),
        (f"/{HEALTH}/Watch", "service"),
        (f"/{REFLECTION}/ServerReflectionInfo", "host"),
    ],
)
def test_bytes_that_are_no_message_are_refused(toy_channel: grpc.Channel, method: str, field: str) -> None:
    call = toy_channel.stream_stream(method)(iter([b"\x0a\x01\xff"]), timeout=20)
    with pytest.raises(grpc.RpcError):
        list(call)
    assert call.code() is grpc.StatusCode.INVALID_ARGUMENT
    request = error_details_pb2.BadRequest()
    details = rpc_status.from_call(call).details
    assert any(detail.Unpack(request) for detail in details)
    assert request.field_violations[0].field == field


def test_messages_are_answered(toy_channel: grpc.Channel) -> None:
    check = toy_channel.unary_unary(f"/{HEALTH}/Check")
    asked = health_pb2.HealthCheckRequest(service="toy.Toy").SerializeToString()
    assert health_pb2.HealthCheckResponse.FromString(check(asked, timeout=20)).status == 1
    watch = toy_channel.unary_stream(f"/{HEALTH}/Watch")(asked, timeout=20)
    assert health_pb2.HealthCheckResponse.FromString(next(watch)).status == 1
    watch.cancel()
    asked = reflection_pb2.ServerReflectionRequest(list_services="*").SerializeToString()
    answers = toy_channel.stream_stream(f"/{REFLECTION}/ServerReflectionInfo")(
        iter([asked, asked]), timeout=20
    )
    listed = [reflection_pb2.ServerReflectionResponse.FromString(answer) for answer in answers]
    assert [len(answer.list_services_response.service) for answer in listed] == [3, 3]
