"""Searches that begin with a plan or a split that the user gives."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings

import go_opt
from go_opt.env.copies.splits import planned_graph, split_graph
from go_opt.env.target import parse_target, target_text
from go_opt.errors import InvalidInputError, PlanError
from go_opt.model.codecs.plan_json import save_plan
from go_opt.model.codecs.start_files import load_placement, load_start
from go_opt.model.plan import Candidate
from go_opt.model.start import OpStart, Start
from go_opt.result_json import plan_facts
from tests.cli.test_every_decision import layers
from tests.exports import saved as saved_model
from tests.split_graphs import by_rows
from tests.strategies import examples, random_graph, seeds, small_mcm, toy_graph
from tests.zoo import stateless


def saved(graph: go_opt.Graph, target: go_opt.Target, path: Path, **options: object) -> go_opt.OptimizeResult:
    result = go_opt.optimize(graph, target, policy=None, simulate=False, **options)  # type: ignore[arg-type]
    save_plan(result.plan, path, plan_facts(graph, result))
    return result


def test_ops_that_are_not_named_follow_their_neighbours() -> None:
    """embed, dense, relu, mix, add, logits; add reads mix and embed."""
    start = Start({"embed": OpStart(0, rank=0), "relu": OpStart(1, 2, 7, 1), "logits": OpStart(3, rank=2)})
    chip, replication, kernel, _ = start.on(toy_graph())
    assert start.num_matched(toy_graph()) == 3
    assert chip.tolist() == [0, 0, 1, 1, 1, 3]
    assert replication.tolist() == [1, 1, 2, 2, 2, 1]
    assert kernel.tolist() == [-1, -1, 7, -1, -1, -1]


def test_nothing_before_it_follows_what_reads_it() -> None:
    chip, *_ = Start({"logits": OpStart(2)}).on(toy_graph())
    assert chip.tolist() == [2] * 6


@settings(max_examples=examples(30))
@given(seed=seeds)
def test_the_answer_is_never_worse_than_the_plan(seed: int) -> None:
    rng = np.random.default_rng(seed)
    graph, target = random_graph(rng, int(rng.integers(2, 14))), small_mcm(3, sram_bytes=10**6)
    plan = go_opt.optimize(graph, target, max_evaluations=20, seed=1, policy=None, simulate=False)
    again = go_opt.optimize(
        graph, target, max_evaluations=8, seed=2, policy=None, simulate=False, start=plan.plan
    )
    assert again.metrics.interval_s <= plan.metrics.interval_s * (1 + 1e-12)
    (step,) = [step for step in again.history if step.method == "start"][:1] or [None]
    assert step is None or step.objective_s == plan.metrics.interval_s


@settings(max_examples=examples(30))
@given(seed=seeds)
def test_a_plan_of_another_graph_becomes_one_of_this(seed: int) -> None:
    """Ops are named op0, op1, …, so that smaller graphs share some of them."""
    rng = np.random.default_rng(seed)
    other, graph = (random_graph(rng, int(rng.integers(2, 14))) for _ in range(2))
    chips = int(rng.integers(1, 5))
    plan = go_opt.optimize(
        other, small_mcm(4, sram_bytes=10**7), max_evaluations=6, policy=None, simulate=False
    )
    start = Start.of_plan(plan.plan, other.op_names)
    target = small_mcm(chips, sram_bytes=10**7)
    for relays in (True, False):
        result = go_opt.optimize(
            graph, target, max_evaluations=9, policy=None, simulate=False, start=start, relays=relays
        )
        assert go_opt.verify(graph, target, result.plan) == []
        steps = [step for step in result.history if step.method == "start"]
        assert all(np.isfinite(step.objective_s) for step in steps)


def test_a_plan_file_of_another_batch_size_and_target(tmp_path: Path) -> None:
    target = go_opt.target("mcm-6x6")
    saved(go_opt.load("zoo:inception_v3"), target, tmp_path / "plan.json", max_evaluations=30)
    graph = go_opt.load("zoo:inception_v3_b32")
    start = load_start(tmp_path / "plan.json")
    assert start.num_matched(graph) == graph.num_ops
    larger = go_opt.target("gpu-8")  # one of its ops fits no chip of the other
    result = go_opt.optimize(graph, larger, max_evaluations=12, policy=None, simulate=False, start=start)
    steps = [step for step in result.history if step.method == "start"]
    assert len(steps) == 2 or result.status == "OPTIMAL"  # proven before the kernels are tried anew
    assert min(step.objective_s for step in steps) < 4 * result.metrics.interval_s


def test_a_plan_file_without_names(tmp_path: Path) -> None:
    result = saved(toy_graph(), small_mcm(), tmp_path / "plan.json", max_evaluations=3)
    save_plan(result.plan, tmp_path / "bare.json")
    with pytest.raises(PlanError, match="op_names must name its 6 ops"):
        go_opt.optimize(toy_graph(), small_mcm(), start=tmp_path / "bare.json")


def test_a_plan_of_another_graph_needs_its_file() -> None:
    plan = go_opt.optimize(toy_graph(), small_mcm(), max_evaluations=3, policy=None, simulate=False).plan
    with pytest.raises(PlanError, match="give its file"):
        go_opt.optimize("zoo:squeezenet", small_mcm(), start=plan)


def test_modules_and_devices(tmp_path: Path) -> None:
    graph = go_opt.load("zoo:squeezenet")
    names = graph.op_names
    first = names[0].replace("/", ".").strip(".")
    (tmp_path / "map.json").write_text(json.dumps({"": 1, first: "cuda:2"}))
    start = load_placement(tmp_path / "map.json", graph)
    assert start.ops[names[0]].chip == 2
    assert start.num_matched(graph) == graph.num_ops
    assert {choice.chip for name, choice in start.ops.items() if name != names[0]} <= {1, 2}


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.csv", "op,chip\nembed,0\nnobody,1\n", "1 ops are not in graph 'toy': 'nobody'"),
        ("a.csv", "embed,first\n", "line 1 must be an op and a chip, not 'embed,first'"),
        ("a.csv", "embed,0\nembed,1\n", "line 2 has op 'embed' a second time"),
        ("a.json", '{"embed": "disk"}', "device 'disk' of module 'embed' is not the number of a chip"),
        ("a.json", "[]", "must be a JSON object"),
        ("gone.csv", None, "cannot be read: No such file"),
    ],
)
def test_bad_placement_files(name: str, text: str | None, message: str, tmp_path: Path) -> None:
    if text is not None:
        (tmp_path / name).write_text(text)
    with pytest.raises(InvalidInputError, match=message):
        load_placement(tmp_path / name, toy_graph())


DECIDED = {  # zoo graph, options of the search that makes the plan
    "stages": ("mobilenet_v2", {"target": "mcm-6x6"}),
    "relays": ("resnet50", {"target": "mcm-6x6", "replication": False, "splits": False}),
    "forwards": ("gpt2_step", {"target": "mcm-6x6"}),
    "columns": ("gpt2_step", {"target": "mcm-6x6", "replication": False}),
    "parts of rows": ("mobilenet_v2", {"target": "mcm-6x6", "replication": False}),
    "schedules": ("nasnet_mobile", {"target": "gpu-2", "objective": "latency"}),
}


@pytest.mark.parametrize("name", DECIDED)
def test_the_answer_is_not_worse_than_a_start_with_any_decision(name: str, tmp_path: Path) -> None:
    """As a plan of the same request, and of one that would not look for such plans."""
    model, options = DECIDED[name]
    counted = {"policy": None, "simulate": False}
    graph = stateless(model)
    first = go_opt.optimize(graph, **options, **counted, max_evaluations=30)
    save_plan(first.plan, tmp_path / "plan.json", plan_facts(planned_graph(graph, first.plan), first))
    objective = options.get("objective", "throughput")
    for request in (options, {"target": options["target"], "objective": objective}):
        for evaluations in (1, 4):
            again = go_opt.optimize(
                graph, **request, **counted, start=tmp_path / "plan.json", max_evaluations=evaluations
            )
            is_allowed = request.get("replication", True) or (first.plan.replication == 1).all()
            assert not is_allowed or again.objective_s <= first.objective_s * (1 + 1e-9)
            assert again.lower_bound_s <= again.objective_s * (1 + 1e-9)
            assert go_opt.verify(graph, options["target"], again.plan) == []


def test_a_batch_in_parts_is_a_start(tmp_path: Path) -> None:
    """Its parts are not joined, and no search for throughput would look for them."""
    path = saved_model(layers(64), tmp_path)
    graph, target = go_opt.load(path), go_opt.target("gpu-2")
    splits = tuple(by_rows(graph, f"op{i}", 2, joined=i == 5) for i in range(6))
    parts = split_graph(graph, splits)
    chips = np.array([int("part 2" in name) for name in parts.op_names])
    each = np.arange(parts.num_ops)
    plan = replace(Candidate("test", chips, each, each).plan(parts, target), splits=splits)
    assert go_opt.verify(graph, target, plan) == []
    for objective in ("latency", "throughput"):
        metrics = go_opt.evaluate(graph, target, plan)
        planned_s = metrics.makespan_s if objective == "latency" else metrics.interval_s
        again = go_opt.optimize(
            graph, target, start=plan, objective=objective, max_evaluations=3, policy=None, simulate=False
        )
        (first, *_) = again.history
        assert (first.method, first.objective_s) == ("start", pytest.approx(planned_s))
        assert again.objective_s <= planned_s


def test_a_start_for_another_package_is_cut_anew(tmp_path: Path) -> None:
    """The order and kernels of a long search, in three evaluations on half of the chips."""
    graph = go_opt.load("zoo:nasnet_mobile")
    long = {"max_evaluations": 150, "policy": None, "simulate": False, "replication": False, "splits": False}
    result = go_opt.optimize(graph, "mcm-6x6", **long)
    save_plan(result.plan, tmp_path / "plan.json", plan_facts(graph, result))
    few = dict(long, max_evaluations=3)
    text = target_text("mcm-6x6").replace("count = 36", "count = 18")
    other = parse_target(text, "half of it")
    cold = go_opt.optimize(graph, other, **few)
    warm = go_opt.optimize(graph, other, start=tmp_path / "plan.json", **few)
    assert warm.metrics.interval_s < cold.metrics.interval_s
