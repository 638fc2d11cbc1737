"""``Training`` as callers meet it: jobs are made once, and every field is checked."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from go_opt.env import load_zoo
from go_opt.errors import (
    AlreadyExistsError,
    InvalidInputError,
    NotFoundError,
    ServiceError,
    UnsupportedError,
)
from go_opt.model.codecs.wire import graph_to_proto
from go_opt.model.graph import Graph
from go_opt.proto import graph_pb2, plan_pb2, training_pb2
from go_opt.search.shared.policies import find_policy
from go_opt.service.jobs.job import CANCELLED, SUCCEEDED
from go_opt.service.jobs.manager import JobManager
from go_opt.service.jobs.services import TrainingService
from go_opt.service.jobs.train import finetune_options, pretrain_options
from tests.service.conftest import ask
from tests.service.jobs import fake_job
from tests.service.jobs.conftest import ended, eventually, managed

ALLOWED = "127.0.0.1:50061"
SMALL = graph_to_proto(load_zoo("din"))
Pretrain, Finetune = training_pb2.PretrainRequest, training_pb2.FinetuneRequest
Address = training_pb2.TrainingEnvironment


@pytest.fixture
def jobs(tmp_path: Path) -> Iterator[JobManager]:
    with managed(tmp_path) as jobs:
        yield jobs


@pytest.fixture
def service(jobs: JobManager) -> TrainingService:
    return TrainingService(jobs, environments=[ALLOWED])


@pytest.fixture(scope="module")
def idle(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TrainingService]:
    """Runs nothing."""
    with managed(tmp_path_factory.mktemp("data"), running=0) as jobs:
        yield TrainingService(jobs, environments=[ALLOWED])


def job_of(operation: Any) -> str:
    return str(operation.name.removeprefix("operations/"))


def test_a_job_is_made_once(service: TrainingService, jobs: JobManager) -> None:
    request = Finetune(policy="mine", request_id="id", graph=SMALL, samples=16)
    first = ask(service, "Finetune", request)
    assert not first.done
    ended(jobs, job_of(first))
    again = ask(service, "Finetune", Finetune.FromString(request.SerializeToString()))
    assert (again.name, again.done) == (first.name, True)
    assert len(jobs.page(None, 9)) == 1


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"samples": 17}, "request_id"),
        ({"policy": "other"}, "request_id"),
        ({"request_id": "other"}, "policy"),
        ({"request_id": ""}, "policy"),
    ],
)
def test_another_request_of_the_same_name(
    service: TrainingService, changes: dict[str, Any], field: str
) -> None:
    options: dict[str, Any] = {"policy": "mine", "request_id": "id", "samples": 16}
    ask(service, "Pretrain", Pretrain(**options))
    with pytest.raises(AlreadyExistsError) as refused:
        ask(service, "Pretrain", Pretrain(**(options | changes)))
    assert refused.value.field == field


def test_the_other_kind_of_the_same_name(service: TrainingService) -> None:
    ask(service, "Pretrain", Pretrain(policy="mine"))
    with pytest.raises(AlreadyExistsError):
        ask(service, "Finetune", Finetune(policy="mine", graph=SMALL))


def graph_of(num_ops: int) -> graph_pb2.Graph:
    message = graph_pb2.Graph(name=f"{num_ops} ops", precision="PRECISION_NATIVE")
    message.tensors.add(name="t0", elements=8, dtype="float32", kind="TENSOR_KIND_INPUT").readers.add(op=0)
    for i in range(num_ops):
        message.ops.add(name=f"op{i}", op_type="Relu", op_class="OP_CLASS_VECTOR", flops=8, dtype="float32")
        tensor = message.tensors.add(
            name=f"t{i + 1}", elements=8, dtype="float32", kind="TENSOR_KIND_ACTIVATION", producer=i
        )
        if i + 1 < num_ops:
            tensor.readers.add(op=i + 1)
    message.tensors[-1].is_output = True
    return message


BOTH: list[tuple[str, dict[str, Any], str]] = [
    ("policy", {"policy": ""}, "policy must be 1 to 63"),
    ("policy", {"policy": "Mine"}, "not 'Mine'"),
    ("policy", {"policy": "../mine"}, "not '../mine'"),
    ("policy", {"policy": "a" * 64}, "policy must be 1 to 63"),
    ("policy", {"policy": "default"}, "not 'default'"),
    ("policy", {"policy": "none"}, "not 'none'"),
    ("policy", {"policy": "mine\n"}, "policy must be"),
    ("request_id", {"request_id": "x" * 201}, "the limit is 200"),
    ("seed", {"seed": -1}, "seed must be between 0"),
    ("samples", {"samples": 0}, "samples must be 1 to"),
    ("lessons", {"lessons": ["latin"]}, "not 'latin'"),
    ("lessons", {"lessons": ["order", "order"]}, "lessons must differ"),
    ("target", {"target": plan_pb2.Target(name="moon")}, "moon"),
    ("environment.fidelity", {"environment": Address(fidelity="FIDELITY_HARDWARE")}, "no hardware"),
    ("environment.address", {"environment": Address(address="127.0.0.1:1")}, "may not call"),
    ("environment.address", {"environment": Address(address="")}, "may not call"),
]
OF_PRETRAIN: list[tuple[str, dict[str, Any], str]] = [
    ("samples", {"samples": 100_000_001}, "1 to 100000000, not 100000001"),
    ("zoo_graphs", {"zoo_graphs": ["resnet5"]}, "resnet5"),
    ("zoo_graphs", {"zoo_graphs": ["din", "din"]}, "zoo_graphs must differ"),
    ("zoo_graphs", {"zoo_graphs": ["gnmt_2"]}, "5125 ops, pretraining takes 50 to 512"),
    ("zoo_graphs", {"zoo_graphs": ["../din"]}, "din"),
    ("graphs[1]", {"graphs": [SMALL, graph_pb2.Graph(name="empty")]}, "graphs[1]: "),
    ("graphs[0]", {"graphs": [graph_of(3)]}, "3 ops, pretraining takes 50 to 512"),
    ("most_ops", {"most_ops": 0}, "most_ops must be 50 to"),
    ("generated_share", {"generated_share": 1.5}, "generated_share must be 0 to 1, not 1.5"),
    ("generated_share", {"generated_share": float("nan")}, "not nan"),
]
OF_FINETUNE: list[tuple[str, dict[str, Any], str]] = [
    ("samples", {"samples": 1_000_001}, "1 to 1000000, not 1000001"),
    ("graph", {"graph": None}, "graph is missing"),
    ("from_policy", {"from_policy": "nobody"}, "no policy 'nobody' was trained by this service"),
    ("from_policy", {"from_policy": "../x"}, "no policy '../x'"),
]


@pytest.mark.parametrize(("field", "changes", "words"), BOTH + OF_PRETRAIN)
def test_a_pretraining_is_refused(
    idle: TrainingService, field: str, changes: dict[str, Any], words: str
) -> None:
    is_refused(lambda: ask(idle, "Pretrain", Pretrain(**({"policy": "mine"} | changes))), field, words)


@pytest.mark.parametrize(("field", "changes", "words"), BOTH + OF_FINETUNE)
def test_a_finetuning_is_refused(
    idle: TrainingService, field: str, changes: dict[str, Any], words: str
) -> None:
    request = {"policy": "mine", "graph": SMALL} | changes
    is_refused(lambda: ask(idle, "Finetune", Finetune(**request)), field, words)


def is_refused(call: Callable[[], object], field: str, words: str) -> None:
    with pytest.raises(InvalidInputError) as refused:
        call()
    assert refused.value.field == field
    assert words in str(refused.value)
    assert "\n" not in str(refused.value)


def test_what_training_is_asked_for() -> None:
    given = Pretrain(
        zoo_graphs=["din"],
        graphs=[SMALL],
        target=plan_pb2.Target(name="mcm-2x2"),
        samples=5,
        seed=7,
        environment=Address(address=ALLOWED),
        lessons=["placement"],
        generated_share=0.0,
        most_ops=60,
    )
    options = pretrain_options(given)
    assert [graph.name for graph in options.pop("graphs")] == ["din", "din"]
    assert options.pop("target").name == "mcm-2x2"
    assert options == {
        "samples": 5,
        "seed": 7,
        "environment": ALLOWED,
        "lessons": ["placement"],
        "generated_share": 0.0,
        "most_ops": 60,
    }
    options = finetune_options(Finetune(graph=SMALL))
    assert isinstance(options.pop("graph"), Graph)
    assert options.pop("target").name == "mcm-6x6"
    assert options == {"seed": 0, "environment": "analytical", "lessons": []}


def start_policy(jobs: JobManager) -> bytes | None:
    found = jobs.find(policy="second")
    assert found is not None
    return found[1].start_policy


def test_finetuning_from_the_shipped_policy(service: TrainingService, jobs: JobManager) -> None:
    ask(service, "Finetune", Finetune(policy="second", graph=SMALL))
    shipped = find_policy("default")
    assert shipped is not None
    assert start_policy(jobs) == shipped.read_bytes()


def test_finetuning_from_scratch(service: TrainingService, jobs: JobManager) -> None:
    ask(service, "Finetune", Finetune(policy="second", from_policy="none", graph=SMALL))
    assert start_policy(jobs) is None


def test_finetuning_from_a_policy_of_the_service(service: TrainingService, jobs: JobManager) -> None:
    first = job_of(ask(service, "Pretrain", Pretrain(policy="first")))
    assert ended(jobs, first).state == SUCCEEDED
    request = Finetune(policy="second", from_policy="first", graph=SMALL)
    job_id = job_of(ask(service, "Finetune", request))
    jobs.delete(first)  # the second has all it needs
    assert start_policy(jobs) == b"trained from "
    assert ended(jobs, job_id).state == SUCCEEDED
    assert jobs.find_policy("second").read_bytes() == b"trained from trained from "
    assert job_of(ask(service, "Finetune", request)) == job_id


def test_finetuning_from_a_policy_that_is_not_ready(
    service: TrainingService, jobs: JobManager, tmp_path: Path
) -> None:
    first = job_of(ask(service, "Pretrain", Pretrain(policy="first", seed=fake_job.WAITS)))
    eventually((tmp_path / "jobs" / first / fake_job.STANDS).exists)
    with pytest.raises(NotFoundError, match="from_policy: there is no policy 'first': its job is RUNNING"):
        ask(service, "Finetune", Finetune(policy="second", from_policy="first", graph=SMALL))
    jobs.cancel(first)
    assert ended(jobs, first).state == CANCELLED
    ask(service, "Finetune", Finetune(policy="second", from_policy="first", graph=SMALL))


def test_a_service_without_jobs() -> None:
    with pytest.raises(UnsupportedError, match="takes no training jobs"):
        ask(TrainingService(None), "Pretrain", Pretrain(policy="mine"))


def test_a_service_that_drains(tmp_path: Path) -> None:
    with managed(tmp_path) as jobs:
        service = TrainingService(jobs)
        jobs._is_closing = True
        with pytest.raises(ServiceError, match="draining"):
            ask(service, "Pretrain", Pretrain(policy="mine"))
