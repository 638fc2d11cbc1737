"""Plans of a batch to messages and back: the same as one by one, in any size of number."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings

from go_opt.env import load_target
from go_opt.errors import InvalidInputError
from go_opt.model.codecs.wire import plan_to_proto
from go_opt.model.plan import Plan
from go_opt.proto import environment_pb2
from go_opt.service.environment.environment_service import PlanReader
from go_opt.service.environment.remote_environment import PlanWriter
from go_opt.service.messages.convert import chosen
from go_opt.service.messages.graphs import SentGraph
from tests.strategies import examples, random_graph, random_plan, random_target, seeds, toy_graph


def written(plans: list[Plan]) -> environment_pb2.EvaluateBatchRequest:
    request = environment_pb2.EvaluateBatchRequest()
    arrays = [np.array([getattr(p, name) for p in plans]) for name in ("placement", "order", "fusion_group")]
    PlanWriter(plans[0]).write(request, arrays)
    return request


@settings(max_examples=examples(50))
@given(seed=seeds)
def test_a_batch_is_its_plans(seed: int) -> None:
    rng = np.random.default_rng(seed)
    target = random_target(rng)
    graph = random_graph(rng, num_ops=int(rng.integers(1, 200)))
    plans = [random_plan(rng, graph, target) for _ in range(3)]
    request = written(plans)
    assert list(request.plans) == [plan_to_proto(plan) for plan in plans]
    reader = PlanReader(SentGraph(graph), target.fingerprint, target.num_chips)
    batch = reader.read(environment_pb2.EvaluateBatchRequest.FromString(request.SerializeToString()))
    for name in ("placement", "order", "fusion_group"):
        np.testing.assert_array_equal(
            getattr(batch, name), [getattr(plan, name) for plan in plans], strict=True
        )
    assert batch.is_plain.tolist() == [True] * 3


@pytest.mark.parametrize("largest", [0, 127, 128, 2**14 - 1, 2**14, 2**21, 2**28, 2**31 - 1])
def test_numbers_of_any_size(largest: int) -> None:
    graph, target, ops = toy_graph(), load_target("mcm-2x2"), np.arange(6, dtype=np.int32)
    plan = Plan.create(
        graph, "x", target.fingerprint, placement=0 * ops, order=ops, fusion_group=ops, provenance="x"
    )
    plan = replace(plan, fusion_group=np.array([0, 1, largest // 2, largest, largest, 5], dtype=np.int32))
    (message,) = written([plan]).plans
    assert list(message.fusion_group) == plan.fusion_group.tolist()


def test_an_empty_batch() -> None:
    batch = PlanReader(SentGraph(toy_graph()), "t", 2).read(environment_pb2.EvaluateBatchRequest())
    assert batch.placement.shape == (0, 6)
    assert batch.is_plain.shape == (0,)


def test_fidelities() -> None:
    requests = [environment_pb2.CreateSessionRequest(fidelity=number) for number in range(4)]
    names = [chosen(request, "fidelity") for request in requests]
    assert names == ["analytical", "analytical", "simulated", "hardware"]
    for number in (-1, 4):
        with pytest.raises(InvalidInputError, match=f"fidelity: {number} is no number of its enum"):
            chosen(environment_pb2.CreateSessionRequest(fidelity=number), "fidelity")
