"""The services of ``go-opt serve``, put together."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.longrunning import operations_pb2

from go_opt.errors import InvalidInputError
from go_opt.proto import training_pb2
from go_opt.service.assembly import Assembly
from go_opt.service.observability import Metrics
from tests.serving import serve_in_thread

NAMES = {
    "go_opt.v1.Optimizer",
    "go_opt.v1.Environment",
    "go_opt.v1.Training",
    "google.longrunning.Operations",
}


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"workers": 0}, "--workers is 0, must be 1 or more"),
        ({"jobs": -1, "data_dir": Path()}, "--jobs is -1, must be 0 or more"),
        ({"jobs": 1}, "--jobs needs --data-dir"),
        ({"environments": ("nowhere",)}, "must be HOST:PORT"),
    ],
)
def test_what_does_not_fit_is_refused_before_anything_starts(options: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidInputError, match=words):
        Assembly(**options)


@pytest.mark.parametrize(
    ("jobs", "code"),
    [(None, grpc.StatusCode.INVALID_ARGUMENT), (0, grpc.StatusCode.UNIMPLEMENTED)],
)
def test_all_services_serve_and_let_go_of_the_data(
    tmp_path: Path, jobs: int | None, code: grpc.StatusCode
) -> None:
    assembly = Assembly(workers=1, data_dir=tmp_path / "data", jobs=jobs)
    services = assembly.services()
    assert {service.name for service in services} == NAMES
    metrics = Metrics()
    with (
        serve_in_thread(services, metrics=metrics) as address,
        grpc.insecure_channel(address) as channel,
    ):
        for name in ("environment_sessions", "jobs_running", "jobs_queued"):
            assert metrics.registry.get_sample_value(f"go_opt_{name}") == 0
        listed = channel.unary_unary("/google.longrunning.Operations/ListOperations")(b"", timeout=20)
        assert not operations_pb2.ListOperationsResponse.FromString(listed).operations
        request = training_pb2.PretrainRequest(policy="default").SerializeToString()
        pretrain = channel.unary_unary("/go_opt.v1.Training/Pretrain").future(request, timeout=20)
        assert pretrain.code() is code
    again = assembly.services()  # the lock of the data directory is free
    for service in again:
        asyncio.run(service.drain())
        service.close()


def test_without_a_data_directory_there_is_no_training() -> None:
    services = Assembly(workers=1).services()
    with serve_in_thread(services) as address, grpc.insecure_channel(address) as channel:
        for method in ("go_opt.v1.Training/Pretrain", "google.longrunning.Operations/ListOperations"):
            call = channel.unary_unary(f"/{method}").future(b"", timeout=20)
            assert call.code() is grpc.StatusCode.UNIMPLEMENTED
