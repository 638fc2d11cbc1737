"""One contract for what clients say of a plan: whether it is valid, and why it costs what it costs."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

import numpy as np
import pytest

from go_opt import Forbid, api
from go_opt.env import load_target
from go_opt.errors import InfeasibleError, InvalidInputError, PlanError
from go_opt.explanations.as_json import explanation_to_dict
from go_opt.model.graph import Graph
from go_opt.model.plan import Plan
from tests.contract.test_service_contract import chain

TARGET: Final = load_target("mcm-2x2")


@pytest.fixture(scope="module")
def graph() -> Graph:
    return chain(6)


@pytest.fixture(scope="module")
def plan(graph: Graph) -> Plan:
    """A valid one that does not depend on a search: all ops on chip 0, one kernel each."""
    ops = np.arange(graph.num_ops)
    return Plan.create(
        graph,
        TARGET.name,
        TARGET.fingerprint,
        placement=0 * ops,
        order=ops,
        fusion_group=ops,
        provenance="a test",
    )


def test_a_valid_plan_has_no_violations(client: Any, graph: Graph, plan: Plan) -> None:
    assert client.verify(graph, "mcm-2x2", plan) == []


def test_every_rule_that_a_plan_breaks_is_named(client: Any, graph: Graph, plan: Plan) -> None:
    backwards = replace(plan, order=plan.order[::-1].copy())
    found = client.verify(graph, "mcm-2x2", backwards)
    assert found == api.verify(graph, TARGET, backwards)
    assert found


def test_a_constraint_that_a_plan_breaks_is_named(client: Any, graph: Graph, plan: Plan) -> None:
    (found,) = client.verify(graph, "mcm-2x2", plan, [Forbid(("op1",), (0,))])
    assert "op1" in found.message
    assert found == api.verify(graph, TARGET, plan, [Forbid(("op1",), (0,))])[0]


def test_a_plan_is_explained(client: Any, graph: Graph, plan: Plan) -> None:
    told = client.explain(graph, "mcm-2x2", plan)
    assert told == explanation_to_dict(api.explain(graph, TARGET, plan))
    assert told["chips"][0]["ops"] == 6
    assert told["binding"][0]["name"] == told["metrics"]["bottleneck"]


def test_an_op_is_explained(client: Any, graph: Graph, plan: Plan) -> None:
    told = client.explain(graph, "mcm-2x2", plan, "op2")
    assert told == explanation_to_dict(api.explain(graph, TARGET, plan, "op2"))
    assert (told["op"], told["chip"]) == ("op2", 0)
    assert TARGET.num_chips > told["moves"][0]["chip"] > 0


def test_a_plan_is_explained_for_latency(client: Any, graph: Graph, plan: Plan) -> None:
    told = client.explain(graph, "mcm-2x2", plan, objective="latency")
    assert told == explanation_to_dict(api.explain(graph, TARGET, plan, objective="latency"))
    assert told["objective"] == "latency"
    # All six ops are one after the other: none of them could start later.
    assert [kernel["slack_s"] for kernel in told["path"]["kernels"]] == [0] * 6


def test_an_objective_that_is_none(client: Any, graph: Graph, plan: Plan) -> None:
    with pytest.raises(InvalidInputError, match="objective must be one of") as error:
        client.explain(graph, "mcm-2x2", plan, objective="power")
    assert error.value.field == "objective"


def test_a_constraint_forbids_moves(client: Any, graph: Graph, plan: Plan) -> None:
    told = client.explain(graph, "mcm-2x2", plan, "op6", constraints=[Forbid(("op6",), (1,))])
    assert [move["chip"] for move in told["moves"] if "op6" in move["forbidden"]] == [1]


def test_an_op_that_is_not_there(client: Any, graph: Graph, plan: Plan) -> None:
    with pytest.raises(InvalidInputError, match="op22") as error:
        client.explain(graph, "mcm-2x2", plan, "op22")
    assert error.value.field == "op"


def test_a_plan_of_another_graph(client: Any, plan: Plan) -> None:
    for ask in (client.verify, client.explain):
        with pytest.raises(PlanError):
            ask(chain(7), "mcm-2x2", plan)


def test_constraints_that_cannot_hold_together_are_raised_one_by_one(client: Any, graph: Graph) -> None:
    asked = [Forbid(("op3",), (0, 1)), Forbid(("op3",), (2, 3))]
    raised = []
    for search in (client.optimize, lambda *args, **options: api.optimize(*args, **options)):
        with pytest.raises(InfeasibleError) as error:
            search(graph, "mcm-2x2", constraints=asked, max_evaluations=5, policy=None)
        raised.append((str(error.value), error.value.is_proven, error.value.conflict, error.value.exit_code))
    assert raised[0] == raised[1]


def test_a_plan_with_splits_goes_there_and_back(client: Any) -> None:
    whole = api.load("zoo:gpt2_step")
    result = client.optimize(whole, "mcm-6x6", max_evaluations=30, policy=None)
    (split,) = result.plan.splits
    assert result.plan.splits == api.optimize(whole, max_evaluations=30, policy=None).plan.splits
    assert api.evaluate(whole, None, result.plan).interval_s == result.metrics.interval_s
    assert client.evaluate(whole, "mcm-6x6", result.plan).interval_s == result.metrics.interval_s
    assert client.verify(whole, "mcm-6x6", result.plan) == []
    assert client.explain(whole, "mcm-6x6", result.plan)["splits"][0]["op"] == split.op
    assert client.optimize(whole, "mcm-6x6", max_evaluations=3, policy=None, splits=False).plan.splits == ()
    wrong = replace(result.plan, splits=(replace(split, op="logits"),))
    with pytest.raises(PlanError, match="the graph has no op 'logits'"):
        client.verify(whole, "mcm-6x6", wrong)
