"""Answers follow the order in which the caller sent the ops, whatever order that is.

The caller knows only the protos. What its plans should cost is asked of the library.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import grpc
import numpy as np
import pytest
from google.rpc import error_details_pb2
from grpc_status import rpc_status

from go_opt import api
from go_opt.model.codecs.wire import graph_from_proto, graph_to_proto, plan_from_proto
from go_opt.model.graph import Graph
from go_opt.proto import (
    environment_pb2,
    environment_pb2_grpc,
    graph_pb2,
    optimizer_pb2,
    optimizer_pb2_grpc,
    plan_pb2,
)
from go_opt.service.environment.environment_service import EnvironmentService
from go_opt.service.workers.optimizer import LocalOptimizer, OptimizerService
from tests.contract.test_service_contract import chain
from tests.serving import serve_in_thread
from tests.shuffled import by_name, in_order, shuffled
from tests.strategies import random_graph

TARGET = plan_pb2.Target(name="mcm-2x2")


def heavy(graph: Graph) -> graph_pb2.Graph:
    """The graph with so much work that it pays to use several chips."""
    message = graph_to_proto(graph)
    for op in message.ops:
        op.flops *= 1e3
    return message


SENT = heavy(chain(8))  # one topological order alone, so that every order of its ops is the same question
ORDERS = [list(np.random.default_rng(seed).permutation(8)) for seed in range(3)] + [[*range(7, -1, -1)]]


@pytest.fixture(scope="module")
def channel() -> Iterator[grpc.Channel]:
    services = (OptimizerService(LocalOptimizer()), EnvironmentService())
    with serve_in_thread(services) as address, grpc.insecure_channel(address) as opened:
        yield opened


def question(graph: graph_pb2.Graph, **options: Any) -> optimizer_pb2.OptimizeRequest:
    options = {"max_evaluations": 12, "policy": "none", **options}
    return optimizer_pb2.OptimizeRequest(graph=graph, target=TARGET, **options)


def optimize(channel: grpc.Channel, graph: graph_pb2.Graph, **options: Any) -> optimizer_pb2.OptimizeResponse:
    return optimizer_pb2_grpc.OptimizerStub(channel).Optimize(question(graph, **options))


def evaluate(channel: grpc.Channel, graph: graph_pb2.Graph, plan: plan_pb2.Plan) -> plan_pb2.Metrics:
    request = optimizer_pb2.EvaluateRequest(graph=graph, target=TARGET, plan=plan)
    return optimizer_pb2_grpc.OptimizerStub(channel).Evaluate(request).metrics


def in_session(
    channel: grpc.Channel, graph: graph_pb2.Graph, plans: list[plan_pb2.Plan]
) -> list[plan_pb2.Metrics]:
    """The answer of a session to one batch."""
    stub = environment_pb2_grpc.EnvironmentStub(channel)
    session = stub.CreateSession(environment_pb2.CreateSessionRequest(graph=graph, target=TARGET))
    assert list(session.op_names) == names_of(graph)
    batch = environment_pb2.EvaluateBatchRequest(session_id=session.session_id, plans=plans)
    (answer,) = stub.Evaluate(iter([batch]))
    return list(answer.metrics)


def names_of(graph: graph_pb2.Graph) -> list[str]:
    return [op.name for op in graph.ops]


@pytest.mark.parametrize("order", ORDERS, ids=str)
@pytest.mark.parametrize("options", [{}, {"no_replication": True}, {"decide": 2}], ids=str)
def test_an_answer_names_the_same_decisions_in_every_order(
    channel: grpc.Channel, order: list[int], options: dict[str, Any]
) -> None:
    want, graph = optimize(channel, SENT, **options), shuffled(SENT, order)
    got = optimize(channel, graph, **options)
    assert list(want.plan.op_names) == names_of(SENT)
    assert list(got.plan.op_names) == names_of(graph)
    assert by_name(got.plan) == by_name(want.plan)
    assert got.metrics == want.metrics
    is_spread = len(set(want.plan.placement)) > 1
    assert is_spread or max(want.plan.replication) > 1


@pytest.mark.parametrize("order", ORDERS[1:3], ids=str)
def test_every_update_of_a_stream_follows_the_order_sent(channel: grpc.Channel, order: list[int]) -> None:
    def updates(graph: graph_pb2.Graph) -> list[optimizer_pb2.OptimizeResponse]:
        # Of a seed of its own: no answer of another test is given again.
        stream = optimizer_pb2_grpc.OptimizerStub(channel).OptimizeStream(question(graph, seed=9))
        return [getattr(update, update.WhichOneof("update")) for update in stream]

    graph = shuffled(SENT, order)
    want, got = updates(SENT), updates(graph)
    assert len(got) > 1
    for update in got:
        assert list(update.plan.op_names) == names_of(graph)
        assert evaluate(channel, graph, update.plan) == update.metrics
    assert by_name(got[-1].plan) == by_name(want[-1].plan)


@pytest.mark.parametrize("seed", range(6))
def test_branches_sent_in_any_order_run_as_the_answer_says(channel: grpc.Channel, seed: int) -> None:
    rng = np.random.default_rng(seed)
    message = heavy(random_graph(rng, num_ops=14))
    local, graph = graph_from_proto(message), shuffled(message, rng.permutation(14).tolist())
    answer = optimize(channel, graph, no_replication=seed % 2 == 0)
    assert list(answer.plan.op_names) == names_of(graph)
    assert evaluate(channel, graph, answer.plan) == answer.metrics
    # What the names say is a plan for the graph in its own order too, of the same interval.
    plan = in_order(answer.plan, local.op_names)
    plan.graph_fingerprint = local.fingerprint
    assert api.verify(local, "mcm-2x2", plan_from_proto(plan)) == []
    interval_s = api.evaluate(local, "mcm-2x2", plan_from_proto(plan)).interval_s
    assert interval_s == pytest.approx(answer.metrics.interval_s, rel=1e-12)


@pytest.mark.parametrize("order", ORDERS, ids=str)
def test_plans_of_the_callers_are_read_in_the_order_sent(channel: grpc.Channel, order: list[int]) -> None:
    graph = shuffled(SENT, order)
    answers = [optimize(channel, SENT), optimize(channel, SENT, no_replication=True)]
    plans = [answer.plan for answer in answers]
    turned = [in_order(plan, names_of(graph)) for plan in plans]
    for plan, answer in zip(turned, answers, strict=True):
        assert evaluate(channel, graph, plan) == answer.metrics
    assert [max(plan.replication) > 1 for plan in plans] == [True, False]
    want_s = [metrics.interval_s for metrics in in_session(channel, SENT, plans)]
    assert [metrics.interval_s for metrics in in_session(channel, graph, turned)] == want_s
    assert want_s == [answer.metrics.interval_s for answer in answers]


@pytest.mark.parametrize("order", ORDERS, ids=str)
def test_a_search_begins_with_a_plan_in_the_order_sent(channel: grpc.Channel, order: list[int]) -> None:
    graph = shuffled(SENT, order)
    plan = optimize(channel, SENT, max_evaluations=40).plan
    turned = optimizer_pb2.Start(plan=in_order(plan, names_of(graph)))
    with_it = optimize(channel, graph, max_evaluations=2, start=turned)
    without = optimize(channel, graph, max_evaluations=2)
    assert with_it.history[0].method == "start"
    assert with_it.history[0].objective_s == evaluate(channel, SENT, plan).interval_s
    assert with_it.metrics.interval_s < without.metrics.interval_s


@pytest.mark.parametrize("order", ORDERS, ids=str)
def test_a_plan_is_checked_and_explained_in_the_order_sent(channel: grpc.Channel, order: list[int]) -> None:
    stub, graph = optimizer_pb2_grpc.OptimizerStub(channel), shuffled(SENT, order)
    plan = optimize(channel, SENT, no_replication=True).plan
    chip = plan.placement[2]
    assert 0 < list(plan.placement).count(chip) < 8
    asked = [optimizer_pb2.Constraint(forbid=optimizer_pb2.Forbid(ops=["op3"], chips=[chip]))]
    told = []
    for sent in (SENT, graph):
        about: dict[str, Any] = {"graph": sent, "target": TARGET, "plan": in_order(plan, names_of(sent))}
        assert not stub.Verify(optimizer_pb2.VerifyRequest(**about)).violations
        (broken,) = stub.Verify(optimizer_pb2.VerifyRequest(**about, constraints=asked)).violations
        assert "op3" in broken.message
        answers = [stub.Explain(optimizer_pb2.ExplainRequest(**about, op=op)) for op in ("", "op3")]
        assert answers[1].explanation["chip"] == chip
        told.append([broken, *answers])
    assert told[0] == told[1]


def test_a_session_reads_replicated_stages_in_the_order_sent(channel: grpc.Channel) -> None:
    graph = shuffled(SENT, ORDERS[0])
    plan = optimize(channel, SENT, decide=2).plan
    for i in range(8):  # two stages of two chips each, cut after op4
        plan.placement[i], plan.replication[i] = 2 * (i >= 4), 2
    plan.order[:] = range(8)
    plan.fusion_group[:] = range(8)
    del plan.relays[:]
    (want,) = in_session(channel, SENT, [plan])
    (got,) = in_session(channel, graph, [in_order(plan, names_of(graph))])
    assert got == want
    assert got.interval_s == evaluate(channel, SENT, plan).interval_s


def test_an_answer_given_again_is_in_the_order_of_who_asks(channel: grpc.Channel) -> None:
    graph = shuffled(SENT, ORDERS[1])
    first, turned = (optimize(channel, sent, seed=4, decide=2) for sent in (SENT, graph))
    again, turned_again = (optimize(channel, sent, seed=4, decide=2) for sent in (SENT, graph))
    assert [first.is_cached, again.is_cached, turned_again.is_cached] == [False, True, True]
    assert again.plan == first.plan
    assert turned_again.plan == turned.plan
    assert turned.plan.placement != first.plan.placement


def test_a_plan_of_another_order_is_refused(channel: grpc.Channel) -> None:
    graph, plan = shuffled(SENT, [1, 0, *range(2, 8)]), optimize(channel, SENT).plan
    problem = "op_names has 'op1' at 0, where the graph was sent with 'op2'."
    with pytest.raises(grpc.RpcError) as error:
        evaluate(channel, graph, plan)
    assert refusal(error.value) == (f"plan: {problem}", "plan.op_names")
    stub, about = optimizer_pb2_grpc.OptimizerStub(channel), {"graph": graph, "target": TARGET, "plan": plan}
    for ask in (
        lambda: stub.Verify(optimizer_pb2.VerifyRequest(**about)),
        lambda: stub.Explain(optimizer_pb2.ExplainRequest(**about)),
    ):
        with pytest.raises(grpc.RpcError) as error:
            ask()
        assert refusal(error.value) == (f"plan: {problem}", "plan.op_names")
    with pytest.raises(grpc.RpcError) as error:
        in_session(channel, graph, [in_order(plan, names_of(graph)), plan])
    assert refusal(error.value) == (f"batch 0: plan 1: {problem}", "plans[1].op_names")
    del plan.op_names[3:]
    with pytest.raises(grpc.RpcError) as error:
        evaluate(channel, graph, plan)
    assert refusal(error.value)[0] == "plan: op_names has 3 entries, the graph 8 ops."


def refusal(error: grpc.RpcError) -> tuple[str, str]:
    """The sentence and the field of an INVALID_ARGUMENT."""
    assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
    for detail in rpc_status.from_call(error).details:
        request = error_details_pb2.BadRequest()
        if detail.Unpack(request):
            return error.details(), request.field_violations[0].field
    raise AssertionError(f"{error.details()!r} names no field")
