"""A service in a process of its own: it starts, drains on a signal and exits with 0."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from go_opt.env import load_target
from go_opt.errors import ServiceError
from go_opt.graph import Graph
from go_opt.service.client import Client

ROOT = Path(__file__).parents[2]
# The optimizer of conftest.py, in a process of its own; seed 103 searches until it is told
# to stop, seed 104 does not listen.
PROGRAM = """
import sys, time
sys.path.insert(0, {folder!r})
from conftest import FakeOptimizer
from go_opt.service.server import serve

class Optimizer(FakeOptimizer):
    def optimize(self, graph, target, *, should_stop, **options):
        print("searching", file=sys.stderr, flush=True)
        if options["seed"] == 104:
            time.sleep(60)
        return super().optimize(graph, target, should_stop=should_stop, **options)

serve("127.0.0.1:0", optimizer=Optimizer(), workers=2)
"""


@contextmanager
def service() -> Iterator[tuple[subprocess.Popen[str], str]]:
    program = PROGRAM.format(folder=str(Path(__file__).parent))
    process = subprocess.Popen([sys.executable, "-c", program], cwd=ROOT, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    try:
        line = process.stderr.readline()
        assert line.startswith("listening on 127.0.0.1:"), line
        yield process, line.removeprefix("listening on ").strip()
    finally:
        process.kill()
        process.wait()
        process.stderr.close()


def terminate(process: subprocess.Popen[str], number: signal.Signals) -> float:
    """Seconds from the signal to the end."""
    start_s = time.monotonic()
    process.send_signal(number)
    assert process.wait(10) == 0
    return time.monotonic() - start_s


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_an_idle_service_ends_at_once(number: signal.Signals) -> None:
    with service() as (process, address):
        with Client(address) as client:
            assert client.list_targets()
        assert terminate(process, number) < 2
        assert process.stderr is not None
        assert process.stderr.read() == ""


def test_a_search_under_way_answers_while_the_service_drains(graph: Graph) -> None:
    with service() as (process, address), Client(address) as client:
        answers = []
        search = threading.Thread(target=lambda: answers.append(client.optimize(graph, "gpu-2", seed=103)))
        search.start()
        assert process.stderr is not None
        assert process.stderr.readline() == "searching\n"
        with grpc.insecure_channel(address) as channel:
            grpc.channel_ready_future(channel).result(5)
            process.send_signal(signal.SIGTERM)
            time.sleep(0.5)
            answer = health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest())
            assert answer.status == health_pb2.HealthCheckResponse.NOT_SERVING
        with pytest.raises(ServiceError, match=r"the service is draining\."):
            client.list_targets()
        assert terminate(process, signal.SIGTERM) < 5
        search.join()
        assert answers[0].plan.target_fingerprint == load_target("gpu-2").fingerprint


def test_a_search_that_does_not_stop_is_cut_off(graph: Graph) -> None:
    with service() as (process, address), Client(address) as client:
        errors = []

        def call() -> None:
            try:
                client.optimize(graph, "gpu-2", seed=104)
            except ServiceError as error:
                errors.append(error)

        search = threading.Thread(target=call)
        search.start()
        assert process.stderr is not None
        assert process.stderr.readline() == "searching\n"
        assert terminate(process, signal.SIGTERM) < 5.5
        search.join()
        assert len(errors) == 1
