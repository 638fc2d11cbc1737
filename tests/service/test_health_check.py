"""The probe of containers: what it answers, and that it stays light."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import grpc
import pytest
from grpc_health.v1 import health, health_pb2, health_pb2_grpc

from go_opt.service.health_check import main
from tests.certificates import Authority

Status = health_pb2.HealthCheckResponse


@contextmanager
def served(credentials: grpc.ServerCredentials | None = None) -> Iterator[str]:
    servicer = health.HealthServicer()
    servicer.set("", Status.SERVING)
    servicer.set("draining", Status.NOT_SERVING)
    with ThreadPoolExecutor(2) as pool:
        server = grpc.server(pool)
        health_pb2_grpc.add_HealthServicer_to_server(servicer, server)
        if credentials is None:
            port = server.add_insecure_port("127.0.0.1:0")
        else:
            port = server.add_secure_port("127.0.0.1:0", credentials)
        server.start()
        yield f"127.0.0.1:{port}"
        server.stop(0).wait()


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with served() as place:
        yield place


def test_a_service_that_serves_is_code_0(address: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([address]) == 0
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize(
    ("service", "said"), [("draining", "answers NOT_SERVING"), ("unknown", "answers NOT_FOUND")]
)
def test_any_other_answer_is_code_1(
    address: str, service: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([address, "--service", service]) == 1
    assert f"health check: {address} {said}" in capsys.readouterr().err


def test_nobody_there_is_code_1(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["127.0.0.1:1", "--timeout-s", "0.5"]) == 1
    assert "health check: 127.0.0.1:1 answers" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "said"), [(["nowhere"], "HOST:PORT"), (["--tls-ca", "no/such.pem"], "cannot be read")]
)
def test_bad_arguments_are_one_sentence(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 1
    error = capsys.readouterr().err
    assert said in error
    assert error.count("\n") == 1


def test_mutual_tls(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    authority = Authority(tmp_path)
    server, prober = authority.issue("server"), authority.issue("prober")
    pair = (server.key.read_bytes(), server.cert.read_bytes())
    credentials = grpc.ssl_server_credentials([pair], authority.cert.read_bytes(), True)
    trust = ["--tls-ca", str(authority.cert)]
    own = ["--tls-cert", str(prober.cert), "--tls-key", str(prober.key)]
    with served(credentials) as place:
        assert main([place, *trust, *own]) == 0
        assert main([place, *trust, *own, "--tls-server-name", "localhost"]) == 0
        assert capsys.readouterr().err == ""
        for arguments in ([], trust, [*trust, *own, "--tls-server-name", "elsewhere"]):
            assert main([place, *arguments]) == 1
            assert f"health check: {place} answers UNAVAILABLE" in capsys.readouterr().err


def test_the_probe_loads_no_kernels(address: str) -> None:
    """It runs every few seconds, on the processors of the service."""
    code = (
        "import sys; from go_opt.service.health_check import main; "
        f"assert main([{address!r}]) == 0; assert not {{'numba', 'jax', 'numpy'}} & set(sys.modules)"
    )
    root = Path(__file__).parents[2]
    assert subprocess.run([sys.executable, "-c", code], cwd=root, check=False).returncode == 0
