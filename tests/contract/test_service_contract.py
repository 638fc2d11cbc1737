"""One contract for clients: in process, and of services plain, encrypted, and with known clients only."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import grpc
import networkx as nx
import numpy as np
import onnx
import pytest
from onnx import helper

from go_opt import OnnxModel, api
from go_opt.env import Metrics, load_target, parse_target, target_names
from go_opt.errors import (
    GoOptError,
    GraphError,
    InfeasibleError,
    InvalidInputError,
    PlanError,
    TargetError,
)
from go_opt.model.bindings import Bindings
from go_opt.model.builder import GraphBuilder
from go_opt.model.codecs.plan_json import plan_to_dict
from go_opt.model.codecs.wire import graph_from_proto, graph_to_proto
from go_opt.model.graph import Graph
from go_opt.model.plan import Plan
from go_opt.model.states import sized_states
from go_opt.proto import graph_pb2, optimizer_pb2, optimizer_pb2_grpc
from go_opt.result import OptimizeResult
from go_opt.service.messages.errors import error_from_call
from tests.frontends.state_models import GIVEN

TARGETS: Final = Path(__file__).parents[2] / "env" / "targets"
# A search that only a stop ends soon.
ENDLESS: Final = {"budget_s": 60.0, "policy": None}


@pytest.fixture
def mine(tmp_path: Path) -> Path:
    """A target file that does not ship with go-opt."""
    path = tmp_path / "mine.toml"
    path.write_text((TARGETS / "mcm-2x2.toml").read_text("utf-8").replace('"mcm-2x2"', '"mine"'), "utf-8")
    return path


def chain(num_ops: int, *, elements: int = 1000, name: str = "chain") -> Graph:
    """Products in a row, with a skip over every third one."""
    builder = GraphBuilder(name, bindings=Bindings({"batch": 4}))
    builder.add_tensor("t0", elements, "float32", "input")
    for i in range(1, num_ops + 1):
        builder.add_tensor(f"w{i}", elements, "float32", "weight")
        builder.add_op(
            f"op{i}",
            "MatMul",
            "matrix",
            flops=1e6 * (1 + i % 4),
            dtype="float32",
            reads=[(f"t{i - 1}", None), (f"w{i}", None), (f"t{max(i - 3, 0)}", elements // 2)],
            writes=[(f"t{i}", elements, "float32")],
        )
    builder.mark_output(f"t{num_ops}")
    return builder.build()


def assert_same_metrics(actual: Metrics, expected: Metrics) -> None:
    assert (actual.simulation is None) == (expected.simulation is None)
    for got_part, want_part in ((actual, expected), (actual.simulation, expected.simulation)):
        values = {} if want_part is None else vars(want_part)
        for name in values.keys() - {"simulation"}:
            got, want = getattr(got_part, name), values[name]
            np.testing.assert_array_equal(got, want, err_msg=name, strict=isinstance(want, np.ndarray))


def ask_once(client: Any, *question: Any, **options: Any) -> OptimizeResult:
    return client.optimize(*question, **options)


def ask_for_all(client: Any, *question: Any, **options: Any) -> OptimizeResult:
    *_, answer = client.optimize_stream(*question, **options)
    return answer


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"seed": 5},
        {"objective": "latency"},
        {"decide": "placement", "relays": False, "replication": False, "policy": None},
        {"fidelity": "simulated"},
        {"max_evaluations": 30},  # the shipped policy takes part
    ],
    ids=repr,
)
@pytest.mark.parametrize("ask", [ask_once, ask_for_all], ids=["optimize", "stream"])
def test_the_same_question_has_the_same_answer(
    client: Any, ask: Callable[..., OptimizeResult], options: dict[str, Any]
) -> None:
    graph, options = chain(12), {"max_evaluations": 12, **options}
    got = ask(client, graph, "mcm-6x6", **options)
    want = api.optimize(graph, "mcm-6x6", **options)
    assert plan_to_dict(got.plan) == plan_to_dict(want.plan)
    assert_same_metrics(got.metrics, want.metrics)
    for name in ("objective", "status", "lower_bound_s", "bound_reason", "gap", "method"):
        assert getattr(got, name) == getattr(want, name), name
    assert got.evaluations == want.evaluations
    assert got.reference_s == want.reference_s
    assert [replace(step, elapsed_s=0.0) for step in got.history] == [
        replace(step, elapsed_s=0.0) for step in want.history
    ]


FOUND: Final = ("states", "unpaired_states", "unknown_ops")


def half_known() -> onnx.ModelProto:
    """A decoder whose first cache has a next value, with an op of no known type behind it."""
    case = next(case for case in GIVEN if case.unpaired)
    model, known = onnx.ModelProto(), case.proto.graph.output[0]
    model.CopyFrom(case.proto)
    model.graph.node.append(helper.make_node("Wobble", [known.name], ["odd"], "own", domain="mine"))
    model.graph.output.add().CopyFrom(known)
    model.graph.output[-1].name = "odd"
    model.opset_import.append(helper.make_opsetid("mine", 1))
    return model


@pytest.mark.parametrize("is_file", [True, False])
@pytest.mark.parametrize("ask", [ask_once, ask_for_all], ids=["optimize", "stream"])
def test_what_was_found_in_a_model_is_said(
    client: Any, ask: Callable[..., OptimizeResult], is_file: bool
) -> None:
    model = OnnxModel(half_known().SerializeToString())
    graph = model.graph()
    want = api.optimize(graph, "mcm-6x6", max_evaluations=12)
    assert len(want.states) == 2
    assert want.states == sized_states(graph, "bfloat16")
    assert set(want.unpaired_states) == {"past_key_cross_0", "past_value_cross_0"}
    assert [op.name for op in want.unknown_ops] == ["own"]
    got = ask(client, model if is_file else graph, "mcm-6x6", max_evaluations=12)
    for name in FOUND:
        assert getattr(got, name) == getattr(want, name), name


def test_a_stream_gets_better_and_ends_with_the_answer(client: Any) -> None:
    updates = list(client.optimize_stream(chain(24), "mcm-6x6", seed=3, max_evaluations=12, policy=None))
    *improvements, answer = updates
    assert improvements
    intervals = [update.metrics.interval_s for update in improvements]
    assert intervals == sorted(set(intervals), reverse=True)
    assert intervals[-1] == answer.metrics.interval_s
    assert plan_to_dict(improvements[-1].plan) == plan_to_dict(answer.plan)
    assert {len(update.history) for update in improvements} == {0}
    assert len(answer.history) == answer.evaluations


def test_who_closes_a_stream_ends_its_search(client: Any) -> None:
    graph, start_s = chain(40), time.monotonic()
    with closing(client.optimize_stream(graph, "mcm-6x6", **ENDLESS)) as updates:
        assert next(updates).metrics.valid
    # One search runs at a time, so this one would wait for a minute.
    assert client.evaluate(graph, "mcm-6x6", on_chips(graph, [0] * 40)).interval_s > 0
    assert time.monotonic() - start_s < 30


def test_nothing_is_asked_of_a_stream_that_nobody_reads(client: Any) -> None:
    client.optimize_stream(chain(40), "mcm-6x6", **ENDLESS).close()


def test_the_targets_that_ship(client: Any) -> None:
    assert client.list_targets() == target_names()


def test_a_call_may_be_given_a_name(client: Any) -> None:
    assert client.list_targets(request_id="ci-1234")


def test_a_target_is_a_name_a_path_or_an_object(client: Any, mine: Path) -> None:
    graph = chain(6)
    by_name = client.optimize(graph, "mcm-2x2", max_evaluations=5)
    by_object = client.optimize(graph, load_target("mcm-2x2"), max_evaluations=5)
    assert plan_to_dict(by_name.plan) == plan_to_dict(by_object.plan)
    by_path = client.optimize(graph, mine, max_evaluations=5)
    assert plan_to_dict(by_path.plan) == plan_to_dict(api.optimize(graph, mine, max_evaluations=5).plan)
    assert_same_metrics(client.evaluate(graph, str(mine), by_path.plan), by_path.metrics)


def test_a_plan_costs_the_same(client: Any) -> None:
    graph = chain(12)
    plan = api.optimize(graph, "mcm-6x6", max_evaluations=5).plan
    assert_same_metrics(client.evaluate(graph, "mcm-6x6", plan), api.evaluate(graph, "mcm-6x6", plan))


@pytest.mark.parametrize("seed", [None, 0, 7])
def test_a_simulated_plan_costs_the_same(client: Any, seed: int | None) -> None:
    graph = chain(12)
    plan = api.optimize(graph, "mcm-6x6", max_evaluations=5).plan
    got = client.evaluate(graph, "mcm-6x6", plan, fidelity="simulated", seed=seed)
    want = api.evaluate(graph, "mcm-6x6", plan, fidelity="simulated", seed=seed)
    assert got.simulation is not None
    assert_same_metrics(got, want)
    exact = api.evaluate(graph, "mcm-6x6", plan, fidelity="simulated")
    assert (got.interval_s == exact.interval_s) == (seed is None)


@pytest.mark.parametrize("fidelity", ["analytical", "simulated"])
def test_a_plan_that_breaks_a_constraint_is_an_answer(client: Any, fidelity: str) -> None:
    graph = chain(4)
    backwards = on_chips(graph, [3, 2, 1, 0])
    metrics = client.evaluate(graph, "mcm-6x6", backwards, fidelity=fidelity)
    assert not metrics.valid
    assert metrics.reason == api.evaluate(graph, "mcm-6x6", backwards, fidelity=fidelity).reason


def test_a_fidelity_or_a_seed_out_of_range(client: Any) -> None:
    graph = chain(4)
    plan = on_chips(graph, [0, 0, 0, 0])
    message = "fidelity must be one of analytical, simulated, not 'hardware'"
    with pytest.raises(InvalidInputError, match=message):
        client.evaluate(graph, "mcm-6x6", plan, fidelity="hardware")
    with pytest.raises(InvalidInputError, match=message):
        client.optimize(graph, "mcm-6x6", fidelity="hardware")
    for seed in (-1, 2**63):
        with pytest.raises(InvalidInputError, match="seed must be between"):
            client.evaluate(graph, "mcm-6x6", plan, fidelity="simulated", seed=seed)


def on_chips(graph: Graph, chips: list[int]) -> Plan:
    target = load_target("mcm-6x6")
    ops = np.arange(graph.num_ops)
    return Plan.create(
        graph,
        target.name,
        target.fingerprint,
        placement=np.array(chips),
        order=ops,
        fusion_group=ops,
        provenance="by hand",
    )


def networkx_graph(*, flops: float = 8.0, cycle: bool = False) -> nx.DiGraph:
    graph = nx.DiGraph()
    for name in ("a", "b"):
        graph.add_node(
            name, op_type="Add", op_class="vector", flops=flops, dtype="float32", outputs={f"{name}.out": 8}
        )
    graph.add_edge("a", "b", tensors=["a.out"])
    if cycle:
        graph.add_edge("b", "a", tensors=["b.out"])
    return graph


def other_plan() -> Plan:
    return on_chips(chain(5, name="other"), [0] * 5)


def short_plan() -> Plan:
    """Says it belongs to the chain of four ops, and holds three."""
    return replace(on_chips(chain(3), [0, 0, 0]), graph_fingerprint=chain(4).fingerprint)


Case = tuple[Callable[[Any, Path], object], type[GoOptError], str]
REFUSED: dict[str, Case] = {
    "unknown target": (lambda d, t: d.optimize(chain(4), "mcm-6x7"), TargetError, "mcm-6x7"),
    "missing target file": (lambda d, t: d.optimize(chain(4), t / "no.toml"), TargetError, "cannot be read"),
    "malformed target": (lambda d, t: d.optimize(chain(4), t / "bad.toml"), TargetError, "not valid TOML"),
    "empty target": (lambda d, t: d.optimize(chain(4), t / "empty.toml"), TargetError, "name"),
    "nan flops": (lambda d, t: d.optimize(networkx_graph(flops=float("nan")), "gpu-2"), GraphError, "'a'"),
    "cycle": (lambda d, t: d.optimize(networkx_graph(cycle=True), "gpu-2"), GraphError, "'a' -> 'b' -> 'a'"),
    "no budget": (lambda d, t: d.optimize(chain(4), budget_s=0), InvalidInputError, "budget"),
    "negative budget": (lambda d, t: d.optimize(chain(4), budget_s=-1.5), InvalidInputError, "budget"),
    "nan budget": (lambda d, t: d.optimize(chain(4), budget_s=float("nan")), InvalidInputError, "budget"),
    "no evaluations": (lambda d, t: d.optimize(chain(4), max_evaluations=0), InvalidInputError, "max_eval"),
    "seed": (lambda d, t: d.optimize(chain(4), seed=-1), InvalidInputError, "seed"),
    "objective": (lambda d, t: d.optimize(chain(4), objective="fast"), InvalidInputError, "objective"),
    "decide": (lambda d, t: d.optimize(chain(4), decide="some"), InvalidInputError, "decide"),
    "other graph": (lambda d, t: d.evaluate(chain(4), "mcm-6x6", other_plan()), PlanError, "another graph"),
    "other target": (
        lambda d, t: d.evaluate(chain(5, name="other"), "gpu-2", other_plan()),
        PlanError,
        "another target",
    ),
    "short plan": (
        lambda d, t: d.evaluate(chain(4), "mcm-6x6", short_plan()),
        PlanError,
        "3 entries",
    ),
    "no such chip": (
        lambda d, t: d.evaluate(chain(4), "mcm-6x6", on_chips(chain(4), [0, 0, 0, 36])),
        PlanError,
        "chip 36",
    ),
    "too big": (lambda d, t: d.optimize(chain(4, elements=2**34), "mcm-6x6"), InfeasibleError, "op 'op"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_bad_input_raises_the_same_error(client: Any, tmp_path: Path, case: str) -> None:
    call, error_class, names = REFUSED[case]
    (tmp_path / "bad.toml").write_text("name = [", "utf-8")
    (tmp_path / "empty.toml").write_text("", "utf-8")
    with pytest.raises(GoOptError) as here:
        call(api, tmp_path)
    with pytest.raises(GoOptError) as error:
        call(client, tmp_path)
    assert type(error.value) is type(here.value) is error_class
    assert str(error.value) == str(here.value)
    assert names in str(error.value)
    # A service names the path in the request.
    assert getattr(error.value, "field", "").endswith(getattr(here.value, "field", ""))


def malformed_graph(change: Callable[[graph_pb2.Graph], object]) -> graph_pb2.Graph:
    message = graph_to_proto(chain(4))
    change(message)
    return message


@pytest.mark.parametrize(
    "message",
    [
        malformed_graph(lambda m: setattr(m.ops[2], "flops", float("nan"))),
        malformed_graph(lambda m: m.tensors[-1].readers.add(op=0)),
        malformed_graph(lambda m: m.ClearField("ops")),
        malformed_graph(lambda m: setattr(m.tensors[1], "name", "t0")),
    ],
    ids=["nan", "cycle", "no ops", "twice"],
)
def test_a_service_refuses_a_graph_as_the_builder_does(address: str, message: graph_pb2.Graph) -> None:
    request = optimizer_pb2.OptimizeRequest(graph=message)
    request.target.name = "mcm-6x6"
    with pytest.raises(GraphError) as here:
        graph_from_proto(message)
    assert_refused_alike(address, request, here.value, "graph")


def test_a_service_refuses_a_target_as_the_parser_does(address: str) -> None:
    text = (TARGETS / "gpu-2.toml").read_text("utf-8").replace("overlap = ", "overlap = 7 #")
    request = optimizer_pb2.OptimizeRequest(graph=graph_to_proto(chain(4)))
    request.target.toml, request.target.toml_source = text, "mine.toml"
    with pytest.raises(TargetError) as here:
        parse_target(text, "mine.toml")
    assert_refused_alike(address, request, here.value, "target")


def assert_refused_alike(
    address: str, request: optimizer_pb2.OptimizeRequest, expected: InvalidInputError, field: str
) -> None:
    with grpc.insecure_channel(address) as channel, pytest.raises(grpc.RpcError) as error:
        optimizer_pb2_grpc.OptimizerStub(channel).Optimize(request)
    got = error_from_call(error.value, address)
    assert type(got) is type(expected)
    assert str(got) == str(expected)
    assert isinstance(got, InvalidInputError)
    assert got.field == field
