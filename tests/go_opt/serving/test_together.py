"""Several models as one graph: what is shared, what adds up, and the comparison with turns."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

import go_opt
from go_opt.errors import ModelError
from go_opt.frontends.union.graphs import parse_rates, shares_of, union, union_name
from go_opt.model.bindings import NO_BINDINGS
from go_opt.model.builder import GraphBuilder
from go_opt.model.graph import STATE, WEIGHT, Graph
from go_opt.result import Request
from go_opt.serving.together.sharing import (
    Sharing,
    Turns,
    costed_alone,
    excess_bytes,
    round_bytes,
    share_package,
)
from tests.benchmarks.turns import Turn, turns_p99_s
from tests.decoders import recurrent_stack


def chain(name: str, ops: int, flops: float, weight: int = 1000) -> Graph:
    builder = GraphBuilder(name)
    builder.add_tensor("x", 10, "bf16", "input")
    for i in range(ops):
        builder.add_tensor(f"w{i}", weight, "bf16", "weight")
        reads = [("x" if i == 0 else f"t{i - 1}", None), (f"w{i}", None)]
        writes = [(f"t{i}", 10, "bf16")]
        builder.add_op(f"op{i}", "MatMul", "matrix", flops=flops, dtype="bf16", reads=reads, writes=writes)
    builder.mark_output(f"t{ops - 1}")
    return builder.build()


def test_copies_share_their_weights() -> None:
    a, b = chain("a", 3, 1e6), chain("b", 2, 5e6)
    both = union([a, b], [2, 1], "both", NO_BINDINGS)
    assert both.op_names == tuple(
        f"{p}op{i}" for p, n in (("1/", 3), ("1.2/", 3), ("2/", 2)) for i in range(n)
    )
    assert both.op_flops.tolist() == [1e6] * 6 + [5e6] * 2
    assert (both.tensor_kind == WEIGHT).sum() == 5  # 3 of a, once, and 2 of b
    assert both.num_tensors == 2 * a.num_tensors + b.num_tensors - 3
    shared = both.tensor_index["1/w1"]
    assert both.readers_of(shared) == [1, 4]
    for op in range(3):  # the second copy reads what the first does, of its own
        first = {both.tensor_names[k] for k, _ in both.reads_of(op)}
        second = {both.tensor_names[k].replace("1.2/", "1/") for k, _ in both.reads_of(op + 3)}
        assert first == second
    assert both.tensor_is_output.sum() == 3


def test_rules_and_names_of_the_zoo_move_along() -> None:
    name = union_name(["zoo:shufflenet", "zoo:squeezenet1_1"], "2:1").replace("squeezenet1_1", "shufflenet")
    alone, both = go_opt.load("zoo:shufflenet"), go_opt.load(name)
    assert both.num_ops == 3 * alone.num_ops
    assert both.op_flops.sum() == pytest.approx(3 * alone.op_flops.sum())
    for copy in range(3):
        for op in (0, 7, alone.num_ops - 1):
            own, moved = alone.rule_of(op), both.rule_of(op + copy * alone.num_ops)
            assert (own is None) == (moved is None)
            if own is not None and moved is not None:
                assert own.rule == moved.rule
                named = [both.tensor_names[k].partition("/")[2] for k in moved.results]
                assert named == [alone.tensor_names[k] for k in own.results]


def test_a_plan_of_the_union_costs_what_its_parts_do() -> None:
    on = go_opt.target("mcm-2x2")
    a, b = go_opt.load("zoo:shufflenet"), go_opt.load("zoo:mobilenet_v2")
    both = go_opt.load("union:1*zoo:shufflenet+1*zoo:mobilenet_v2")
    found = [go_opt.optimize(graph, on, max_evaluations=10, policy=None) for graph in (a, b)]
    at_once = go_opt.optimize(both, on, max_evaluations=30, policy=None)
    assert go_opt.verify(both, on, at_once.plan) == []
    work = sum(result.lower_bound_s for result in found)
    assert at_once.metrics.interval_s <= sum(result.metrics.interval_s for result in found) * 1.05
    assert at_once.lower_bound_s <= work * (1 + 1e-9)


def test_rates() -> None:
    assert parse_rates("4:2", ["a", "b"]) == (2, 1)
    assert parse_rates(None, ["a", "b", "c"]) == (1, 1, 1)
    assert shares_of("union:2*a.onnx+1*zoo:b") == [(2, "a.onnx"), (1, "zoo:b")]
    for text in ("1", "1:x", "1:0", "1:2:3", "1:99"):
        with pytest.raises(ModelError, match="--rates"):
            parse_rates(text, ["a", "b"])
    for name in ("union:", "union:a", "union:0*a", "union:99*a"):
        with pytest.raises(ModelError):
            shares_of(name)


def test_models_alone_cost_what_their_parts_of_the_union_do() -> None:
    on = go_opt.target("mcm-2x2")
    a, b = chain("a", 3, 1e6), chain("b", 2, 5e6)
    both = union([a, b], [2, 1], "both", NO_BINDINGS)
    costs = {"1/op0": {"chip": 3.0}, "1.2/op0": {"chip": 4.0}, "2/op1": {"chip": 7.0}, "1/op2": {"chip": 1.0}}
    costed = go_opt.with_measured_costs(both, costs, on)
    assert go_opt.with_measured_costs(a, {"op0": {"chip": 3.0}, "op2": {"chip": 1.0}}, on).fingerprint == (
        costed_alone(a, costed, 1).fingerprint
    )
    assert costed_alone(b, costed, 2).measured_s["chip"].tolist() == pytest.approx([np.nan, 7.0], nan_ok=True)
    assert costed_alone(a, both, 1).fingerprint == a.fingerprint
    request = Request(max_evaluations=20, policy=None, simulate=False, replication=False, splits=False)
    at_once = go_opt.optimize(costed, on, request=request)
    shares, graphs = shares_of("union:2*a+1*b"), {"a": a, "b": b}
    sharing = share_package(shares, at_once, costed, graphs.__getitem__, on, request)
    assert [one.metrics.interval_s for one in sharing.turns[0].plans] == pytest.approx([3.0, 7.0], rel=1e-3)
    assert sharing.unit_s == pytest.approx(7.0, rel=1e-3)  # on a chip each


def result_of(
    interval_s: float, weights: list[int], peaks: list[int], latency_s: float = 0.0
) -> go_opt.OptimizeResult:
    metrics = SimpleNamespace(
        interval_s=interval_s,
        latency_s=latency_s,
        weight_bytes=np.array(weights),
        peak_bytes=np.array(peaks),
    )
    return cast("Any", SimpleNamespace(metrics=metrics, longer_interval_s=interval_s))


def test_turns_by_hand() -> None:
    on = go_opt.target("mcm-2x2")
    memory = int(on.chip_sram_bytes.sum())
    plans = (
        result_of(2e-3, [memory - 10, 5, 0, 0], [10, 0, 0, 0]),
        result_of(1e-3, [40, 5, 0, 0], [20, 0, 0, 0]),
    )
    # Both weights and the larger activations are 60 above the memory; each of two turns sends them.
    assert round_bytes(plans, on) == 2 * 60
    # Of three models one can stay away for two turns: 8 more bytes, sent 3 times in 2 rounds.
    assert round_bytes((*plans, result_of(1e-3, [0, 8, 0, 0], [0] * 4)), on) == 3 * 68 // 2
    # As they are built, a chip lacks room for 40 - 10 + 20 bytes, though there is much on the others.
    full = result_of(2e-3, [int(on.chip_sram_bytes[0]) - 10, 5, 0, 0], [10, 0, 0, 0])
    assert round_bytes((full, plans[1]), on) == 0
    assert excess_bytes((full, plans[1]), on).tolist() == [50, 0, 0, 0]
    shares = ((2, "a"), (1, "b"))
    sharing = Sharing(shares, result_of(6e-3, [0] * 4, [0] * 4), (Turns(shares, plans, 120, 4e-3),))
    assert sharing.turns_s(np.inf) == pytest.approx(5e-3)
    assert sharing.turns_s(1) == pytest.approx(9e-3)
    assert sharing.break_even == pytest.approx(4.0)
    assert replace(sharing, at_once=result_of(4e-3, [0] * 4, [0] * 4)).break_even == np.inf
    # Plans that send nothing, but take 7 ms.
    slower = Turns(shares, (result_of(3e-3, [1], [1]), result_of(1e-3, [1], [1])), 0, 0.0)
    both = replace(sharing, turns=(*sharing.turns, slower))
    assert both.turns_s(1) == pytest.approx(7e-3)
    assert both.turns_s(100) == pytest.approx(5.04e-3)


def turns_in_time(one: Turns, units: int) -> float:
    """The longest from arrival to answer, inference by inference, as many arriving as turns take."""
    round_s, longest_s = units * one.unit_s(units), 0.0
    for (copies, _), plan in zip(one.shares, one.plans, strict=True):
        number, interval_s = copies * units, plan.metrics.interval_s
        for i in range(3 * number):
            begun_s = (i // number) * round_s + (i % number) * interval_s  # the first turn begins at 0
            arrived_s = number * interval_s - round_s + i * round_s / number  # when the last turn ends
            assert begun_s >= arrived_s - 1e-12
            longest_s = max(longest_s, begun_s - arrived_s + plan.metrics.latency_s)
    return longest_s


def test_how_long_turns_let_wait() -> None:
    shares = ((2, "a"), (1, "b"))
    plans = (result_of(2e-3, [0], [0], 7e-3), result_of(1e-3, [0], [0], 3e-3))
    one = Turns(shares, plans, 120, 4e-3)
    # A round of one unit is 9 ms: one of b, whose turn takes 1, waits for 8 and 3 more; one of a, 5 and 7.
    assert one.answered_s(1) == pytest.approx(12e-3)
    # Of two, 14 ms: b waits for 12.
    assert one.answered_s(2) == pytest.approx(15e-3)
    for units in (1, 2, 5):
        assert turns_in_time(one, units) == pytest.approx(one.answered_s(units))
    assert [one.units_within(s) for s in (11e-3, 12.1e-3, 15.1e-3, 19e-3)] == [0, 1, 2, 3]
    sharing = Sharing(shares, result_of(6e-3, [0], [0], 10e-3), (one,))
    assert sharing.answered_s == pytest.approx(16e-3)
    assert sharing.turns_as_quick()[:2] == (2, pytest.approx(7e-3))
    # Emptied pipelines: 5 and 2 ms more in each round.
    assert sharing.drained().turns_s(1) == pytest.approx(16e-3)
    assert sharing.drained().turns_as_quick()[:2] == (0, np.inf)
    # Built turns are the answer where they are faster and as quick, never above all at once.
    assert sharing.best[:2] == (0, pytest.approx(6e-3))
    assert replace(sharing, built=(replace(one, sent_s=1e-3),)).best[:2] == (3, pytest.approx(16e-3 / 3))
    assert replace(sharing, built=(one.drained(),)).best[:2] == (0, pytest.approx(6e-3))
    late = replace(sharing, at_once=result_of(2e-3, [0], [0], 1e-3))
    assert late.turns_as_quick()[:2] == (0, np.inf)


def test_models_with_states_keep_those_of_each_copy() -> None:
    on = go_opt.target("mcm-2x2")
    step, other = go_opt.from_onnx(recurrent_stack()), chain("other", 3, 1e6)
    both = union([step, other], [2, 1], "both", NO_BINDINGS)
    read = [both.tensor_names[state.read] for state in both.states]
    alone = [step.tensor_names[state.read] for state in step.states]
    assert read == [f"{copy}{name}" for copy in ("1/", "1.2/") for name in alone]
    for state in both.states:
        assert both.tensor_kind[state.read] == STATE
        assert both.tensor_names[state.next].split("/")[0] == both.tensor_names[state.read].split("/")[0]
    found = go_opt.optimize(both, on, max_evaluations=30, policy=None)
    assert go_opt.verify(both, on, found.plan) == []
    simulated = go_opt.evaluate(both, on, found.plan, fidelity="simulated")
    assert simulated.interval_s == pytest.approx(found.metrics.interval_s, rel=0.05)
    assert found.lower_bound_s <= found.metrics.interval_s * (1 + 1e-9)
    # A token of both copies and an inference of the other: the loads are those of all three.
    parts = [go_opt.optimize(graph, on, max_evaluations=30, policy=None) for graph in (step, other)]
    assert found.lower_bound_s >= max(part.lower_bound_s for part in parts) * (1 - 1e-9)


def test_states_of_the_model_are_refused() -> None:
    step = go_opt.from_onnx(recurrent_stack())
    trained = replace(step, states=tuple(state._replace(scope="model") for state in step.states))
    with pytest.raises(ModelError, match="not of sequences"):
        union([trained, chain("other", 3, 1e6)], [1, 1], "both", NO_BINDINGS)


def test_arrivals_in_turns_by_hand() -> None:
    a, b = Turn(1.0, 4.0, 2), Turn(2.0, 5.0, 1)
    # a at 0 and 1; after 3 more seconds b at 5, begun there as a third a waits from 1.5; a again at 10.
    arrived = [np.array([0.0, 0.5, 1.5]), np.array([0.0])]
    assert turns_p99_s([arrived[0][:2], arrived[1]], [a, b], 3.0) == pytest.approx(10.0)
    assert turns_p99_s(arrived, [a, b], 3.0) == pytest.approx(10.0 - 1.5 + 4.0)
    # Alone a keeps the package, however long its turn is.
    assert turns_p99_s([arrived[0], arrived[1] + 100.0], [a, b], 3.0) == pytest.approx(3.0 + 5.0)
