"""Plans with split ops: what the search makes of them, what is claimed, and every way that they go."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings

import go_opt
from go_opt.env import Target, cost_tables, loop_roles
from go_opt.env.copies.divisions import weight_factor
from go_opt.env.copies.splits import split_graph
from go_opt.errors import InfeasibleError
from go_opt.model.graph import Graph
from go_opt.result import OptimizeResult, Request
from go_opt.search.bounds import lower_bound
from go_opt.search.splits.ways import divisible_ops, ways_to_split
from go_opt.solver import throughput_bound
from tests.go_opt.plan_files import read_back
from tests.shaped import ShapedBuilder
from tests.solver.brute_force import all_placements, evaluate_placements
from tests.split_graphs import by_columns
from tests.strategies import chip_kind, examples, random_target, seeds, small_mcm, toy_graph
from tests.zoo import stateless

# Replicas forward weights, which is nearly as good on these graphs.
WHOLE_STAGES = {"max_evaluations": 40, "policy": None, "replication": False}
COUNTED = {**WHOLE_STAGES, "simulate": False}


@pytest.fixture(scope="module")
def answer() -> OptimizeResult:
    return go_opt.optimize(stateless("gpt2_step"), **WHOLE_STAGES)


def test_a_product_that_fits_no_chip_no_longer_streams(answer: OptimizeResult) -> None:
    assert "node_linear" in {split.op for split in answer.plan.splits}
    assert answer.status == "OPTIMAL"
    whole = go_opt.optimize(stateless("gpt2_step"), splits=False, **COUNTED)
    assert whole.plan.splits == ()
    # What no plan of whole ops can reach, by the proof of the search without splits.
    assert answer.lower_bound_s <= answer.metrics.interval_s < whole.lower_bound_s


def test_the_same_seed_and_count_give_the_same_answer(answer: OptimizeResult) -> None:
    again = go_opt.optimize(stateless("gpt2_step"), **WHOLE_STAGES)
    assert again.plan.splits == answer.plan.splits
    assert np.array_equal(again.plan.placement, answer.plan.placement)
    assert [step.best_s for step in again.history] == [step.best_s for step in answer.history]


def test_history_is_that_of_one_search(answer: OptimizeResult) -> None:
    steps = answer.history
    assert [step.evaluations for step in steps] == list(range(1, len(steps) + 1))
    assert answer.evaluations == len(steps) <= 40
    best = [step.best_s for step in steps]
    assert best == sorted(best, reverse=True)
    elapsed = [step.elapsed_s for step in steps]
    assert elapsed == sorted(elapsed)
    assert best[-1] == answer.metrics.interval_s


def test_every_door_takes_the_plan(answer: OptimizeResult, tmp_path: Path) -> None:
    graph = stateless("gpt2_step")
    plan = read_back(graph, answer.plan, tmp_path)
    for fidelity in ("analytical", "simulated"):
        metrics = go_opt.evaluate(graph, None, plan, fidelity=fidelity)
        assert metrics.interval_s == pytest.approx(answer.metrics.interval_s)
    told = go_opt.explain(graph, None, plan)
    assert {use.op for use in told.splits} == {split.op for split in answer.plan.splits}
    assert ("node_linear", True) in [(use.op, use.weight_bytes > use.sram_bytes) for use in told.splits]
    assert told.bound.seconds == answer.lower_bound_s
    assert go_opt.timeline(graph, None, plan, inferences=2).metrics.valid


def test_a_start_may_have_splits(answer: OptimizeResult) -> None:
    again = go_opt.optimize(stateless("gpt2_step"), start=answer.plan, **COUNTED)
    assert again.method == "start"
    assert again.plan.splits == answer.plan.splits
    assert again.metrics.interval_s == answer.metrics.interval_s


@pytest.mark.parametrize("evaluations", [8, 100])
def test_no_chip_joins_an_output_that_only_the_host_reads(evaluations: int) -> None:
    """The logits of gpt2 fit no chip beside their parts, so the first steps of the first way are enough."""
    found = go_opt.optimize("zoo:gpt2", **COUNTED | {"max_evaluations": evaluations})
    assert {split.joined for split in found.plan.splits} == {False}
    assert found.status == "OPTIMAL"


def test_nothing_changes_where_no_weight_is_heavy() -> None:
    graph, target = go_opt.load("zoo:resnet50"), go_opt.target("mcm-6x6")
    assert not divisible_ops(graph, target, Request()).any()
    with_splits, without = (
        go_opt.optimize(graph, max_evaluations=10, policy=None, splits=splits) for splits in (True, False)
    )
    assert with_splits.lower_bound_s == without.lower_bound_s
    assert np.array_equal(with_splits.plan.placement, without.plan.placement)


def test_what_leaves_splits_out() -> None:
    graph, target = stateless("gpt2_step"), go_opt.target("mcm-6x6")
    assert divisible_ops(graph, target, Request()).sum() == 1
    pins = (go_opt.Pin(graph.op_names[0], 0),)
    for request in (Request(splits=False), Request(decide="placement"), Request(constraints=pins)):
        assert not divisible_ops(graph, target, request).any()


def test_ways_to_split_by_hand() -> None:
    """The toy's table has 10000 bytes: of chips with 16000 it takes 62 %."""
    graph, target = toy_graph(), small_mcm(4, sram_bytes=16000)
    divisible = divisible_ops(graph, target, Request())
    assert [graph.op_names[op] for op in np.flatnonzero(divisible)] == ["logits"]
    ways = ways_to_split(graph, target, Request())
    # 2 x 5000 bytes is at most 8000 each, 4 x 2500 at most 4000; 8 parts would take more chips than 4.
    assert [[split.parts for split in way] for way in ways] == [[2], [4]]
    assert not any(split.joined for way in ways for split in way)
    # The memory of a chip that runs none of these ops makes no difference.
    kinds = (chip_kind(count=4, sram_bytes=16000), chip_kind("store", sram_bytes=10**9, op_types=["Sort"]))
    assert ways_to_split(graph, small_mcm(kinds=kinds), Request())[:2] == ways


def test_no_plan_either_way_says_why() -> None:
    with pytest.raises(InfeasibleError):
        go_opt.optimize(toy_graph(), small_mcm(2, sram_bytes=1500), **COUNTED)


def least_interval_s(graph: Graph, target: Target) -> float:
    """Over all placements of single kernels in the default order."""
    tables = cost_tables(graph, target)
    ops = np.arange(graph.num_ops, dtype=np.int32)
    found = evaluate_placements(tables, all_placements(graph, tables), ops, ops)
    return float(found.interval_s.min())


@given(seed=seeds)
@settings(max_examples=examples(25), deadline=None)
def test_no_split_plan_beats_the_bound(seed: int) -> None:
    """All placements of the toy with its largest product in parts, on chips that may not hold its weight."""
    rng = np.random.default_rng(seed)
    sram_bytes = int(rng.choice([4_000, 9_000, 14_000, 60_000]))
    target = random_target(rng, topology="ring", num_chips=2, sram_bytes=sram_bytes, overlap=True)
    graph = toy_graph()
    divisible = np.array([weight_factor(graph, op) is not None for op in range(graph.num_ops)])
    bound = throughput_bound(
        graph, cost_tables(graph, target), loop_roles(graph),
        fusion_is_open=False, replication_is_open=False, divisible=divisible,
    )  # fmt: skip
    for op in ("dense", "mix", "logits"):
        for joined in (True, False)[: 1 + (op == "logits")]:
            split = split_graph(graph, (by_columns(graph, op, 2, joined=joined),))
            assert bound.seconds <= least_interval_s(split, target) * (1 + 1e-9)
    assert bound.seconds <= least_interval_s(graph, target) * (1 + 1e-9)


def test_the_bound_is_reached() -> None:
    """It would be below every plan if it said nothing."""
    graph, target = stateless("gpt2_step"), go_opt.target("mcm-6x6")
    request = Request()
    bound = lower_bound(graph, target, request, divisible_ops(graph, target, request))
    assert bound.seconds == pytest.approx(297.06e-6, rel=1e-4)


def test_a_weight_that_is_read_both_ways_is_divided_one_way() -> None:
    """By columns of 7 and of 5, of which slices differ: an op that divides it otherwise stays whole."""
    b = ShapedBuilder("tied")
    b.add_tensor("x", (1, 5), "float32", "input")
    b.add_tensor("w", (5, 7), "float32", "weight")
    b.add_view("turned", "w", (7, 5))
    for op, source, weight, made, elements in (("there", "x", "w", "h", 7), ("back", "h", "turned", "y", 5)):
        b.add_op(
            op, "MatMul", "matrix", flops=70.0, dtype="float32",
            reads=[(source, None), (weight, None)], writes=[(made, (1, elements), "float32")],
        )  # fmt: skip
    b.mark_output("y")
    graph, target = b.build(), small_mcm(4, sram_bytes=200)
    divisible = divisible_ops(graph, target, Request())
    assert divisible.all()
    assert {split.op for way in ways_to_split(graph, target, Request()) for split in way} == {"there"}
    both = split_graph(graph, tuple(by_columns(graph, op, 2) for op in ("there", "back")))
    slices = [name for name in both.tensor_names if name.startswith("w/")]
    assert len(slices) == 4, "each op has slices of its own"
    go_opt.optimize(graph, target, **COUNTED)
