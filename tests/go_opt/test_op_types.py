"""Op types that kinds of chips run, and their rates: every part of the program keeps them."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings

import go_opt
from go_opt.env import Target, cost_tables, evaluate_batch, parse_target
from go_opt.env.target.toml import target_to_toml
from go_opt.errors import InfeasibleError, TargetError
from go_opt.model.builder import GraphBuilder
from go_opt.model.graph import Graph
from go_opt.solver.problem.problem import placement_problem
from go_opt.solver.verify.rule_check import NONE, broken_rules
from tests.strategies import chip_kind, examples, random_graph, seeds, small_mcm, target_toml

FEW: dict[str, Any] = {"policy": None, "max_evaluations": 8}


def chain(*types: str) -> Graph:
    """Ops ``op0``, ``op1``, … of these types, each of 8,000 flops on int8, in a chain."""
    b = GraphBuilder("chain")
    b.add_tensor("t0", 100, "int8", "input")
    for i, op_type in enumerate(types):
        b.add_op(
            f"op{i}", op_type, "matrix", flops=8000, dtype="int8",
            reads=[(f"t{i}", None)], writes=[(f"t{i + 1}", 100, "int8")],
        )  # fmt: skip
    b.mark_output(f"t{len(types)}")
    return b.build()


def gpu_and_dla(**dla: Any) -> Target:
    kinds = [chip_kind("gpu", matrix_flops_per_s={"int8": 1e9}), chip_kind("dla", 2, **dla)]
    return small_mcm(kinds=kinds, topology="all_to_all")


@pytest.mark.parametrize("objective", ["throughput", "latency"])
@pytest.mark.parametrize("dla", [{"not_op_types": ["LSTM"]}, {"op_types": ["Conv"]}])
def test_an_lstm_is_not_put_on_a_dla_that_has_none(dla: dict[str, Any], objective: Any) -> None:
    graph, anywhere = chain("Conv", "LSTM", "Conv"), gpu_and_dla()
    free = go_opt.optimize(graph, anywhere, objective="latency", **FEW)
    assert free.plan.placement[1] > 0  # a DLA is twice as fast
    target = gpu_and_dla(**dla)
    result = go_opt.optimize(graph, target, objective=objective, **FEW)
    assert result.plan.placement[1] == 0
    assert go_opt.verify(graph, target, result.plan) == []
    # The bound knows it too: the LSTM alone takes 8 us on the GPU.
    assert result.lower_bound_s >= 8e-6 * (1 - 1e-9)
    given = replace(free.plan, target_fingerprint=target.fingerprint)
    (violation,) = (one for one in go_opt.verify(graph, target, given) if one.constraint == "kinds")
    assert violation.message.endswith("of kind 'dla', which cannot run it: 'dla' runs no LSTM.")
    moves = go_opt.explain(graph, target, result.plan, "op1").moves
    assert all("'dla' runs no LSTM" in move.forbidden for move in moves if move.chip > 0)


def test_the_reason_names_the_kinds() -> None:
    graph = go_opt.with_measured_costs(
        chain("Conv", "LSTM"), {"op1": {"gpu": None}}, gpu_and_dla(not_op_types="LSTM")
    )
    with pytest.raises(InfeasibleError) as caught:
        go_opt.optimize(graph, gpu_and_dla(not_op_types="LSTM"), **FEW)
    assert str(caught.value) == (
        "op 'op1' is excluded from every chip kind of small-mcm: 'gpu' by the costs of the op, "
        "'dla' runs no LSTM."
    )
    pinned = go_opt.Pin("op1", 2)
    with pytest.raises(InfeasibleError, match="no chip of small-mcm: 'dla' runs no LSTM"):
        go_opt.optimize(chain("Conv", "LSTM"), gpu_and_dla(not_op_types="LSTM"), constraints=[pinned], **FEW)


def test_rates_of_a_type_replace_those_of_its_class() -> None:
    graph = chain("Conv", "LSTM")
    target = gpu_and_dla(flops_per_s_by_op_type={"LSTM": {"int8": 4e9}})
    assert cost_tables(graph, target).op_s * 1e6 == pytest.approx(np.array([[8, 8], [4, 2]]))
    wider = gpu_and_dla(flops_per_s_by_op_type={"LSTM": {"bfloat16": 4e9}})
    assert cost_tables(graph, wider).op_s[1, 1] == 2e-6  # as for classes: no slower than the native type


def test_relay_copies_run_on_every_kind() -> None:
    skip = GraphBuilder("skip")
    skip.add_op("a", "Conv", "matrix", flops=9000, dtype="int8", reads=[], writes=[("x", 9, "int8")])
    skip.add_op(
        "b", "Conv", "matrix", flops=9000, dtype="int8", reads=[("x", None)], writes=[("y", 9, "int8")]
    )
    reads = [("x", None), ("y", None)]
    skip.add_op("c", "Conv", "matrix", flops=9000, dtype="int8", reads=reads, writes=[("z", 9, "int8")])
    skip.mark_output("z")
    graph, target = skip.build(), small_mcm(3, kinds=[chip_kind("a", 3, op_types="Conv")])
    result = go_opt.optimize(graph, target, replication=False, **FEW)
    assert result.plan.relays
    assert go_opt.verify(graph, target, result.plan) == []


@settings(max_examples=examples(12))
@given(seed=seeds)
def test_against_every_placement(seed: int) -> None:
    rng = np.random.default_rng(seed)
    num_ops, num_chips = int(rng.integers(2, 5)), int(rng.integers(2, 4))
    graph = random_graph(rng, num_ops)
    kinds = [chip_kind(name, **drawn_types(rng)) for name in "abc"[:num_chips]]
    target = small_mcm(kinds=kinds, topology=("ring", "all_to_all")[int(rng.integers(2))])
    rows = itertools.product(range(num_chips), repeat=num_ops)
    legal = [row for row in rows if all(runs(kinds[d], graph.op_types[i]) for i, d in enumerate(row))]
    every = np.array(legal, np.int32).reshape(-1, num_ops)
    every = every[broken_rules(placement_problem(graph, target), every) == NONE]
    try:
        result = go_opt.optimize(graph, target, **FEW)
    except InfeasibleError:
        assert len(every) == 0  # relays and replicated stages run on the same chips
        return
    assert go_opt.verify(graph, target, result.plan) == []
    for op, chip in enumerate(result.plan.placement.tolist()):
        assert runs(kinds[chip], graph.op_types[op])
    if len(every):
        alone = np.tile(np.arange(num_ops, dtype=np.int32), (len(every), 1))
        terms = evaluate_batch(cost_tables(graph, target), every, alone, alone)
        assert result.lower_bound_s <= terms.interval_s.min() * (1 + 1e-9)


def drawn_types(rng: np.random.Generator) -> dict[str, Any]:
    types = ("MatMul", "Conv", "Relu", "Add", "Mul", "Softmax", "ReduceSum", "CumSum", "Transpose", "Gather")
    some = [name for name in types if rng.random() < 0.25]
    if not some:
        return {}
    is_list_of_all = rng.random() < 0.5
    return (
        {"op_types": [name for name in types if name not in some]}
        if is_list_of_all
        else {"not_op_types": some}
    )


def runs(kind: dict[str, Any], op_type: str) -> bool:
    """As the table of the kind says, not as the program reads it."""
    return op_type in kind.get("op_types", [op_type]) and op_type not in kind.get("not_op_types", [])


def test_the_file_keeps_them() -> None:
    rates = {"com.vendor.Op": {"int8": 2e9}, "Conv": {"default": 1e9}}
    plain = gpu_and_dla(not_op_types=["LSTM", "com.vendor.Op2"])
    gpu, dla = plain.kinds
    target = replace(plain, kinds=(gpu, replace(dla, flops_per_s_by_op_type=rates)))
    again = parse_target(target_to_toml(target), "again")
    assert again.kinds == target.kinds
    assert again.kinds[1].flops_per_s_by_op_type == rates
    assert target.fingerprint != gpu_and_dla().fingerprint


def test_a_kind_has_one_list() -> None:
    with pytest.raises(TargetError, match="kind 'dla' has op_types and not_op_types"):
        parse_target(target_toml(kinds=[chip_kind("dla", op_types="Conv", not_op_types="LSTM")]), "t")


def test_a_shipped_dla_runs_no_recurrent_op() -> None:
    can_run = cost_tables(chain("Conv", "LSTM"), go_opt.target("jetson-orin")).can_run
    assert can_run.tolist() == [[True, True], [True, False]]
