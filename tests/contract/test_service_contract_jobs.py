"""One contract for training jobs: the same in process and of services over every transport."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from itertools import count
from typing import Any

import pytest

from go_opt import api
from go_opt.errors import (
    AlreadyExistsError,
    CancelledError,
    GoOptError,
    InvalidInputError,
    ModelError,
    NotFoundError,
    PreconditionError,
    ServiceError,
    TargetError,
)
from go_opt.model.graph import Graph
from go_opt.service.client.operation import Operation
from tests.contract.test_service_contract import chain

ENDLESS = 2000  # samples
DONE_S = 60.0
_numbers = count(1)


def new_name() -> str:
    return f"policy-{next(_numbers)}"


def start(client: Any, policy: str = "", graph: Graph | None = None, **options: Any) -> Operation:
    """A finetuning from scratch."""
    options = {"from_policy": "none", "target": "mcm-2x2", "samples": 2, **options}
    operation = client.finetune(policy or new_name(), graph or chain(6), **options)
    assert isinstance(operation, Operation)
    return operation


@pytest.fixture(scope="module")
def finetuned(client: Any) -> Operation:
    """A finetuning that is done."""
    operation = start(client, "finetuned", chain(9))
    operation.wait(DONE_S)
    return operation


@pytest.fixture(scope="module")
def pretrained(client: Any) -> Operation:
    """A pretraining that is done."""
    graphs = ["zoo:mobilenet_v2", chain(60)]
    operation = client.pretrain("pretrained", graphs=graphs, samples=10, lessons=["placement"], most_ops=300)
    assert isinstance(operation, Operation)
    operation.wait(DONE_S)
    return operation


@pytest.fixture(scope="module")
def endless(client: Any, finetuned: Operation, pretrained: Operation) -> Iterator[Operation]:
    """A job that runs until it is cancelled; others wait."""
    operation = start(client, samples=ENDLESS)
    yield operation
    operation.cancel()
    assert operation.wait(DONE_S).state == "CANCELLED"
    with pytest.raises(CancelledError, match="cancelled after step 1 of 2"):
        operation.result()


def test_a_finetuning_to_its_end(client: Any, finetuned: Operation) -> None:
    assert finetuned.name.startswith("operations/")
    progress, result = finetuned.progress(), finetuned.result()
    assert (result.policy, result.progress.policy, progress.policy) == ("finetuned",) * 3
    assert (progress.kind, progress.state, progress.step, progress.steps) == ("finetune", "SUCCEEDED", 2, 2)
    assert progress.started is not None
    assert progress.ended is not None
    assert progress.created <= progress.started <= progress.ended
    assert result.plan is not None
    assert client.evaluate(chain(9), "mcm-2x2", result.plan).interval_s == result.best_interval_s
    assert api.verify(chain(9), "mcm-2x2", result.plan) == []
    assert result.reference_interval_s is not None


def test_a_pretraining_to_its_end(pretrained: Operation) -> None:
    result = pretrained.result()
    assert result.progress.kind == "pretrain"
    assert (result.plan, result.best_interval_s, result.reference_interval_s) == (None, None, None)


def test_a_job_is_found_again_by_its_name(client: Any, finetuned: Operation) -> None:
    found = client.operation(finetuned.name)
    assert (found.name, found.latest) == (finetuned.name, finetuned.progress())
    assert finetuned.name in [listed.name for listed in client.list_operations()]


def test_a_job_that_is_not_done(endless: Operation) -> None:
    assert not endless.wait(0.05).is_done
    with pytest.raises(ServiceError, match=r"is not done after 0\.05 s"):
        endless.result(0.05)
    with pytest.raises(PreconditionError, match="has not ended"):
        endless.delete()


@pytest.mark.usefixtures("endless")
def test_the_newest_job_is_listed_first(client: Any) -> None:
    operations = [start(client) for _ in range(2)]
    names = [operation.name for operation in operations]
    assert [listed.name for listed in client.list_operations()[:2]] == names[::-1]
    for operation in operations:
        operation.cancel()


@pytest.mark.usefixtures("endless")
def test_a_job_cancelled_and_deleted(client: Any) -> None:
    operation = start(client)
    operation.cancel()
    assert operation.wait(DONE_S).state == "CANCELLED"
    with pytest.raises(CancelledError, match="cancelled before it was started"):
        operation.result()
    operation.cancel()
    assert operation.progress().state == "CANCELLED"
    operation.delete()
    for ask in (operation.progress, operation.delete, operation.cancel):
        with pytest.raises(NotFoundError, match=operation.name):
            ask()
    assert operation.name not in [listed.name for listed in client.list_operations()]


@pytest.mark.usefixtures("endless")
def test_the_same_request_is_the_same_job(client: Any) -> None:
    policy, graph = new_name(), chain(5)
    first = start(client, policy, graph, request_id=f"id-{policy}")
    again = start(client, policy, graph, request_id=f"id-{policy}")
    assert first.name == again.name
    first.cancel()
    with pytest.raises(AlreadyExistsError, match="request_id") as error:
        start(client, new_name(), graph, request_id=f"id-{policy}")
    assert error.value.field == "request_id"
    with pytest.raises(AlreadyExistsError, match="policy") as error:
        start(client, policy, chain(6))
    assert error.value.field == "policy"


Case = tuple[Callable[[Any], object], type[GoOptError], str]
REFUSED: dict[str, Case] = {
    "name": (lambda c: start(c, "No Name"), InvalidInputError, "policy"),
    "taken for good": (lambda c: start(c, "default"), InvalidInputError, "policy"),
    "samples": (lambda c: start(c, samples=0), InvalidInputError, "samples"),
    "seed": (lambda c: start(c, seed=-1), InvalidInputError, "seed"),
    "target": (lambda c: start(c, target="mcm-9x9"), TargetError, "target"),
    "lesson": (lambda c: start(c, lessons=["greed"]), InvalidInputError, "lessons"),
    "start": (lambda c: start(c, from_policy="nobody"), NotFoundError, "from_policy"),
    "environment": (lambda c: start(c, environment="exact"), InvalidInputError, "environment"),
    "zoo": (lambda c: c.pretrain(new_name(), graphs=["zoo:resnet5"]), ModelError, "zoo_graphs"),
    "share": (lambda c: c.pretrain(new_name(), generated_share=2.0), InvalidInputError, "generated_share"),
    "not a number": (
        lambda c: c.pretrain(new_name(), generated_share=math.nan),
        InvalidInputError,
        "generated_share",
    ),
    "operation": (lambda c: c.operation("operations/none"), NotFoundError, "name"),
    "no operation": (lambda c: c.operation("mine"), NotFoundError, "name"),
    "policy of a search": (lambda c: c.optimize(chain(4), policy="nobody"), NotFoundError, "policy"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refused_with_the_same_error(client: Any, case: str) -> None:
    call, error_class, field = REFUSED[case]
    with pytest.raises(GoOptError) as error:
        call(client)
    assert type(error.value) is error_class, error.value
    assert isinstance(error.value, InvalidInputError)
    assert error.value.field.split("[")[0] == field
