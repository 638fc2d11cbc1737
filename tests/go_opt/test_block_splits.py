"""Plans with blocks in parts: what the search makes of them, what is claimed, and every way that they go."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings

import go_opt
from go_opt import from_onnx
from go_opt.env import cost_tables, loop_roles
from go_opt.env.copies.splits import split_graph
from go_opt.errors import InfeasibleError, PlanError
from go_opt.report.parts.plan_lines import split_lines
from go_opt.result import OptimizeResult, Request
from go_opt.search.splits.block_ways import block_ways, blocks_of, blocks_of_way, splits_of_blocks
from go_opt.search.splits.ways import divisible_ops, open_blocks
from go_opt.solver import throughput_bound
from go_opt.solver.scheduling.bounds import latency_bound
from tests.exports import check_stages, saved
from tests.go_opt.plan_files import read_back
from tests.solver.brute_force import all_placements, evaluate_placements
from tests.split_graphs import BETWEEN, feed_forward
from tests.strategies import examples, random_target, seeds
from tests.transformers import encoder
from tests.zoo import stateless

COUNTED = {"max_evaluations": 60, "policy": None, "simulate": False}
LIMIT_S = 450e-6  # whole ops of gpt2_step take one token 504.7 us at least


@pytest.fixture(scope="module")
def answer() -> OptimizeResult:
    return go_opt.optimize(stateless("gpt2_step"), max_latency_s=LIMIT_S, max_evaluations=60, policy=None)


def test_a_token_in_less_time_than_any_plan_of_whole_ops_needs(answer: OptimizeResult) -> None:
    with pytest.raises(InfeasibleError, match=r"it is at least 504\.7 us, the critical path"):
        go_opt.optimize(stateless("gpt2_step"), max_latency_s=LIMIT_S, splits=False, **COUNTED)
    assert answer.metrics.latency_s <= LIMIT_S
    blocks = blocks_of_way(stateless("gpt2_step"), answer.plan.splits)
    assert len(blocks) == 12
    assert answer.metrics.interval_s == pytest.approx(297.06e-6, rel=1e-4)  # that of the inputs


def test_every_door_takes_the_plan(answer: OptimizeResult, tmp_path: Path) -> None:
    graph = stateless("gpt2_step")
    plan = read_back(graph, answer.plan, tmp_path)
    metrics = [go_opt.evaluate(graph, None, plan, fidelity=one) for one in ("analytical", "simulated")]
    assert metrics[0].interval_s == answer.metrics.interval_s
    assert metrics[1].interval_s == pytest.approx(answer.simulated_interval_s)
    lines = list(split_lines(go_opt.explain(graph, None, plan).splits))
    assert lines[0].startswith("108 ops along ")
    assert lines[0].endswith(" into 2 parts, which share the work of an inference")
    ending = "into 2 parts, which share the work of an inference, and whose results are added"
    assert lines[1] == f"12 ops along 'k' {ending}"
    assert lines[2].startswith("'node_linear' is split into 8 along 'j', each with a piece of its weights")
    again = go_opt.optimize(graph, start=plan, max_latency_s=LIMIT_S, **COUNTED)
    assert again.plan.splits == plan.splits
    assert go_opt.timeline(graph, None, plan, inferences=2).metrics.valid


def test_a_plan_that_names_other_parts_is_refused(answer: OptimizeResult) -> None:
    last = answer.plan.splits[0]
    others = tuple(replace(split, parts=3) if split == last else split for split in answer.plan.splits)
    with pytest.raises(PlanError, match="of another graph"):
        go_opt.verify(stateless("gpt2_step"), None, replace(answer.plan, splits=others))


def test_blocks_by_hand() -> None:
    graph = feed_forward(4, 3, 6, 5, gates=2)
    ((*between, (last, _)),) = blocks_of(graph)
    assert {graph.op_names[op] for op, _ in between} == {*BETWEEN, "gate"}
    assert graph.op_names[last] == "last"
    shown = replace(graph, tensor_is_output=np.array([name == "gelu_t" for name in graph.tensor_names]))
    assert blocks_of(shown) == blocks_of(graph), "the host joins what it reads"
    encoded = from_onnx(encoder(2, 12, 16, 4))
    ends = [encoded.op_names[block[-1][0]] for block in blocks_of(encoded)]
    assert ends == ["l0o_product", "l0d_product", "l1o_product", "l1d_product"]
    rules = zip(encoded.op_names, encoded.op_rules, strict=True)
    without = replace(
        encoded, op_rules=tuple(None if name.endswith("_scores") else rule for name, rule in rules)
    )
    assert [encoded.op_names[block[-1][0]] for block in blocks_of(without)] == ["l0d_product", "l1d_product"]


def test_blocks_are_open_only_where_they_may_gain() -> None:
    graph, target = from_onnx(encoder(2, 6, 896, 4, weights=False)), go_opt.target("mcm-6x6")
    assert open_blocks(graph, target, Request()) == []
    assert not divisible_ops(graph, target, Request()).any()
    assert len(open_blocks(graph, target, Request(max_latency_s=1.0))) == 4
    assert open_blocks(graph, target, Request(max_latency_s=1.0, splits=False)) == []
    ways = block_ways(graph, target, blocks_of(graph))
    number = [({split.parts for split in way}, len(blocks_of_way(graph, way))) for way in ways]
    # All, and half of them; of 4 heads there are no 3 or 4 parts of two.
    assert number == [({2}, 4), ({2}, 2), ({3}, 2), ({3}, 1), ({4}, 2), ({4}, 1)]
    # Of a smaller block each part would save less than it takes to send what it reads and adds.
    small = from_onnx(encoder(2, 12, 16, 4))
    assert block_ways(small, target, blocks_of(small)) == []


def test_an_encoder_in_parts_is_exported(tmp_path: Path) -> None:
    path = saved(encoder(1, 4, 1024, 4), tmp_path)
    free = go_opt.optimize(path, **COUNTED)
    limit_s = free.metrics.latency_s / 1.2
    answer = go_opt.optimize(path, max_latency_s=limit_s, **COUNTED)
    assert answer.metrics.latency_s <= limit_s
    assert len(blocks_of_way(go_opt.load(path), answer.plan.splits)) == 2
    assert go_opt.verify(path, None, answer.plan) == []
    check_stages(path, answer.plan, tmp_path / "out")


@given(seed=seeds)
@settings(max_examples=examples(15), deadline=None)
def test_no_plan_in_parts_beats_the_bounds(seed: int) -> None:
    """All placements of a block in parts."""
    rng = np.random.default_rng(seed)
    target = random_target(rng, topology="ring", num_chips=2, sram_bytes=60_000, overlap=True)
    rows, inner, columns = (int(n) for n in rng.integers(2, 9, 3))
    graph = feed_forward(rows, inner, int(rng.integers(9, 40)), columns)
    divisible = np.array([name in (*BETWEEN, "last") for name in graph.op_names])
    tables, roles = cost_tables(graph, target), loop_roles(graph)
    interval = throughput_bound(
        graph, tables, roles, fusion_is_open=False, replication_is_open=False, divisible=divisible
    )
    latency = latency_bound(graph, tables, roles, is_alone=False, fusion_is_open=False, divisible=divisible)
    block = tuple(splits_of_blocks(graph, blocks_of(graph), 2))
    for splits in (block, block[-1:]):
        split = split_graph(graph, splits)
        ops = np.arange(split.num_ops, dtype=np.int32)
        found = evaluate_placements(
            cost_tables(split, target), all_placements(split, cost_tables(split, target)), ops, ops
        )
        assert interval.seconds <= found.interval_s.min() * (1 + 1e-9)
        assert latency.seconds <= found.latency_s.min() * (1 + 1e-9)
