"""One contract for what clients say of a plan: whether it is valid, and why it costs what it costs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import numpy as np
import pytest

from go_opt import Forbid, api, chip_counts, fewest_chips, from_onnx
from go_opt.env import load_target
from go_opt.errors import InfeasibleError, InvalidInputError, PlanError
from go_opt.model.codecs.plan_json import save_plan
from go_opt.model.graph import Graph
from go_opt.model.plan import Plan, Relay, Split
from go_opt.model.start import OpStart, Start
from go_opt.result import Request
from go_opt.result_json import explanation_to_dict
from go_opt.serving.mixed.cluster import Case
from go_opt.serving.mixed.search import plan_ranges
from tests.contract.test_service_contract import chain
from tests.env.test_states import decoder
from tests.go_opt.serving.test_mixed import PAIR
from tests.go_opt.test_host_states import two_readers
from tests.rewritten import branches
from tests.zoo import stateless

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


FEW: Final = {"max_evaluations": 4, "policy": None}


def test_a_search_begins_with_what_is_given(client: Any, graph: Graph, plan: Plan, tmp_path: Path) -> None:
    alike = chain(7)  # of the same names, and one more
    save_plan(plan, tmp_path / "plan.json", {"op_names": list(graph.op_names)})
    split = Start({"op1": OpStart(1), "op3": OpStart(2, 2)})
    for on, start in ((graph, plan), (graph, split), (alike, tmp_path / "plan.json")):
        got = client.optimize(on, "mcm-2x2", start=start, **FEW)
        want = api.optimize(on, "mcm-2x2", start=start, **FEW)
        steps = [(step.method, step.objective_s) for step in got.history]
        assert steps == [(step.method, step.objective_s) for step in want.history]
        assert "start" in dict(steps)
        np.testing.assert_array_equal(got.plan.placement, want.plan.placement)
    updates = list(client.optimize_stream(graph, "mcm-2x2", start=plan, **FEW))
    assert updates[-1].metrics.interval_s <= api.evaluate(graph, TARGET, plan).interval_s
    with pytest.raises(PlanError, match="matched by names"):
        client.optimize(alike, "mcm-2x2", start=plan, **FEW)


@pytest.mark.parametrize(
    "changes",
    [
        {"placement": 77 * np.ones(6, dtype=np.int32)},
        {"replication": np.full(6, 2**31 - 1, dtype=np.int32)},
        {"relays": (Relay("nothing", (900, 901)),)},
        {"splits": (Split("nothing", "j", 2**31 - 1, True),)},
        {"order": np.arange(6, dtype=np.int32)[::-1].copy()},
    ],
    ids=lambda changes: next(iter(changes)),
)
def test_a_plan_that_only_says_that_it_is_of_the_graph(
    client: Any, graph: Graph, plan: Plan, changes: dict[str, Any]
) -> None:
    start = Start.of_plan(replace(plan, **changes), graph.op_names)
    result = client.optimize(graph, "mcm-2x2", start=start, **FEW)
    assert client.verify(graph, "mcm-2x2", result.plan) == []


def test_a_plan_of_fewer_ops_that_says_that_it_is_of_the_graph(client: Any, graph: Graph, plan: Plan) -> None:
    rows = ("placement", "order", "fusion_group", "replication", "op_provenance")
    cut = replace(plan, **{name: getattr(plan, name)[:3] for name in rows})
    result = client.optimize(graph, "mcm-2x2", start=Start.of_plan(cut, graph.op_names[:3]), **FEW)
    assert client.verify(graph, "mcm-2x2", result.plan) == []


def test_the_fewest_chips(client: Any) -> None:
    heavy = api.load("zoo:mobilenet_v2")
    asked = Request(max_evaluations=6)
    first = next(chip_counts(heavy, TARGET, asked, counts=[2], policy=None)).result
    assert first is not None
    rate_per_s = 0.9 / first.metrics.interval_s
    got = client.fewest_chips(heavy, "mcm-2x2", rate_per_s=rate_per_s, max_evaluations=6, policy=None)
    want = fewest_chips(heavy, "mcm-2x2", asked, rate_per_s=rate_per_s, policy=None)
    assert (got.chips, got.is_proven, got.claim) == (want.chips, want.is_proven, want.claim)
    assert got.chips == 2
    assert got.result.metrics.interval_s == want.result.metrics.interval_s
    np.testing.assert_array_equal(got.result.plan.placement, want.result.plan.placement)
    for one, other in zip(got.tried, want.tried, strict=True):
        assert (one.chips, one.is_proven, one.reason) == (other.chips, other.is_proven, other.reason)
        assert one.result is not None
        assert other.result is not None
        assert one.result.lower_bound_s == other.result.lower_bound_s
        assert one.result.history == ()
    for rate in (0.0, -1.0, np.inf):
        with pytest.raises(InvalidInputError, match="rate_per_s must be above zero"):
            client.fewest_chips(heavy, "mcm-2x2", rate_per_s=rate)
    with pytest.raises(InvalidInputError, match="give a rate or a latency"):
        client.fewest_chips(heavy, "mcm-2x2")
    with pytest.raises(InfeasibleError, match="no plan with an interval") as error:
        client.fewest_chips(heavy, "mcm-2x2", rate_per_s=1e12, max_evaluations=2, policy=None)
    assert error.value.is_proven


def test_a_plan_with_splits_goes_there_and_back(client: Any) -> None:
    whole = stateless("gpt2_step")
    asked = {"max_evaluations": 30, "policy": None, "replication": False}  # replicas would forward weights
    result = client.optimize(whole, "mcm-6x6", **asked)
    (split,) = result.plan.splits
    assert result.plan.splits == api.optimize(whole, **asked).plan.splits
    assert api.evaluate(whole, None, result.plan).interval_s == result.metrics.interval_s
    assert client.evaluate(whole, "mcm-6x6", result.plan).interval_s == result.metrics.interval_s
    assert client.verify(whole, "mcm-6x6", result.plan) == []
    assert client.explain(whole, "mcm-6x6", result.plan)["splits"][0]["op"] == split.op
    assert client.optimize(whole, "mcm-6x6", max_evaluations=3, policy=None, splits=False).plan.splits == ()
    wrong = replace(result.plan, splits=(replace(split, op="logits"),))
    with pytest.raises(PlanError, match="the graph has no op 'logits'"):
        client.verify(whole, "mcm-6x6", wrong)


def test_a_plan_with_rewrites_goes_there_and_back(client: Any) -> None:
    sent = from_onnx(branches())
    result = client.optimize(sent, "h100-sxm-1", objective="latency", max_evaluations=40)
    assert [one.rule for one in result.plan.rewrites] == ["fold", "merge"]
    assert result.plan.graph_fingerprint == sent.fingerprint
    assert client.evaluate(sent, "h100-sxm-1", result.plan).makespan_s == result.metrics.makespan_s
    assert api.verify(sent, "h100-sxm-1", result.plan) == client.verify(sent, "h100-sxm-1", result.plan) == []
    assert client.explain(sent, "h100-sxm-1", result.plan)["rewrites"][1]["number"] == 3
    assert client.optimize(sent, "h100-sxm-1", max_evaluations=40, rewrite=False).plan.rewrites == ()
    wrong = replace(result.plan, rewrites=result.plan.rewrites[1:])
    with pytest.raises(PlanError, match="do not follow each other alone"):
        client.verify(sent, "h100-sxm-1", wrong)


def test_plans_of_sequences(client: Any) -> None:
    graph = decoder()
    result = client.optimize(graph, "mcm-2x2", sequences=3, max_evaluations=30)
    assert result.plan.sequences == 3
    assert api.verify(graph, TARGET, result.plan) == client.verify(graph, "mcm-2x2", result.plan) == []
    metrics = client.evaluate(graph, "mcm-2x2", result.plan)
    assert metrics.interval_s == result.metrics.interval_s >= metrics.latency_s / 3
    told = client.explain(graph, "mcm-2x2", result.plan)
    assert told["states"]["sequences"] == 3


def test_plans_with_states_on_the_host(client: Any) -> None:
    graph = two_readers()
    result = client.optimize(graph, "mcm-2x2", replication=False, max_evaluations=150)
    assert result.plan.host_states == ("h",)
    assert [(state.read, state.where) for state in result.states] == [("h", "host")]
    assert api.verify(graph, TARGET, result.plan) == client.verify(graph, "mcm-2x2", result.plan) == []
    assert client.evaluate(graph, "mcm-2x2", result.plan).interval_s == result.metrics.interval_s
    (told,) = client.explain(graph, "mcm-2x2", result.plan)["states"]["on_host"]
    assert told["state"] == "h"


def test_ranges_on_mixed_nodes_are_those_of_this_process(client: Any, tmp_path: Path) -> None:
    cluster, model = tmp_path / "pair.toml", "gpt:hidden=8,layers=4,heads=1,sequence=1"
    cluster.write_text(PAIR)
    there = client.optimize_ranges(model, cluster, seed=3)
    here = plan_ranges(Case.read(model, cluster), seed=3)
    assert (there.status, there.throughput_per_s) == ("OPTIMAL", pytest.approx(6.0))
    for name in ("starts", "ends", "flow_per_s", "bound_per_s", "evaluations"):
        assert np.array_equal(getattr(there, name), getattr(here, name)), name
    with pytest.raises(InfeasibleError, match="hold 7 layers together, the model has 8") as raised:
        client.optimize_ranges(model.replace("layers=4", "layers=8"), cluster)
    assert raised.value.is_proven
