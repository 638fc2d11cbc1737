"""Searches that split ops by rows: for a low latency of a sample, and for ops that fit no chip."""

from __future__ import annotations

import itertools
import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import go_opt
from go_opt import from_onnx
from go_opt.env import cost_tables, loop_roles
from go_opt.env.copies.splits import split_graph
from go_opt.env.target import parse_target, target_text
from go_opt.errors import InfeasibleError
from go_opt.result import Request
from go_opt.search.splits.rows import CLEARLY, joined_stages, row_ways, rows_by_op, rows_of_way
from go_opt.search.splits.ways import divisible_ops
from go_opt.solver import throughput_bound
from go_opt.solver.problem.replica_allocation import allocated_chips
from go_opt.solver.scheduling.bounds import latency_bound
from tests.exports import LIGHT, check_stages, saved
from tests.go_opt.run.test_random_stages import with_random_weights
from tests.solver.brute_force import all_placements, evaluate_placements
from tests.split_graphs import SAME, by_rows, images
from tests.strategies import examples, random_target, seeds
from tests.transformers import encoder

COUNTED = {"max_evaluations": 40, "policy": None, "simulate": False}
LIMIT_S = 90e-6  # whole ops of squeezenet take a sample 99.73 us at least


def test_a_latency_that_no_plan_of_whole_ops_has(tmp_path: Path) -> None:
    path = with_random_weights("light_squeezenet", tmp_path)
    with pytest.raises(InfeasibleError, match=r"it is at least 99\.73 us, the critical path"):
        go_opt.optimize(path, max_latency_s=LIMIT_S, splits=False, **COUNTED)
    answer = go_opt.optimize(path, max_latency_s=LIMIT_S, **COUNTED)
    assert answer.metrics.latency_s <= LIMIT_S
    assert len(rows_of_way(go_opt.load(path), answer.plan.splits)) == len(answer.plan.splits) > 0
    assert go_opt.verify(path, None, answer.plan) == []
    assert answer.lower_bound_s <= answer.metrics.interval_s < answer.reference_s
    check_stages(path, answer.plan, tmp_path / "out")


def test_a_latency_that_no_plan_has_is_refused_with_proof() -> None:
    with pytest.raises(InfeasibleError, match="the critical path") as caught:
        go_opt.optimize(LIGHT / "light_squeezenet.onnx", max_latency_s=5e-6, **COUNTED)
    assert caught.value.is_proven


def test_rows_are_open_only_where_they_may_gain() -> None:
    graph, target = from_onnx(LIGHT / "light_squeezenet.onnx"), go_opt.target("mcm-6x6")
    assert not divisible_ops(graph, target, Request()).any()
    assert divisible_ops(graph, target, Request(max_latency_s=1.0)).any()
    assert not divisible_ops(graph, target, Request(max_latency_s=1.0, splits=False)).any()
    # With a limit that whole ops keep, the answer is theirs.
    free, limited = (go_opt.optimize(graph, max_latency_s=limit, **COUNTED) for limit in (None, 1e-3))
    assert limited.plan.splits == ()
    assert limited.metrics.interval_s == free.metrics.interval_s


def test_without_replicas_parts_are_what_shares_the_work() -> None:
    """Whole ops of inception wait for a link, which is proven."""
    given = {**COUNTED, "max_evaluations": 80, "replication": False}
    whole, split = (
        go_opt.optimize(LIGHT / "light_inception_v1.onnx", splits=splits, **given) for splits in (False, True)
    )
    ways = rows_of_way(go_opt.load(LIGHT / "light_inception_v1.onnx"), split.plan.splits)
    assert len(ways) == len(split.plan.splits) > 0
    assert split.metrics.interval_s < whole.lower_bound_s
    assert (split.plan.replication == 1).all()


@pytest.mark.parametrize("has_store", [False, True])
def test_ops_that_fit_no_chip(has_store: bool) -> None:
    """The first convolution of squeezenet writes 1.6 MB, and what reads it as much again."""
    graph = from_onnx(LIGHT / "light_squeezenet.onnx")
    text = target_text("mcm-6x6").replace("32_000_000", "2_600_000")
    if has_store:  # a chip of enough memory that does not run them
        kind = text[text.index("[[kinds]]") :].replace("2_600_000", "64_000_000")
        text += kind.replace("count = 36", "count = 1").replace(
            'name = "chip"', 'name = "store"\nop_types = "Gather"'
        )
    target = parse_target(text, "small memories")
    with pytest.raises(InfeasibleError, match="fits no chip"):
        go_opt.optimize(graph, target, splits=False, **COUNTED)
    answer = go_opt.optimize(graph, target, **COUNTED)
    assert go_opt.verify(graph, target, answer.plan) == []
    assert answer.status == "FEASIBLE"
    assert go_opt.explain(graph, target, answer.plan).bound.seconds <= answer.metrics.interval_s


@given(seed=seeds)
@settings(max_examples=examples(15), deadline=None)
def test_no_plan_in_parts_beats_the_bounds(seed: int) -> None:
    """All placements of a chain of convolutions in parts."""
    rng = np.random.default_rng(seed)
    target = random_target(rng, topology="ring", num_chips=2, sram_bytes=60_000, overlap=True)
    graph = images(int(rng.integers(8, 20)), [("Conv", SAME), ("Relu", None)])
    divisible = np.array([op in rows_by_op(graph) for op in range(graph.num_ops)])
    tables, roles = cost_tables(graph, target), loop_roles(graph)
    interval = throughput_bound(
        graph, tables, roles, fusion_is_open=False, replication_is_open=False, divisible=divisible
    )
    latency = latency_bound(graph, tables, roles, is_alone=False, fusion_is_open=False, divisible=divisible)
    for joined in (True, False):
        split = split_graph(graph, (by_rows(graph, "op0", 2, joined=joined), by_rows(graph, "op1", 2)))
        ops = np.arange(split.num_ops, dtype=np.int32)
        found = evaluate_placements(
            cost_tables(split, target), all_placements(split, cost_tables(split, target)), ops, ops
        )
        assert interval.seconds <= found.interval_s.min() * (1 + 1e-9)
        assert latency.seconds <= found.latency_s.min() * (1 + 1e-9)


def test_runs_end_where_one_tensor_is_alive() -> None:
    """A residual block is in parts as a whole; the second block takes its rows anew."""
    graph, target = from_onnx(LIGHT / "light_resnet50.onnx"), go_opt.target("mcm-6x6")
    for way in row_ways(graph, target, rows_by_op(graph)):
        split = split_graph(graph, way)
        joined = [one.op for one in way if one.joined]
        assert joined
        assert {graph.op_types[graph.op_index[op]] for op in joined} <= {"Relu", "MaxPool", "AveragePool"}
        assert split.op_flops.sum() == pytest.approx(graph.op_flops.sum())


@pytest.mark.parametrize("num_chips", [1, 2, 3, 4, 7, 8])
def test_each_part_has_a_chip(num_chips: int) -> None:
    graph = from_onnx(LIGHT / "light_resnet50.onnx")
    target = parse_target(target_text("mcm-6x6").replace("count = 36", f"count = {num_chips}"), "chips")
    ways = row_ways(graph, target, rows_by_op(graph))
    assert max((one.parts for way in ways for one in way), default=1) <= num_chips


def test_an_encoder_with_a_latency_that_whole_ops_cannot_have(tmp_path: Path) -> None:
    """Runs end where attention reads keys whole, and go on through the next block."""
    path = saved(encoder(3, 700, 256, 4), tmp_path)
    limit_s = 500e-6
    with pytest.raises(InfeasibleError, match=r"it is at least 526\.2 us, the critical path"):
        go_opt.optimize(path, max_latency_s=limit_s, splits=False, **COUNTED)
    answer = go_opt.optimize(path, max_latency_s=limit_s, **COUNTED)
    assert answer.metrics.latency_s <= limit_s
    assert go_opt.verify(path, None, answer.plan) == []
    is_joined = {one.op: one.joined for one in answer.plan.splits}
    assert {"l1_softmax", "l1_context"} <= is_joined.keys()
    assert is_joined["l1k_bias"]
    assert not is_joined["l1_scores"]
    check_stages(path, answer.plan, tmp_path / "out")


def test_small_stages_share_a_chip_where_others_then_get_more() -> None:
    """Four chips: stages of 8, 1, 1 and 2 s take 8 s on one chip each, 4 s where the small ones are one."""
    assert joined_stages([8.0, 1.0, 1.0, 2.0], 4).tolist() == [0, 1, 1, 1]
    assert joined_stages([4.0, 1.0, 1.0, 1.0, 3.0], 4).tolist() == [0, 1, 1, 1, 2]  # too few chips
    assert joined_stages([2.0, 2.0, 2.0], 4).tolist() == [0, 1, 2]


@given(work_s=st.lists(st.integers(1, 20).map(float), min_size=1, max_size=7), num_chips=st.integers(1, 6))
def test_no_way_to_join_stages_takes_less_time(work_s: list[float], num_chips: int) -> None:
    """Beside every way to join what follows each other and one chip then does; 5 % is no clear gain."""

    def works(ends: tuple[int, ...], interval_s: float) -> bool:
        stages = np.split(np.array(work_s), np.flatnonzero(ends) + 1)
        fits = all(len(stage) == 1 or stage.sum() <= interval_s for stage in stages)
        return fits and sum(math.ceil(stage.sum() / interval_s) for stage in stages) <= num_chips

    sums = {sum(work_s[a:b]) for a, b in itertools.combinations(range(len(work_s) + 1), 2)}
    ways = [*itertools.product((0, 1), repeat=len(work_s) - 1)]
    times = sorted(seconds / chips for seconds in sums for chips in range(1, num_chips + 1))
    least_s = next(s for s in times if any(works(ends, s) for ends in ways))

    stage = joined_stages(work_s, num_chips)
    assert stage[0] == 0
    assert set(np.diff(stage).tolist()) <= {0, 1}
    work = np.bincount(stage, weights=work_s)
    assert (work / allocated_chips(work, num_chips)).max() <= least_s / CLEARLY * (1 + 1e-5)
