"""A port that stays open, whatever bytes arrive."""

from __future__ import annotations

import logging
import socket
import struct
import time
from typing import Any

import grpc
import pytest
from google.protobuf.wrappers_pb2 import BytesValue
from grpc_health.v1 import health_pb2, health_pb2_grpc

PATIENCE_S = 10.0
MESSAGE = BytesValue(value=b"wait").SerializeToString()


def frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    return struct.pack(">I", len(payload))[1:] + bytes([kind, flags]) + struct.pack(">I", stream) + payload


def literal(name: bytes, value: bytes) -> bytes:
    return b"\x00" + bytes([len(name)]) + name + bytes([len(value)]) + value


def send_call(address: str, path: bytes, *fields: tuple[bytes, bytes], body: bytes = bytes(5)) -> None:
    """One call in HTTP/2 as no gRPC client would send it; waits for whatever comes back."""
    headers = (
        (b":method", b"POST"),
        (b":scheme", b"http"),
        (b":path", path),
        (b":authority", b"x"),
        (b"te", b"trailers"),
        (b"content-type", b"application/grpc"),
        *fields,
    )
    head = b"".join(literal(*field) for field in headers)
    host, _, port = address.rpartition(":")
    with socket.create_connection((host, int(port)), timeout=PATIENCE_S) as connection:
        connection.sendall(
            b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
            + frame(4, 0, 0, b"")
            + frame(1, 4, 1, head)
            + frame(0, 1, 1, body)
        )
        received = b""
        while b"grpc-status" not in received:
            part = connection.recv(65536)
            if not part:
                break
            received += part


def is_serving(address: str) -> bool:
    with grpc.insecure_channel(address) as channel:
        check = health_pb2_grpc.HealthStub(channel).Check
        try:
            return bool(check(health_pb2.HealthCheckRequest(), timeout=PATIENCE_S).status)
        except grpc.RpcError:
            return False


@pytest.mark.parametrize(
    ("path", "fields", "body"),
    [
        (b"", (), bytes(5)),
        (b"/toy.Toy/Quick", ((b"x-request-id", b"\xff\xfe"),), bytes(5)),
        (b"/toy.Toy/Quick", ((b"traceparent", b"\xc3\x28"),), bytes(5)),
        (b"/toy.Toy/Quick", ((b"x-bin", b"!!!"),), bytes(5)),
        (b"/toy.Toy/Quick", ((b"grpc-timeout", b"9999999999999H"),), bytes(5)),
        (b"/toy.Toy/Quick", ((b"grpc-encoding", b"snappy"),), b"\x01\x00\x00\x00\x01x"),
    ],
)
def test_a_strange_call_harms_nobody(toy_address: str, path: bytes, fields: Any, body: bytes) -> None:
    send_call(toy_address, path, *fields, body=body)
    assert is_serving(toy_address)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_path_that_is_no_text_stops_neither_the_port_nor_a_call(
    toy: Any, toy_address: str, caplog: pytest.LogCaptureFixture
) -> None:
    with grpc.insecure_channel(toy_address) as channel:
        search = channel.unary_unary("/toy.Toy/Search").future(MESSAGE, timeout=60)
        assert toy.started.acquire(timeout=PATIENCE_S)
        with caplog.at_level(logging.ERROR):
            for _ in range(2):
                send_call(toy_address, b"/toy\xff\xfe/x")
                end_s = time.monotonic() + PATIENCE_S
                while not is_serving(toy_address):
                    assert time.monotonic() < end_s
        assert caplog.text.count("gRPC stopped to listen") == 2
        toy.go_on.set()
        assert search.result() == MESSAGE
