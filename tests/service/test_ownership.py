"""Jobs and policies are their caller's: nobody else finds, ends or uses them, unless they are shared."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.longrunning import operations_pb2, operations_pb2_grpc

from go_opt.model.codecs.wire import graph_to_proto
from go_opt.model.graph import Graph
from go_opt.proto import optimizer_pb2, plan_pb2, training_pb2, training_pb2_grpc
from go_opt.service.calls.security import Security
from go_opt.service.jobs.manager import JobManager
from go_opt.service.jobs.services import OperationsService, TrainingService
from go_opt.service.workers.optimizer import LocalOptimizer, OptimizerService
from tests.service.conftest import FakeOptimizer
from tests.service.jobs.conftest import ended, managed
from tests.serving import serve_in_thread

NAMES = ("alice", "bob")
PATIENCE_S = 20.0


@dataclass(frozen=True)
class Caller:
    """One client of the service, by its token."""

    channel: grpc.Channel
    metadata: tuple[tuple[str, str], ...]

    def pretrain(self, policy: str, **options: Any) -> str:
        request = training_pb2.PretrainRequest(policy=policy, **options)
        stub = training_pb2_grpc.TrainingStub(self.channel)  # type: ignore[no-untyped-call]
        return str(self._call(stub.Pretrain, request).name)

    def finetune(self, policy: str, graph: Graph, from_policy: str) -> str:
        request = training_pb2.FinetuneRequest(
            policy=policy, graph=graph_to_proto(graph), from_policy=from_policy, samples=16
        )
        stub = training_pb2_grpc.TrainingStub(self.channel)  # type: ignore[no-untyped-call]
        return str(self._call(stub.Finetune, request).name)

    def names(self) -> list[str]:
        """Of the operations that are listed."""
        request = operations_pb2.ListOperationsRequest()
        return [listed.name for listed in self._call(self._jobs.ListOperations, request).operations]

    def get(self, name: str) -> operations_pb2.Operation:
        return self._call(self._jobs.GetOperation, operations_pb2.GetOperationRequest(name=name))

    def wait(self, name: str) -> operations_pb2.Operation:
        return self._call(self._jobs.WaitOperation, operations_pb2.WaitOperationRequest(name=name))

    def cancel(self, name: str) -> None:
        self._call(self._jobs.CancelOperation, operations_pb2.CancelOperationRequest(name=name))

    def delete(self, name: str) -> None:
        self._call(self._jobs.DeleteOperation, operations_pb2.DeleteOperationRequest(name=name))

    def optimize(self, graph: Graph, policy: str) -> None:
        request = optimizer_pb2.OptimizeRequest(
            graph=graph_to_proto(graph), target=plan_pb2.Target(name="mcm-2x2"), policy=policy
        )
        method = self.channel.unary_unary("/go_opt.v1.Optimizer/Optimize")
        self._call(method, request.SerializeToString())

    @property
    def _jobs(self) -> Any:
        return operations_pb2_grpc.OperationsStub(self.channel)

    def _call(self, method: Callable[..., Any], request: Any) -> Any:
        return method(request, metadata=self.metadata, timeout=PATIENCE_S)


@dataclass(frozen=True)
class Served:
    jobs: JobManager
    searches: FakeOptimizer
    alice: Caller
    bob: Caller


@contextmanager
def serving(folder: Path, *, tokens: bool = True) -> Iterator[Served]:
    """Two callers, each with a token of its own; without tokens they are the same nobody."""
    file = folder / "tokens"
    file.write_text("".join(f"{name} {name}-has-this-token\n" for name in NAMES))
    file.chmod(0o600)
    searches = FakeOptimizer()
    with ExitStack() as stack:
        jobs = stack.enter_context(managed(folder / "data"))
        services = [
            TrainingService(jobs),
            OperationsService(jobs),
            OptimizerService(LocalOptimizer(searches), find_policy=jobs.find_policy),
        ]
        security = Security(tokens=file if tokens else None)
        address = stack.enter_context(serve_in_thread(services, security=security))
        channel = stack.enter_context(grpc.insecure_channel(address))
        alice, bob = (
            Caller(channel, (("authorization", f"Bearer {name}-has-this-token"),)) for name in NAMES
        )
        yield Served(jobs, searches, alice, bob)


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    with serving(tmp_path) as served:
        yield served


@contextmanager
def refused(code: grpc.StatusCode) -> Iterator[list[str]]:
    """The text of the status."""
    text = list[str]()
    with pytest.raises(grpc.RpcError) as error:
        yield text
    assert error.value.code() is code
    text.append(error.value.details())


def test_another_callers_job_is_not_there(served: Served, graph: Graph) -> None:
    name = served.alice.pretrain("mine")
    served.alice.wait(name)
    calls = (served.bob.get, served.bob.wait, served.bob.cancel, served.bob.delete)
    texts = set()
    for call in calls:
        for asked in (name, name[:-1] + ("0" if name[-1] != "0" else "1")):  # hers, and one there is not
            with refused(grpc.StatusCode.NOT_FOUND) as text:
                call(asked)
            texts.add(text[0].replace(asked, "NAME"))
    assert len(texts) == 1, "the answer tells hers from one there is not"
    assert served.bob.names() == []
    assert served.alice.names() == [name]
    served.alice.delete(name)


def test_another_callers_policy_is_not_there(served: Served, graph: Graph) -> None:
    served.alice.wait(served.alice.pretrain("mine"))
    for policy in ("mine", "alice/mine"):
        with refused(grpc.StatusCode.NOT_FOUND):
            served.bob.optimize(graph, policy)
        with refused(grpc.StatusCode.NOT_FOUND):
            served.bob.finetune("other", graph, policy)
    assert served.searches.asked == []
    served.alice.optimize(graph, "mine")
    served.alice.optimize(graph, "alice/mine")


def test_names_are_those_of_one_caller(served: Served, graph: Graph) -> None:
    first = served.alice.pretrain("mine", request_id="id", seed=11)
    second = served.bob.pretrain("mine", request_id="id", seed=12)
    assert first != second
    assert (served.alice.names(), served.bob.names()) == ([first], [second])
    assert served.alice.pretrain("mine", request_id="id", seed=11) == first
    for caller, name in ((served.alice, first), (served.bob, second)):
        caller.wait(name)
        caller.optimize(graph, "mine")
    assert served.jobs.find_policy("mine", "alice") != served.jobs.find_policy("mine", "bob")


def test_a_shared_job_is_seen_and_used_by_all_and_ended_by_its_owner(served: Served, graph: Graph) -> None:
    name = served.alice.pretrain("mine", shared=True)
    assert served.bob.wait(name).done
    assert served.bob.names() == [name]
    progress = training_pb2.TrainingProgress()
    served.bob.get(name).metadata.Unpack(progress)
    assert (progress.owner, progress.shared) == ("alice", True)
    served.bob.optimize(graph, "alice/mine")
    served.bob.wait(served.bob.finetune("better", graph, "alice/mine"))
    with refused(grpc.StatusCode.NOT_FOUND):  # a name alone is the caller's own
        served.bob.optimize(graph, "mine")
    for change in (served.bob.cancel, served.bob.delete):
        with refused(grpc.StatusCode.FAILED_PRECONDITION) as text:
            change(name)
        assert "only its owner" in text[0]
    served.alice.delete(name)
    with refused(grpc.StatusCode.NOT_FOUND):
        served.bob.optimize(graph, "alice/mine")


def test_owners_outlive_a_restart(tmp_path: Path, graph: Graph) -> None:
    with serving(tmp_path) as served:
        name = served.alice.pretrain("mine")
        ended(served.jobs, name.removeprefix("operations/"), owner="alice")
    with serving(tmp_path) as served:
        assert (served.alice.names(), served.bob.names()) == ([name], [])
        served.alice.optimize(graph, "mine")


def test_without_tokens_and_certificates_all_callers_are_the_same(tmp_path: Path, graph: Graph) -> None:
    with serving(tmp_path, tokens=False) as served:
        name = served.alice.pretrain("mine")
        served.bob.wait(name)
        served.bob.optimize(graph, "mine")
        served.bob.delete(name)
        assert served.alice.names() == []


def test_what_nobody_with_a_name_made_is_not_there_for_callers_with_one(tmp_path: Path) -> None:
    with serving(tmp_path, tokens=False) as served:
        name = served.alice.pretrain("mine")
        ended(served.jobs, name.removeprefix("operations/"))
    with serving(tmp_path) as served:
        assert served.alice.names() == []
        with refused(grpc.StatusCode.NOT_FOUND):
            served.alice.get(name)
