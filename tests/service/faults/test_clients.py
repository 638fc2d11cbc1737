"""Clients that vanish and clients that do not read: they hold up nobody, and nothing of them stays."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.longrunning import operations_pb2

import go_opt
from go_opt.model.codecs.wire import graph_to_proto
from go_opt.proto import (
    environment_pb2,
    environment_pb2_grpc,
    graph_pb2,
    optimizer_pb2,
    optimizer_pb2_grpc,
)
from tests.service.big_graph import repeated
from tests.service.faults.served import HERE, Served, serving
from tests.service.jobs import fake_job
from tests.service.jobs.conftest import eventually

GRAPH = graph_to_proto(go_opt.load("zoo:bert_base"))
LARGE = repeated(GRAPH, 30)  # some 10,000 ops: a search of minutes
ROUNDS = 4
# Buffers of a few kB: what a client on a slow line has.
NARROW = (("grpc.http2.bdp_probe", 0), ("grpc.http2.lookahead_bytes", 8192))


@dataclass(frozen=True)
class Held:
    """What a process holds."""

    threads: int
    files: int
    resident_bytes: int


def held(pid: int) -> Held:
    lines = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    files = len(list(Path(f"/proc/{pid}/fd").iterdir()))
    return Held(int(lines["Threads"]), files, 1024 * int(lines["VmRSS"].split()[0]))


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("service")
    with serving(folder, data=folder / "data") as service:
        yield service


def request(graph: graph_pb2.Graph, **fields: Any) -> optimizer_pb2.OptimizeRequest:
    message = optimizer_pb2.OptimizeRequest(graph=graph, policy="none", **fields)
    message.target.name = "mcm-6x6"
    return message


def write_requests(served: Served, folder: Path) -> list[str]:
    """The files of three calls that last."""
    with grpc.insecure_channel(served.address) as channel, served.client() as client:
        job = client.pretrain(folder.name, graphs=["zoo:din"], target="mcm-2x2", seed=fake_job.WAITS)
        environment = environment_pb2_grpc.EnvironmentStub(channel)
        create = environment_pb2.CreateSessionRequest(graph=GRAPH)
        create.target.name = "mcm-6x6"
        session = environment.CreateSession(create)
        plan = optimizer_pb2_grpc.OptimizerStub(channel).Optimize(request(GRAPH, max_evaluations=2)).plan
    batch = environment_pb2.EvaluateBatchRequest(session_id=session.session_id, plans=[plan] * 100)
    messages = {
        "go_opt.v1.Optimizer.OptimizeStream": request(LARGE, budget_s=600),
        "go_opt.v1.Environment.Evaluate": batch,
        "google.longrunning.Operations.WaitOperation": operations_pb2.WaitOperationRequest(name=job.name),
    }
    for name, message in messages.items():
        (folder / name).write_bytes(message.SerializeToString())
    return [str(folder / name) for name in messages]


def test_clients_that_are_killed(served: Served, tmp_path: Path) -> None:
    files = write_requests(served, tmp_path)
    before = None
    for number in range(ROUNDS):
        command = [sys.executable, str(HERE / "vanishing.py"), served.address, *files]
        with subprocess.Popen(command) as client:
            try:
                eventually(lambda: served.reading("calls_open") == len(files))
                eventually(lambda: served.reading("lane_running", lane="search") == 1)
            finally:
                client.kill()
        start_s = time.monotonic()
        eventually(lambda: served.reading("calls_open") == 0, 20)
        eventually(lambda: served.reading("lane_running") == 0, 20)
        assert time.monotonic() - start_s < 20  # and not when its search ends, in minutes
        if number == 1:
            before = held(served.process.pid)
    assert before is not None
    after = held(served.process.pid)
    assert after.threads <= before.threads + 1
    assert after.files <= before.files + 2
    assert after.resident_bytes <= before.resident_bytes + 16 * 2**20
    with served.client() as client:
        assert client.optimize(go_opt.load("zoo:din"), max_evaluations=2).plan is not None


def test_readers_that_stand_still(served: Served) -> None:
    message = request(LARGE, budget_s=2)
    channel = grpc.insecure_channel(served.address, options=NARROW)
    with channel:
        before = held(served.process.pid)
        stream = optimizer_pb2_grpc.OptimizerStub(channel).OptimizeStream(message)
        eventually(lambda: served.reading("lane_running", lane="search") == 1)
        start_s = time.monotonic()
        eventually(lambda: served.reading("lane_running", lane="search") == 0)
        assert time.monotonic() - start_s < 20
        assert served.reading("calls_open") == 1  # it waits for its reader, and no worker with it
        assert held(served.process.pid).resident_bytes < before.resident_bytes + 64 * 2**20
        with served.client() as client:
            assert client.optimize(go_opt.load("zoo:din"), max_evaluations=3).plan is not None
        *improvements, last = stream
        assert [update.WhichOneof("update") for update in improvements] == ["improvement"] * len(improvements)
        assert last.result.history
        assert len(last.result.plan.placement) == len(LARGE.ops)
    eventually(lambda: served.reading("calls_open") == 0)
