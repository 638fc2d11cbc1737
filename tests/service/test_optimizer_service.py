"""The optimizer service over the loopback: answers, improvements, errors, deadlines."""

from __future__ import annotations

import logging
import socket
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from go_opt.env import load_target, load_zoo, target_names
from go_opt.errors import InfeasibleError, InvalidInputError, PlanError, ServiceError, TargetError
from go_opt.model.codecs.plan_json import plan_to_dict
from go_opt.model.codecs.wire import graph_to_proto
from go_opt.model.graph import Graph
from go_opt.model.start import OpStart, Start
from go_opt.proto import optimizer_pb2, optimizer_pb2_grpc
from go_opt.result import Request
from go_opt.search.shared.policies import find_policy as find_shipped_policy
from go_opt.service.client.client import Client
from go_opt.service.messages.convert import request_to_proto
from go_opt.service.server import serve
from go_opt.service.workers.optimizer import LocalOptimizer, OptimizerService, no_policies
from go_opt.solver.problem.user_constraints import Colocate, Pin
from tests.serving import serve_in_thread

SEED_DEFECT, SEED_INFEASIBLE, SEED_SLOW = 101, 102, 103  # as in conftest.py
SHIPPED_POLICY = find_shipped_policy("default")
METHODS = ("Optimize", "OptimizeStream", "Evaluate", "ListTargets")


def raw(channel: grpc.Channel, method: str) -> Any:
    """A call of bytes to bytes."""
    return channel.unary_unary(f"/go_opt.v1.Optimizer/{method}")


def code_of(address: str, method: str, data: bytes) -> grpc.StatusCode:
    with grpc.insecure_channel(address) as channel:
        return raw(channel, method).future(data, timeout=20).code()


def test_an_answer_arrives_whole(address: str, optimizer: Any, graph: Graph) -> None:
    with Client(address) as client:
        got = client.optimize(graph, "mcm-6x6", objective="latency", seed=7)
    options = {"seed": 7, "objective": "latency"}
    sent = optimizer.optimize(graph, load_target("mcm-6x6"), should_stop=lambda: True, **options)
    assert plan_to_dict(got.plan) == plan_to_dict(sent.plan)
    for name, value in vars(sent.metrics).items():
        np.testing.assert_array_equal(getattr(got.metrics, name), value, strict=isinstance(value, np.ndarray))
    for name in sent.__dataclass_fields__.keys() - {"plan", "metrics"}:
        assert getattr(got, name) == getattr(sent, name), name


def test_every_keyword_arrives(address: str, optimizer: Any, graph: Graph) -> None:
    given_options: dict[str, Any] = {
        "objective": "throughput",
        "budget_s": 0.25,
        "max_evaluations": 9,
        "seed": 2**63 - 1,
        "decide": "placement",
        "relays": False,
        "replication": False,
        "splits": False,
        "rewrite": False,
        "fidelity": "simulated",
        "constraints": (Pin("a", 1), Colocate(["a", "b"])),
        "max_latency_s": 2.5,
        "sequences": 4,
        "simulate": False,
        "early_end": False,
        "policy": None,
        "start": Start({"a": OpStart(3), "c": OpStart(1, 2, 0, 4)}),
    }
    with Client(address) as client:
        client.optimize(graph, "mcm-6x6", **given_options)
        client.optimize(graph, "mcm-6x6")
    defaults = {"objective": "throughput", "budget_s": None, "max_evaluations": None, "seed": 0}
    defaults |= {"decide": "all", "relays": True, "replication": True, "policy": None}
    defaults |= {"splits": True, "early_end": True}
    defaults |= {"fidelity": "analytical", "constraints": (), "max_latency_s": None, "simulate": True}
    defaults |= {"sequences": None, "rewrite": True}
    start = optimizer.asked[0].pop("start")  # equal to no other
    assert (start.ops, start.plan) == (given_options.pop("start").ops, None)
    of_service = {"remember": None}
    assert optimizer.asked == [given_options | of_service, defaults | of_service | {"start": None}]


def test_targets_by_name_path_and_object(address: str, graph: Graph, tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    source = Path(__file__).parents[2] / "env" / "targets" / "mcm-2x2.toml"
    path.write_text(source.read_text("utf-8").replace("mcm-2x2", "mine"), "utf-8")
    with Client(address) as client:
        assert client.list_targets() == target_names()
        by_name = client.optimize(graph, "gpu-2").plan
        by_path = client.optimize(graph, path).plan
        by_object = client.optimize(graph, load_target("gpu-2")).plan
        assert (by_name.target, by_path.target, by_object.target) == ("gpu-2", "mine", "gpu-2")
        assert client.evaluate(graph, str(path), by_path).compute_s.shape == (4,)
        with pytest.raises(TargetError, match="'mine' does not ship"):
            client.optimize(graph, load_target(path))
        with pytest.raises(PlanError, match="another target"):
            client.evaluate(graph, "mcm-2x2", by_path)


@pytest.mark.parametrize("name", ["README.md", "../pyproject.toml", "/etc/passwd", "tests", "x" * 5000, ""])
def test_a_name_opens_no_file_of_the_service(address: str, graph: Graph, name: str) -> None:
    request = optimizer_pb2.OptimizeRequest(graph=graph_to_proto(graph))
    request.target.name = name
    with grpc.insecure_channel(address) as channel, pytest.raises(grpc.RpcError) as error:
        raw(channel, "Optimize")(request.SerializeToString())
    assert error.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert error.value.details().startswith("unknown target")


def test_fidelity_and_seed_arrive(address: str, optimizer: Any, graph: Graph) -> None:
    with Client(address) as client:
        plan = client.optimize(graph, "gpu-2").plan
        client.evaluate(graph, "gpu-2", plan)
        client.evaluate(graph, "gpu-2", plan, fidelity="simulated", seed=0)
        client.evaluate(graph, "gpu-2", plan, fidelity="simulated")
    assert optimizer.evaluated[1:] == [("analytical", None), ("simulated", 0), ("simulated", None)]


@pytest.mark.parametrize(
    ("number", "words"), [(3, "fidelity: this service has no hardware"), (9, "fidelity: 9 is no number")]
)
@pytest.mark.parametrize("method", ["Optimize", "Evaluate"])
def test_a_fidelity_that_is_not_served(
    address: str, graph: Graph, method: str, number: int, words: str
) -> None:
    request = getattr(optimizer_pb2, f"{method}Request")(graph=graph_to_proto(graph), fidelity=number)
    request.target.name = "gpu-2"
    with grpc.insecure_channel(address) as channel, pytest.raises(grpc.RpcError) as error:
        raw(channel, method)(request.SerializeToString())
    assert error.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert error.value.details().startswith(words)


def test_infeasible_is_raised_as_such(address: str, graph: Graph) -> None:
    with Client(address) as client, pytest.raises(InfeasibleError, match="op 'a' needs 9 bytes"):
        client.optimize(graph, "mcm-6x6", seed=SEED_INFEASIBLE)


def test_a_defect_is_logged_and_the_service_lives_on(
    address: str, graph: Graph, caplog: pytest.LogCaptureFixture
) -> None:
    with Client(address) as client:
        with caplog.at_level(logging.ERROR), pytest.raises(ServiceError, match="INTERNAL") as error:
            client.optimize(graph, "mcm-6x6", seed=SEED_DEFECT)
        assert "a defect" not in str(error.value)
        assert "KeyError: 'a defect'" in caplog.text
        assert client.list_targets()


def test_the_deadline_caps_the_budget(address: str, optimizer: Any, graph: Graph) -> None:
    with Client(address, timeout_s=2) as client:
        for options in ({}, {"max_evaluations": 3}, {"budget_s": 60}, {"budget_s": 0.5}):
            client.optimize(graph, "mcm-6x6", **options)
    *capped, own = [options["budget_s"] for options in optimizer.asked]
    assert all(1 < budget_s <= 1.9 for budget_s in capped)
    assert own == 0.5


def test_a_search_stops_when_its_caller_leaves(address: str, optimizer: Any, graph: Graph) -> None:
    asked = request_to_proto(Request(seed=SEED_SLOW))
    asked.graph.CopyFrom(graph_to_proto(graph))
    asked.target.name = "mcm-6x6"
    with grpc.insecure_channel(address) as channel:
        call = raw(channel, "Optimize").future(asked.SerializeToString(), timeout=60)
        assert optimizer.started.wait(5)
        call.cancel()
        assert optimizer.stopped.wait(5)


def test_a_search_that_exceeds_its_budget_answers_before_the_deadline(
    address: str, optimizer: Any, graph: Graph
) -> None:
    with Client(address, timeout_s=2) as client:
        client.optimize(graph, "mcm-6x6", seed=SEED_SLOW)
        assert optimizer.stopped.is_set()


def test_health_and_reflection(address: str) -> None:
    with grpc.insecure_channel(address) as channel:
        check = health_pb2_grpc.HealthStub(channel).Check
        for service in ("", "go_opt.v1.Optimizer"):
            answer = check(health_pb2.HealthCheckRequest(service=service))
            assert answer.status == health_pb2.HealthCheckResponse.SERVING
        listing = reflection_pb2.ServerReflectionRequest(list_services="")
        by_symbol = reflection_pb2.ServerReflectionRequest(file_containing_symbol="go_opt.v1.Optimizer")
        reflect = reflection_pb2_grpc.ServerReflectionStub(channel).ServerReflectionInfo
        listed, described = reflect(iter([listing, by_symbol]))
    names = {service.name for service in listed.list_services_response.service}
    assert names >= {"go_opt.v1.Optimizer", "grpc.health.v1.Health"}
    assert b"OptimizeRequest" in b"".join(described.file_descriptor_response.file_descriptor_proto)


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.sampled_from(METHODS), st.binary(max_size=100))
def test_any_bytes_are_answered_or_refused(address: str, method: str, data: bytes) -> None:
    assert code_of(address, method, data) in (grpc.StatusCode.OK, grpc.StatusCode.INVALID_ARGUMENT)


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_broken_requests_are_answered_or_refused(address: str, graph: Graph, data: st.DataObject) -> None:
    request = optimizer_pb2.OptimizeRequest(graph=graph_to_proto(graph))
    request.target.name = "gpu-2"
    whole = bytearray(request.SerializeToString())
    for _ in range(data.draw(st.integers(1, 3))):
        whole[data.draw(st.integers(0, len(whole) - 1))] = data.draw(st.integers(0, 255))
    code = code_of(address, "Optimize", bytes(whole))
    # One byte makes the graph the name of a policy.
    assert code in (grpc.StatusCode.OK, grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.NOT_FOUND)


def test_a_message_beyond_grpcs_own_limit_passes(address: str, graph: Graph) -> None:
    request = optimizer_pb2.OptimizeRequest(graph=graph_to_proto(graph))
    request.target.name = "gpu-2"
    request.target.toml_source = "x" * (5 * 2**20)
    with grpc.insecure_channel(address, options=[("grpc.max_send_message_length", -1)]) as channel:
        assert raw(channel, "Optimize")(request.SerializeToString())


@pytest.mark.parametrize(
    "address",
    [
        "",
        "localhost",
        ":50051",
        "localhost:",
        "localhost:x",
        "localhost:70000",
        "::1:5",
        "http://a:1",
        "a b:1",
    ],
)
def test_a_malformed_address_is_refused(address: str) -> None:
    for door in (partial(serve, services=list), Client):
        with pytest.raises(InvalidInputError, match="HOST:PORT") as error:
            door(address)
        assert error.value.field == "address"


def test_a_busy_port_is_refused() -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        with pytest.raises(
            InvalidInputError, match=f"cannot listen on 127.0.0.1:{port}: Address already in use"
        ):
            serve(f"127.0.0.1:{port}", list)


def test_two_services_never_share_a_port(optimizer: Any) -> None:
    services = [OptimizerService(LocalOptimizer(optimizer))]
    with serve_in_thread(services) as address, pytest.raises(InvalidInputError, match="cannot listen"):
        serve(address, list)


@pytest.fixture(scope="module")
def stub() -> Iterator[optimizer_pb2_grpc.OptimizerStub]:
    """Of a service that really searches, and knows one policy by name."""

    def find_policy(name: str, owner: str) -> Path:
        return SHIPPED_POLICY if name == "mine" else no_policies(name, owner)

    service = OptimizerService(LocalOptimizer(), find_policy=find_policy)
    with serve_in_thread([service], workers=2) as address, grpc.insecure_channel(address) as channel:
        yield optimizer_pb2_grpc.OptimizerStub(channel)


def searched(**fields: Any) -> optimizer_pb2.OptimizeRequest:
    request = optimizer_pb2.OptimizeRequest(graph=graph_to_proto(load_zoo("bert_base")), **fields)
    request.target.name = "mcm-6x6"
    return request


def test_improvements_are_better_each_time_and_the_result_is_last(stub: Any) -> None:
    request = searched(max_evaluations=15, policy="none")
    *improvements, last = stub.OptimizeStream(request)
    assert all(update.WhichOneof("update") == "improvement" for update in improvements)
    found = [update.improvement for update in improvements]
    reached_s = [response.metrics.interval_s for response in found]
    assert reached_s == sorted(set(reached_s), reverse=True)
    assert not any(response.history for response in found)
    assert last.result.metrics.interval_s <= reached_s[-1]
    assert (last.result.evaluations, len(last.result.history)) == (15, 15)
    answer = stub.Optimize(request)  # of the cache: the stream's
    assert answer.is_cached
    answer.is_cached = False
    assert answer == last.result


def test_a_cached_answer_needs_no_improvements(stub: Any) -> None:
    request = searched(max_evaluations=4, seed=1, policy="none")
    answer = stub.Optimize(request)
    (update,) = stub.OptimizeStream(request)
    assert update.result.is_cached
    assert update.result.plan == answer.plan


def test_a_stream_that_its_caller_leaves_stops(address: str, optimizer: Any, graph: Graph) -> None:
    request = optimizer_pb2.OptimizeRequest(graph=graph_to_proto(graph), seed=SEED_SLOW)
    request.target.name = "gpu-2"
    with grpc.insecure_channel(address) as channel:
        stream = channel.unary_stream("/go_opt.v1.Optimizer/OptimizeStream")(request.SerializeToString())
        assert optimizer.started.wait(10)
        stream.cancel()
        assert optimizer.stopped.wait(5)


def test_a_policy_goes_by_its_name(stub: Any) -> None:
    by_name = stub.Optimize(searched(max_evaluations=2, policy="mine"))
    assert by_name.plan == stub.Optimize(searched(max_evaluations=2, policy="default")).plan


@pytest.mark.parametrize("policy", ["missing", "/etc/passwd", "../policy.safetensors", "Default", "x" * 5000])
@pytest.mark.parametrize("method", ["Optimize", "OptimizeStream"])
def test_a_name_that_no_policy_has_is_not_found(stub: Any, method: str, policy: str) -> None:
    with pytest.raises(grpc.RpcError) as error:
        list(getattr(stub, method)(searched(policy=policy)))
    assert error.value.code() is grpc.StatusCode.NOT_FOUND
    assert error.value.details().startswith("no policy has the name")
