"""A valid request of every method, for a service that runs: what mutations start from."""

from __future__ import annotations

from importlib.resources import files
from typing import Any, Final

import grpc
import numpy as np
from google.longrunning import operations_pb2
from google.protobuf.message import Message
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection_pb2

from go_opt.env import load_target
from go_opt.model.bindings import Bindings
from go_opt.model.builder import GraphBuilder
from go_opt.model.codecs.wire import graph_to_proto, plan_to_proto
from go_opt.model.graph import Graph
from go_opt.model.plan import Plan
from go_opt.proto import environment_pb2, optimizer_pb2, plan_pb2, training_pb2
from tests.service.jobs.fake_job import RUNS, WAITS
from tests.service.test_onnx_requests import linear

TARGET: Final = "gpu-2"
_TIMEOUT_S: Final = 60.0


def small_graph() -> Graph:
    """Twelve ops in two branches, with everything that a graph may have."""
    builder = GraphBuilder("small", bindings=Bindings({"batch": 2}))
    builder.add_tensor("x", 64, "float32", "input")
    source = "x"
    for i in range(12):
        builder.add_tensor(f"w{i}", 4096, "bfloat16", "weight")
        builder.add_op(
            f"op{i}",
            "MatMul" if i % 2 else "Relu",
            "matrix" if i % 2 else "vector",
            flops=8192.0,
            dtype="float32",
            reads=[(source, None), (f"w{i}", 100), *([("x", 8)] if i == 5 else [])],
            writes=[(f"t{i}", 64, "float32")],
            measured_s={"gpu": 1e-6} if i == 3 else {},
            excluded_kinds=["other"] if i == 4 else [],
        )
        source = f"t{i}" if i != 7 else "t3"
    builder.mark_output("t11")
    return builder.build()


class Examples:
    """Makes a session and two jobs, one done and one that waits, and requests about them."""

    def __init__(self, channel: grpc.Channel) -> None:
        self._channel = channel
        graph = small_graph()
        message, target = graph_to_proto(graph), plan_pb2.Target(name=TARGET)
        text = (files("go_opt.env.targets") / f"{TARGET}.toml").read_text("utf-8")
        plan = _plan(graph)
        self.session = environment_pb2.CreateSessionRequest(graph=message, target=target, fidelity=1)
        created: Any = self.ask("go_opt.v1.Environment/CreateSession", self.session)
        self.session_id = environment_pb2.CreateSessionResponse.FromString(created).session_id
        optimize = optimizer_pb2.OptimizeRequest(
            graph=message, target=target, max_evaluations=3, budget_s=0.2, policy="none"
        )
        finetune = training_pb2.FinetuneRequest(
            policy="done",
            request_id="r",
            graph=message,
            target=target,
            seed=RUNS,
            from_policy="none",
            samples=2,
        )
        self.jobs = [
            operations_pb2.Operation.FromString(self.ask("go_opt.v1.Training/Finetune", request)).name
            for request in (finetune, _with(finetune, policy="waits", request_id="s", seed=WAITS))
        ]
        inline = _with(optimize, target=plan_pb2.Target(toml=text, toml_source="mine.toml"), fidelity=2)
        onnx = optimizer_pb2.OnnxModel(file=linear().SerializeToString(), dims={"batch": 2})
        imported = _with(optimize, graph=None, onnx=onnx)
        self.of_method: dict[str, tuple[Message, ...]] = {
            "go_opt.v1.Optimizer/Optimize": (optimize, inline, imported),
            "go_opt.v1.Optimizer/OptimizeStream": (optimize, inline),
            "go_opt.v1.Optimizer/Evaluate": (
                optimizer_pb2.EvaluateRequest(graph=message, target=target, plan=plan, seed=1),
                optimizer_pb2.EvaluateRequest(graph=message, target=target, plan=plan, fidelity=2),
            ),
            "go_opt.v1.Optimizer/Verify": (
                optimizer_pb2.VerifyRequest(graph=message, target=target, plan=plan),
            ),
            "go_opt.v1.Optimizer/Explain": (
                optimizer_pb2.ExplainRequest(graph=message, target=target, plan=plan),
                optimizer_pb2.ExplainRequest(graph=message, target=target, plan=plan, op="op3", objective=2),
            ),
            "go_opt.v1.Optimizer/ListTargets": (optimizer_pb2.ListTargetsRequest(),),
            "go_opt.v1.Environment/CreateSession": (
                self.session,
                _with(self.session, target=plan_pb2.Target(toml=text), fidelity=2),
            ),
            "go_opt.v1.Environment/Evaluate": (
                environment_pb2.EvaluateBatchRequest(
                    session_id=self.session_id, batch_id=7, plans=[plan] * 2
                ),
            ),
            "go_opt.v1.Environment/CloseSession": (environment_pb2.CloseSessionRequest(session_id="0" * 32),),
            "go_opt.v1.Training/Pretrain": (
                training_pb2.PretrainRequest(policy="other", zoo_graphs=["resnet50"], most_ops=600),
                training_pb2.PretrainRequest(
                    policy="new",
                    request_id="n",
                    graphs=[message],
                    target=target,
                    samples=2,
                    lessons=["order"],
                ),
            ),
            "go_opt.v1.Training/Finetune": (_with(finetune, policy="fine", request_id="f"), finetune),
            "google.longrunning.Operations/ListOperations": (
                operations_pb2.ListOperationsRequest(name="operations", page_size=1),
            ),
            "google.longrunning.Operations/GetOperation": tuple(
                operations_pb2.GetOperationRequest(name=name) for name in self.jobs
            ),
            "google.longrunning.Operations/WaitOperation": tuple(
                operations_pb2.WaitOperationRequest(name=name, timeout={"nanos": 10**6}) for name in self.jobs
            ),
            # Not of the jobs there are, which are to stay.
            "google.longrunning.Operations/CancelOperation": (
                operations_pb2.CancelOperationRequest(name="operations/" + "0" * 32),
            ),
            "google.longrunning.Operations/DeleteOperation": (
                operations_pb2.DeleteOperationRequest(name="operations/" + "0" * 32),
            ),
            "grpc.health.v1.Health/Check": (health_pb2.HealthCheckRequest(service="go_opt.v1.Optimizer"),),
            "grpc.health.v1.Health/Watch": (health_pb2.HealthCheckRequest(),),
            "grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo": (
                reflection_pb2.ServerReflectionRequest(file_containing_symbol="go_opt.v1.Graph"),
                reflection_pb2.ServerReflectionRequest(list_services="*"),
            ),
        }
        if hasattr(health_pb2, "HealthListRequest"):  # newer than the oldest release supported
            self.of_method |= {"grpc.health.v1.Health/List": (health_pb2.HealthListRequest(),)}

    def ask(self, method: str, request: Message) -> bytes:
        """The answer to a request that nothing is wrong with."""
        answer: bytes = self._channel.unary_unary(f"/{method}")(
            request.SerializeToString(), timeout=_TIMEOUT_S
        )
        return answer


def _plan(graph: Graph) -> plan_pb2.Plan:
    ops = np.arange(graph.num_ops)
    fingerprint = load_target(TARGET).fingerprint
    plan = Plan.create(
        graph, TARGET, fingerprint, placement=ops // 6, order=ops, fusion_group=ops, provenance="example"
    )
    return plan_to_proto(plan)


def _with(message: Any, **changes: Any) -> Any:
    """A copy with other values."""
    changed = type(message)(**changes)
    copied = type(message)()
    copied.CopyFrom(message)
    for name in changes:
        copied.ClearField(name)
    copied.MergeFrom(changed)
    return copied
