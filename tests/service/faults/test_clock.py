"""A wall clock that jumps by days under a service at work: nothing expires, hangs or ends for that."""

from __future__ import annotations

import time
from pathlib import Path

import grpc
import pytest

import go_opt
from go_opt.model.codecs.wire import graph_to_proto
from go_opt.proto import environment_pb2, environment_pb2_grpc
from tests.service.faults.served import folder_of, serving
from tests.service.jobs import fake_job
from tests.service.jobs.conftest import eventually

libfaketime = pytest.importorskip("libfaketime", reason="libfaketime sets the clock of a process")

GRAPH = go_opt.load("zoo:bert_base")
LIBRARY = Path(libfaketime.__file__).parent / "vendor/libfaketime/src/libfaketime.so.1"
BUDGET_S = 60.0  # far more than the search needs


def test_a_clock_that_jumps(tmp_path: Path) -> None:
    clock = tmp_path / "clock"
    clock.write_text("+0")
    jumping = {
        "LD_PRELOAD": str(LIBRARY),
        "FAKETIME_TIMESTAMP_FILE": str(clock),
        "FAKETIME_NO_CACHE": "1",
        "FAKETIME_DONT_FAKE_MONOTONIC": "1",
    }
    data = tmp_path / "data"
    with (
        serving(tmp_path, data=data, env=jumping) as served,
        served.client() as client,
        grpc.insecure_channel(served.address) as channel,
    ):
        environment = environment_pb2_grpc.EnvironmentStub(channel)
        create = environment_pb2.CreateSessionRequest(graph=graph_to_proto(GRAPH))
        create.target.name = "mcm-6x6"
        batch = environment_pb2.EvaluateBatchRequest(session_id=environment.CreateSession(create).session_id)
        job = client.pretrain("mine", graphs=["zoo:din"], target="mcm-2x2", seed=fake_job.WAITS)
        eventually((folder_of(data, job) / fake_job.STANDS).exists)
        created = []
        for seed, jump in enumerate(("+3d", "-3d")):
            stream = client.optimize_stream(GRAPH, budget_s=BUDGET_S, policy="none", seed=seed)
            next(stream)
            clock.write_text(jump)
            *_, last = stream
            undisturbed = go_opt.optimize(GRAPH, "mcm-6x6", budget_s=BUDGET_S, policy="none", seed=seed)
            assert last.evaluations == undisturbed.evaluations
            assert last.metrics.interval_s == undisturbed.metrics.interval_s
            assert last.wall_s < BUDGET_S
            assert [answer.batch_id for answer in environment.Evaluate(iter([batch]))] == [0]
            start_s = time.monotonic()
            assert not job.wait(0.3).is_done
            assert 0.2 < time.monotonic() - start_s < 5
            another = client.pretrain(
                f"at-{jump[1:]}-{seed}", graphs=["zoo:din"], target="mcm-2x2", seed=fake_job.RUNS
            )
            created.append(another.latest.created)
        assert (created[1] - created[0]).days <= -5  # it did jump
        (folder_of(data, job) / fake_job.GO).touch()
        assert job.wait(60).state == "SUCCEEDED"
        listed = client.list_operations()
        assert [each.wait(60).state for each in listed] == ["SUCCEEDED"] * 3
        assert [each.latest.attempts for each in listed] == [1] * 3
        assert "Traceback" not in served.log()
