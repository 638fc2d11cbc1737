"""Clients where services are not as they should be: gone, full, unknown, cut off."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent import futures
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.longrunning import operations_pb2
from google.rpc import code_pb2, status_pb2
from grpc_status import rpc_status

from go_opt.errors import (
    ExhaustedError,
    InvalidInputError,
    NotFoundError,
    ServiceError,
    UnauthenticatedError,
)
from go_opt.model.graph import Graph
from go_opt.proto import optimizer_pb2, training_pb2
from go_opt.service.calls.security import Security
from go_opt.service.client import connection
from go_opt.service.client.client import Client
from go_opt.service.messages.errors import status_from_error
from go_opt.service.transport.credentials import REQUEST_ID_KEY, Credentials
from go_opt.service.transport.retry import Retry
from tests.certificates import Authority
from tests.serving import serve_in_thread

SOON = Retry(tries=5, first_s=0.01, longest_s=0.02)
TOKEN = "0123456789abcdef"
Answer = Callable[[grpc.ServicerContext], Any]


class Script:
    """A service that answers each call as the next line says, whatever is asked."""

    def __init__(self, *lines: Answer) -> None:
        self._lines = list(lines)
        self._lock = threading.Lock()
        self.asked: list[tuple[str, bytes, dict[str, str]]] = []  # method, message, metadata

    def service(self, details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler:
        def answer(data: bytes, context: grpc.ServicerContext) -> Any:
            with self._lock:
                self.asked.append((details.method, data, dict(context.invocation_metadata())))
                line = self._lines.pop(0)
            return line(context)

        if details.method.endswith("OptimizeStream"):
            return grpc.unary_stream_rpc_method_handler(answer)
        return grpc.unary_unary_rpc_method_handler(answer)


@contextmanager
def played(script: Script) -> Iterator[str]:
    server = grpc.server(futures.ThreadPoolExecutor(4))
    server.add_generic_rpc_handlers((script,))
    address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    server.start()
    try:
        yield address
    finally:
        server.stop(None).wait()


def refuse(error: Any) -> Answer:
    status = rpc_status.to_status(status_from_error(error))
    return lambda context: context.abort_with_status(status)


def answer(*messages: Any) -> Answer:
    return lambda context: messages[0].SerializeToString()


TARGETS = optimizer_pb2.ListTargetsResponse(targets=[optimizer_pb2.TargetSummary(name="mine")])
DRAINING = refuse(ServiceError("the service is draining."))


def test_a_call_outlasts_a_service_that_is_gone_or_full() -> None:
    script = Script(DRAINING, refuse(ExhaustedError("it is full.", retry_s=0.01)), DRAINING, answer(TARGETS))
    with played(script) as address, Client(address, retry=SOON) as client:
        assert client.list_targets() == ("mine",)
    names = [metadata[REQUEST_ID_KEY] for _, _, metadata in script.asked]
    assert len(names) == 4
    assert len(set(names)) == 1


def test_a_call_gives_up() -> None:
    script = Script(*[DRAINING] * 5)
    with (
        played(script) as address,
        Client(address, retry=SOON) as client,
        pytest.raises(ServiceError, match="draining") as error,
    ):
        client.list_targets(request_id="ci-17")
    assert error.value.__notes__ == ["request ci-17"]


def test_a_refusal_is_final() -> None:
    script = Script(refuse(InvalidInputError("it is wrong.", field="seed")))
    with (
        played(script) as address,
        Client(address, retry=SOON) as client,
        pytest.raises(InvalidInputError, match="it is wrong") as error,
    ):
        client.list_targets()
    assert error.value.field == "seed"
    assert len(script.asked) == 1


def test_a_job_is_created_once_however_often_it_is_asked_for(graph: Graph) -> None:
    script = Script(DRAINING, DRAINING, refuse(NotFoundError("no policy.", field="from_policy")))
    with (
        played(script) as address,
        Client(address, retry=SOON) as client,
        pytest.raises(NotFoundError),
    ):
        client.finetune("mine", graph, from_policy="other")
    requests = [training_pb2.FinetuneRequest.FromString(data) for _, data, _ in script.asked]
    assert requests[0].request_id
    assert requests == [requests[0]] * 3


def job(state: str, **outcome: Any) -> operations_pb2.Operation:
    message = operations_pb2.Operation(name="operations/1", done=bool(outcome), **outcome)
    message.metadata.Pack(training_pb2.TrainingProgress(state=f"JOB_STATE_{state}"))
    return message


def test_to_wait_for_a_job_outlasts_a_restart_of_the_service() -> None:
    failed = status_pb2.Status(code=code_pb2.ABORTED, message="the board is on fire.")
    script = Script(answer(job("RUNNING")), DRAINING, DRAINING, answer(job("FAILED", error=failed)))
    with played(script) as address, Client(address, retry=SOON) as client:
        operation = client.operation("operations/1")
        assert operation.wait(30).state == "FAILED"
        with pytest.raises(ServiceError, match=r"operations/1 failed with ABORTED: the board is on fire\.$"):
            operation.result()


def test_a_stream_is_asked_for_again_only_before_it_answers(graph: Graph) -> None:
    update = optimizer_pb2.OptimizeUpdate(
        improvement=optimizer_pb2.OptimizeResponse(status="STATUS_FEASIBLE")
    )

    def cut_off(context: grpc.ServicerContext) -> Iterator[bytes]:
        yield update.SerializeToString()
        DRAINING(context)

    def gone(context: grpc.ServicerContext) -> Iterator[bytes]:
        DRAINING(context)
        yield b""

    script = Script(gone, cut_off)
    with played(script) as address, Client(address, retry=SOON) as client:
        updates = client._connection.stream("OptimizeStream", b"", timeout_s=20)
        assert next(updates) == update
        with pytest.raises(ServiceError, match="draining"):
            next(updates)
    assert len(script.asked) == 2


def test_a_stream_that_ends_without_an_answer(graph: Graph) -> None:
    script = Script(lambda context: iter(()))
    with (
        played(script) as address,
        Client(address) as client,
        pytest.raises(ServiceError, match="ended the stream without an answer"),
    ):
        next(client.optimize_stream(graph, "mcm-2x2"))


def test_the_deadline_ends_a_call_that_hangs() -> None:
    release = threading.Event()
    script = Script(lambda context: release.wait(30))
    with played(script) as address, Client(address, timeout_s=0.3) as client:
        with pytest.raises(ServiceError, match="within the time limit"):
            client.list_targets()
        release.set()


def test_every_call_has_a_deadline() -> None:
    left_s: list[float] = []

    def look(context: grpc.ServicerContext) -> bytes:
        left_s.append(context.time_remaining())
        return TARGETS.SerializeToString()

    with played(Script(look)) as address, Client(address) as client:
        client.list_targets()
    assert 50 < left_s[0] < 61


def test_to_close_ends_what_waits() -> None:
    class Closing(Retry):
        def wait_s(self, tried: int, draw: Callable[[], float]) -> float:
            threading.Timer(0.1, client.close).start()
            return super().wait_s(tried, draw)

    script = Script(refuse(ExhaustedError("it is full.", retry_s=50.0)))
    with played(script) as address:
        client = Client(address, retry=Closing(), timeout_s=600.0)
        start_s = time.monotonic()
        with pytest.raises(ServiceError, match="is closed"):
            client.list_targets()
        assert time.monotonic() - start_s < 30
        with pytest.raises(ServiceError, match="is closed"):
            client.list_targets()
    assert len(script.asked) == 1


@pytest.mark.parametrize("answers", [None, 0, 1])
def test_to_close_ends_what_is_under_way(answers: int | None) -> None:
    """A call, and a stream before and after its first answer."""
    closed = threading.Event()

    def close() -> None:
        client.close()
        closed.set()

    def never(context: grpc.ServicerContext) -> bytes:
        threading.Thread(target=close).start()
        closed.wait(60)
        return b""

    def stream(context: grpc.ServicerContext) -> Iterator[bytes]:
        yield from [optimizer_pb2.OptimizeUpdate().SerializeToString()] * (answers or 0)
        never(context)

    with played(Script(never if answers is None else stream)) as address:
        client = Client(address)
        calls = client._connection

        def ask() -> None:
            if answers is None:
                calls.call("ListTargets", b"", timeout_s=60, name="it")
            else:
                list(calls.stream("OptimizeStream", b"", timeout_s=60, name="it"))

        with pytest.raises(ServiceError, match="is closed") as caught:
            ask()
        assert "request it" in caught.value.__notes__


@pytest.mark.parametrize("name", ["", "two words", "ü", "x" * 200, "line\nbreak"])
def test_a_request_id_that_no_log_takes(name: str) -> None:
    with (
        played(Script()) as address,
        Client(address) as client,
        pytest.raises(InvalidInputError, match="request_id") as error,
    ):
        client.list_targets(request_id=name)
    assert error.value.field == "request_id"


# --------------------------------------------------------------------------- credentials


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


@pytest.fixture
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "CONNECT_TIMEOUT_S", 1.0)


def test_a_service_of_an_unknown_authority(authority: Authority, tmp_path: Path, soon: None) -> None:
    pair = authority.issue("service")
    other = Authority(tmp_path, "other authority")
    with (
        serve_in_thread(security=Security(pair.cert, pair.key)) as address,
        pytest.raises(ServiceError, match=r"answers at .*(?i:certificate)"),
    ):
        Client(address, credentials=Credentials(tls_ca=other.cert))


def test_a_client_that_does_not_encrypt(authority: Authority, soon: None) -> None:
    pair = authority.issue("service")
    with (
        serve_in_thread(security=Security(pair.cert, pair.key)) as address,
        pytest.raises(ServiceError, match="no go-opt service answers"),
    ):
        Client(address)


def test_a_client_without_a_certificate(authority: Authority, soon: None) -> None:
    pair = authority.issue("service")
    security = Security(pair.cert, pair.key, authority.cert)
    with (
        serve_in_thread(security=security) as address,
        pytest.raises(ServiceError),
        Client(address, credentials=Credentials(tls_ca=authority.cert), retry=SOON) as client,
    ):
        client.list_targets()


@pytest.mark.parametrize("token", [None, "another token"[:7] * 4])
def test_a_client_without_a_known_token(tmp_path: Path, token: str | None, graph: Graph) -> None:
    (tmp_path / "tokens").write_text(f"tester {TOKEN}\n")
    (tmp_path / "tokens").chmod(0o600)
    with (
        serve_in_thread(security=Security(tokens=tmp_path / "tokens")) as address,
        Client(address, credentials=Credentials(token=token)) as client,
    ):
        with pytest.raises(UnauthenticatedError, match="token"):
            client.list_targets()
        with pytest.raises(UnauthenticatedError, match="token"):
            next(client.optimize_stream(graph, "mcm-2x2"))
        with Client(address, credentials=Credentials(token=TOKEN)) as client:
            assert client.list_targets()


def test_a_token_never_crosses_a_network_in_the_clear() -> None:
    for address in ("192.0.2.1:50051", "example.org:50051", "0.0.0.0:50051"):
        with pytest.raises(InvalidInputError, match="unencrypted") as error:
            Client(address, credentials=Credentials(token=TOKEN))
        assert error.value.field == "token"


def test_a_token_stays_out_of_sight() -> None:
    assert TOKEN not in repr(Credentials(token=TOKEN))


def test_files_that_are_no_credentials(authority: Authority, tmp_path: Path) -> None:
    pair, other = authority.issue("one"), authority.issue("two")
    (tmp_path / "text").write_text("hello")
    ca = authority.cert
    for given, field in (
        ({"tls_ca": tmp_path / "none.pem"}, "tls_ca"),
        ({"tls_ca": tmp_path / "text"}, "tls_ca"),
        ({"tls_ca": tmp_path}, "tls_ca"),
        ({"tls_ca": "a\0b"}, "tls_ca"),
        ({"tls_ca": ca, "tls_cert": tmp_path / "text", "tls_key": pair.key}, "tls_cert"),
        ({"tls_ca": ca, "tls_cert": pair.cert, "tls_key": other.key}, "tls_cert"),
        ({"tls_ca": ca, "tls_cert": pair.cert, "tls_key": tmp_path / "none.key"}, "tls_key"),
        ({"tls_ca": ca, "tls_cert": pair.cert}, "tls_cert"),
        ({"tls_cert": pair.cert, "tls_key": pair.key}, "tls_cert"),
        ({"token": "two words"}, "token"),
        ({"token": ""}, "token"),
        ({"token": "line\nbreak"}, "token"),
    ):
        with pytest.raises(InvalidInputError) as error:
            Client("127.0.0.1:1", credentials=Credentials(**given))  # type: ignore[arg-type]
        assert error.value.field == field, given


def test_a_service_that_is_not_there_says_why(soon: None) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # and does not listen
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(ServiceError, match=rf"answers at {address} \(waited 1 s\): .*refused"):
            Client(address)
