"""``google.longrunning.Operations`` over gRPC: jobs are found, waited for, cancelled and deleted."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.longrunning import operations_pb2, operations_pb2_grpc
from google.protobuf.duration_pb2 import Duration
from google.rpc import code_pb2

from go_opt.errors import InvalidInputError, NotFoundError, UnsupportedError
from go_opt.proto import training_pb2, training_pb2_grpc
from go_opt.service.jobs.manager import JobManager
from go_opt.service.jobs.services import OperationsService, TrainingService
from go_opt.service.messages.errors import error_from_call
from tests.service.conftest import ask
from tests.service.jobs import fake_job
from tests.service.jobs.conftest import ended, eventually, managed, new_job
from tests.serving import serve_in_thread


@dataclass(frozen=True)
class Served:
    """A service of fake jobs, and stubs to call it."""

    jobs: JobManager
    data: Path
    training: Any
    operations: Any

    def waiting_job(self, policy: str = "mine") -> str:
        """The operation of a job that runs until it is cancelled."""
        name: str = self.training.Pretrain(
            training_pb2.PretrainRequest(policy=policy, seed=fake_job.WAITS)
        ).name
        folder = self.data / "jobs" / name.removeprefix("operations/")
        eventually((folder / fake_job.STANDS).exists)
        return name

    def get(self, name: str) -> operations_pb2.Operation:
        return self.operations.GetOperation(operations_pb2.GetOperationRequest(name=name))

    def wait(self, name: str, timeout_s: float | None = None, **options: Any) -> operations_pb2.Operation:
        timeout = None
        if timeout_s is not None:
            timeout = Duration()
            timeout.FromNanoseconds(round(1e9 * timeout_s))
        message = operations_pb2.WaitOperationRequest(name=name, timeout=timeout)
        return self.operations.WaitOperation(message, **options)

    def cancel(self, name: str) -> None:
        self.operations.CancelOperation(operations_pb2.CancelOperationRequest(name=name))

    def delete(self, name: str) -> None:
        self.operations.DeleteOperation(operations_pb2.DeleteOperationRequest(name=name))

    def list(self, **options: Any) -> operations_pb2.ListOperationsResponse:
        return self.operations.ListOperations(operations_pb2.ListOperationsRequest(**options))


@contextmanager
def serving(data: Path, **limits: float) -> Iterator[Served]:
    with managed(data, **limits) as jobs:
        services = [TrainingService(jobs), OperationsService(jobs)]
        with serve_in_thread(services) as address, grpc.insecure_channel(address) as channel:
            training = training_pb2_grpc.TrainingStub(channel)  # type: ignore[no-untyped-call]
            yield Served(jobs, data, training, operations_pb2_grpc.OperationsStub(channel))


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    with serving(tmp_path) as served:
        yield served


@pytest.fixture(scope="module")
def idle(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """Has no jobs and runs none."""
    with serving(tmp_path_factory.mktemp("data"), running=0) as served:
        yield served


def progress(operation: operations_pb2.Operation) -> training_pb2.TrainingProgress:
    message = training_pb2.TrainingProgress()
    assert operation.metadata.Unpack(message)
    return message


def refusal(call: Any, *args: Any, **options: Any) -> tuple[grpc.StatusCode, Exception]:
    with pytest.raises(grpc.RpcError) as refused:
        call(*args, **options)
    return refused.value.code(), error_from_call(refused.value, "there")


def test_a_job_from_its_creation_to_its_deletion(served: Served) -> None:
    request = training_pb2.PretrainRequest(policy="mine")
    operation = served.training.Pretrain(request)
    assert progress(operation).policy == "mine"
    done = served.wait(operation.name)
    assert done.done
    assert progress(done).state == training_pb2.JOB_STATE_SUCCEEDED
    result = training_pb2.TrainingResult()
    assert done.response.Unpack(result)
    assert result.policy == "mine"
    assert served.get(operation.name) == served.training.Pretrain(request) == done
    served.delete(operation.name)
    code, error = refusal(served.get, operation.name)
    assert code is grpc.StatusCode.NOT_FOUND
    assert isinstance(error, NotFoundError)
    assert error.field == "name"


def test_waiting_ends_with_the_job(served: Served) -> None:
    name = served.waiting_job()
    answers: list[operations_pb2.Operation] = []
    waiting = [threading.Thread(target=lambda: answers.append(served.wait(name))) for _ in range(8)]
    for thread in waiting:
        thread.start()
    assert not served.get(name).done  # however many wait
    served.cancel(name)
    for thread in waiting:
        thread.join(30)
    assert [answer.error.code for answer in answers] == [code_pb2.CANCELLED] * 8


@pytest.mark.parametrize(("timeout_s", "deadline_s"), [(0.0, None), (0.3, None), (60.0, 0.8), (None, 0.8)])
def test_waiting_ends_in_time(served: Served, timeout_s: float | None, deadline_s: float | None) -> None:
    name = served.waiting_job()
    start_s = time.monotonic()
    assert not served.wait(name, timeout_s, timeout=deadline_s).done
    assert time.monotonic() - start_s < 5


def test_deleting_a_job_that_runs(served: Served) -> None:
    name = served.waiting_job()
    code, error = refusal(served.delete, name)
    assert code is grpc.StatusCode.FAILED_PRECONDITION
    assert "has not ended" in str(error)
    assert not served.get(name).done


@pytest.mark.parametrize("name", ["", "operations/", "operations/../x", "mine", "operations/é", "x" * 10000])
@pytest.mark.parametrize("method", ["get", "wait", "cancel", "delete"])
def test_a_job_that_is_not_there(idle: Served, method: str, name: str) -> None:
    code, error = refusal(getattr(idle, method), name)
    assert code is grpc.StatusCode.NOT_FOUND
    assert len(str(error)) < 250


@pytest.fixture(scope="module")
def listed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OperationsService]:
    """Seven jobs, the third and the fifth of them failed."""
    with managed(tmp_path_factory.mktemp("data")) as jobs:
        for i in range(1, 8):
            seed = fake_job.FAILS if i in (3, 5) else fake_job.RUNS
            ended(jobs, jobs.create(new_job(seed, f"policy-{i}")).id)
        yield OperationsService(jobs)


def pages(service: OperationsService, **options: Any) -> list[list[str]]:
    """The policies of every page."""
    found, token = [], ""
    while True:
        request = operations_pb2.ListOperationsRequest(page_token=token, **options)
        answer = ask(service, "ListOperations", request)
        found.append([progress(operation).policy[-1] for operation in answer.operations])
        token = answer.next_page_token
        if not token:
            return found


def test_listing(listed: OperationsService) -> None:
    assert pages(listed) == [list("7654321")]
    assert pages(listed, name="operations", page_size=3) == [list("765"), list("432"), list("1")]
    assert pages(listed, page_size=7) == [list("7654321")]
    assert pages(listed, page_size=10**9) == [list("7654321")]


def test_a_page_of_large_plans_is_short(listed: OperationsService, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("go_opt.service.jobs.services._MOST_PAGE_BYTES", 1)
    assert pages(listed) == [[number] for number in "7654321"]


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("name", "jobs"),
        ("filter", "state=RUNNING"),
        ("page_size", -1),
        ("page_token", "no token"),
        ("page_token", "é"),
        ("page_token", "0"),
        ("page_token", "-1"),
        ("page_token", "1" * 100_000),
    ],
)
def test_a_listing_that_is_refused(listed: OperationsService, field: str, value: Any) -> None:
    with pytest.raises(InvalidInputError) as refused:
        ask(listed, "ListOperations", operations_pb2.ListOperationsRequest(**{field: value}))
    assert refused.value.field == field


@pytest.mark.parametrize(("seconds", "nanos"), [(-1, 0), (0, -1), (0, 2 * 10**9)])
def test_a_wait_that_is_refused(idle: Served, seconds: int, nanos: int) -> None:
    message = operations_pb2.WaitOperationRequest(
        name="operations/x", timeout=Duration(seconds=seconds, nanos=nanos)
    )
    code, error = refusal(idle.operations.WaitOperation, message)
    assert code is grpc.StatusCode.INVALID_ARGUMENT
    assert isinstance(error, InvalidInputError)
    assert error.field == "timeout"


def test_a_service_without_jobs() -> None:
    for method in ("GetOperation", "CancelOperation"):
        with pytest.raises(UnsupportedError):
            ask(OperationsService(None), method, operations_pb2.GetOperationRequest(name="operations/x"))
