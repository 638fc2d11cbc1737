"""An optimizer without a search and a service of nothing but calls, on the loopback."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import grpc
import numpy as np
import pytest
from google.protobuf.message import Message
from google.protobuf.wrappers_pb2 import BytesValue

from go_opt.env import Metrics, Target, target_names
from go_opt.errors import GoOptError, InfeasibleError, InvalidInputError
from go_opt.explanations import OpExplanation
from go_opt.model.bindings import Bindings
from go_opt.model.builder import GraphBuilder
from go_opt.model.graph import Graph
from go_opt.model.plan import Plan
from go_opt.result import OptimizeResult, Step
from go_opt.service.calls.calls import Call, Method, Send, Service, ServiceMetric
from go_opt.service.messages.requests import parsed
from go_opt.service.workers.optimizer import LocalOptimizer, OptimizerService
from go_opt.solver import Violation
from tests.serving import serve_in_thread


@dataclass
class FakeOptimizer:
    """Puts every op on chip 0; the seed picks what else happens."""

    asked: list[dict[str, Any]] = field(default_factory=list)
    evaluated: list[tuple[str, int | None]] = field(default_factory=list)  # fidelities and seeds
    started: threading.Event = field(default_factory=threading.Event)
    stopped: threading.Event = field(default_factory=threading.Event)

    def optimize(
        self,
        graph: Graph,
        target: Target,
        *,
        should_stop: Callable[[], bool],
        on_improvement: Callable[[OptimizeResult], None] = lambda result: None,
        **options: Any,
    ) -> OptimizeResult:
        self.asked.append(options)
        if options["seed"] == SEED_DEFECT:
            raise KeyError("a defect")
        if options["seed"] == SEED_INFEASIBLE:
            raise InfeasibleError("op 'a' needs 9 bytes, chip 0 has 8.")
        if options["seed"] == SEED_SLOW:
            self.started.set()
            while not should_stop():
                pass
            self.stopped.set()
        ops = np.arange(graph.num_ops)
        plan = Plan.create(
            graph,
            target.name,
            target.fingerprint,
            placement=0 * ops,
            order=ops,
            fusion_group=ops,
            provenance="fake",
        )
        step = Step("fake", float("inf"), 2.0, 1, 0.1)
        return OptimizeResult(
            plan=plan,
            metrics=self.evaluate(graph, target, plan, fidelity="analytical", seed=None),
            objective=options["objective"],
            status="HEURISTIC",
            lower_bound_s=0.0,
            bound_reason="nothing is proven.",
            gap=float("inf"),
            method="fake",
            history=(step, step),
            evaluations=1,
            wall_s=0.1,
            reference_s=float("inf"),
        )

    def evaluate(
        self, graph: Graph, target: Target, plan: Plan, *, fidelity: str, seed: int | None, **options: Any
    ) -> Metrics:
        self.evaluated.append((fidelity, seed))
        plan.check_belongs_to(graph, target.fingerprint)
        per_chip = np.arange(target.num_chips)
        return Metrics(
            interval_s=2.0,
            throughput_per_s=0.5,
            latency_s=3.0,
            makespan_s=float("inf"),
            bottleneck="chip 0 compute",
            compute_s=per_chip / 7,
            link_s=np.arange(len(target.link_names)) / 3,
            stream_bytes=per_chip * 2**40,
            peak_bytes=per_chip,
            weight_bytes=per_chip,
            valid=False,
            reason="a fake.",
        )

    def verify(self, *planned: Any, constraints: Any = ()) -> list[Violation]:
        return []

    def explain(self, *planned: Any, **options: Any) -> OpExplanation:
        raise InvalidInputError("a fake has no reasons.")

    def list_targets(self) -> tuple[str, ...]:
        return target_names()


class ToyService(Service):
    """Every kind of method on ``google.protobuf.BytesValue``; the value picks what happens."""

    name = "toy.Toy"

    def __init__(self) -> None:
        self.started = threading.Semaphore(0)  # calls that work
        self.stopped = threading.Event()  # one of them was told to stop
        self.go_on = threading.Event()
        self.seen: list[Call] = []
        self.is_closed = False

    def methods(self) -> dict[str, Method]:
        return {
            "Quick": Method("quick", self.work),
            "Search": Method("search", self.work),
            "Updates": Method("updates", self.updates),
            "Batches": Method("batches", self.work),
            "Poll": Method("poll", self.poll),
        }

    def close(self) -> None:
        self.is_closed = True

    def work(self, data: bytes, call: Call) -> BytesValue:
        self.seen.append(call)
        message = parsed(BytesValue, data)
        if message.value == b"defect":
            raise KeyError("a defect")
        if message.value == b"base":
            raise GoOptError("of no class that clients know.")
        if message.value == b"bad":
            raise InvalidInputError("value is bad.", field="value")
        if message.value == b"wait":
            self.started.release()
            while not self.go_on.wait(0.01) and not call.stop.is_set():
                pass
            if call.stop.is_set():
                self.stopped.set()
        if message.value == b"deaf":
            self.started.release()
            self.go_on.wait()
        return message

    def updates(self, data: bytes, call: Call, send: Send) -> BytesValue:
        answer = self.work(data, call)
        if answer.value == b"flood":  # more than any buffer on the way holds
            for number in range(2000):
                send(BytesValue(value=number.to_bytes(4, "big") + bytes(100_000)))
                if call.stop.is_set():
                    self.stopped.set()
                    break
            return BytesValue(value=b"last")
        send(BytesValue(value=b"update"))
        return answer

    async def poll(self, data: bytes, call: Call) -> BytesValue:
        self.seen.append(call)
        message = parsed(BytesValue, data)
        if message.value == b"wait":
            self.started.release()
            await asyncio.sleep(60)
        return message

    def metrics(self) -> list[ServiceMetric]:
        return [ServiceMetric("toys", "Toys there are.", lambda: 3)]


def ask(service: Service, method: str, message: Message, owner: str = "") -> Any:
    """What a method of a service answers, without a server."""
    return service.methods()[method].work(message.SerializeToString(), Call(method, "", "", None, owner))


SEED_DEFECT, SEED_INFEASIBLE, SEED_SLOW = 101, 102, 103


@pytest.fixture
def optimizer() -> FakeOptimizer:
    return FakeOptimizer()


@pytest.fixture
def address(optimizer: FakeOptimizer) -> Iterator[str]:
    with serve_in_thread([OptimizerService(LocalOptimizer(optimizer))], workers=2) as served_at:
        yield served_at


@pytest.fixture
def toy() -> Iterator[ToyService]:
    service = ToyService()
    yield service
    service.go_on.set()  # no thread outlives its test


@pytest.fixture
def toy_address(toy: ToyService) -> Iterator[str]:
    with serve_in_thread([toy], workers=2) as served_at:
        yield served_at


@pytest.fixture
def toy_channel(toy_address: str) -> Iterator[grpc.Channel]:
    with grpc.insecure_channel(toy_address) as channel:
        yield channel


@pytest.fixture
def graph() -> Graph:
    builder = GraphBuilder("small", bindings=Bindings({"batch": 2}))
    builder.add_tensor("x", 8, "float32", "input")
    for name, source in (("a", "x"), ("b", "a.out")):
        builder.add_op(
            name,
            "Relu",
            "vector",
            flops=8,
            dtype="float32",
            reads=[(source, None)],
            writes=[(f"{name}.out", 8, "float32")],
        )
    builder.mark_output("b.out")
    return builder.build()
