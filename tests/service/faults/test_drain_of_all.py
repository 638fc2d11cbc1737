"""SIGTERM while everything is at work: within 5 s all of it has ended well, and jobs go on later."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
import pytest
from google.longrunning import operations_pb2, operations_pb2_grpc

import go_opt
from go_opt.errors import ServiceError
from go_opt.model.codecs.wire import graph_from_proto, graph_to_proto
from go_opt.proto import environment_pb2, environment_pb2_grpc
from go_opt.result import OptimizeResult
from go_opt.service.client.client import Client
from tests.service.big_graph import repeated
from tests.service.faults.served import folder_of, serving
from tests.service.jobs import fake_job
from tests.service.jobs.conftest import eventually

GRAPH = go_opt.load("zoo:bert_base")


LARGE = graph_from_proto(repeated(graph_to_proto(GRAPH), 30))  # a search of minutes


def searched(client: Client) -> OptimizeResult:
    return client.optimize(GRAPH, budget_s=60)


def open_until(
    end: threading.Event, batch: environment_pb2.EvaluateBatchRequest
) -> Iterator[environment_pb2.EvaluateBatchRequest]:
    """One batch, and then nothing until the end."""
    yield batch
    end.wait()


@pytest.mark.flaky(reruns=2, reason="of the 5 s the service takes 4.1, and a busy machine takes its own")
def test_all_ends_well_within_5_s(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with serving(tmp_path, "--workers", "2", data=data) as served, served.client() as client:
        job = client.pretrain("mine", graphs=["zoo:din"], target="mcm-2x2", seed=fake_job.WAITS)
        eventually((folder_of(data, job) / fake_job.STANDS).exists)
        with ThreadPoolExecutor() as pool, grpc.insecure_channel(served.address) as channel:
            environment = environment_pb2_grpc.EnvironmentStub(channel)
            create = environment_pb2.CreateSessionRequest(graph=graph_to_proto(GRAPH))
            create.target.name = "mcm-6x6"
            session = environment.CreateSession(create).session_id
            batch = environment_pb2.EvaluateBatchRequest(session_id=session)
            drained = threading.Event()
            batches = environment.Evaluate(open_until(drained, batch))
            next(batches)
            stream = client.optimize_stream(LARGE, budget_s=600, policy="none")
            first = next(stream)
            search = pool.submit(searched, client)
            poll = operations_pb2_grpc.OperationsStub(channel).WaitOperation.future(
                operations_pb2.WaitOperationRequest(name=job.name)
            )
            eventually(lambda: served.reading("lane_running", lane="search") == 2)
            eventually(lambda: served.reading("calls_open") == 4)
            assert served.ends_within_s() < 5
            *_, last = (first, *stream)
            assert last.history
            assert last.metrics.interval_s <= first.metrics.interval_s
            assert search.result().plan is not None
            assert poll.code() is grpc.StatusCode.UNAVAILABLE
            with pytest.raises(grpc.RpcError) as cut:
                next(batches)
            assert cut.value.code() is grpc.StatusCode.UNAVAILABLE
            drained.set()
        eventually(lambda: not served.processes())
        assert "Traceback" not in served.log()
        with pytest.raises(ServiceError):
            client.list_targets()
    (folder_of(data, job) / fake_job.GO).touch()
    with serving(tmp_path, data=data) as served, served.client() as client:
        ended = client.operation(job.name).wait(60)
        assert (ended.state, ended.attempts) == ("SUCCEEDED", 2)
