"""The data of a page says what the metrics, the simulator and the search say."""

from __future__ import annotations

import math
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings

import go_opt
from go_opt.errors import InfeasibleError, PlanError
from go_opt.report.page import subject_of
from go_opt.report.page.over_time import MOST_SPANS
from tests.copies import with_legal_relays
from tests.env.simulator.test_by_hand import chain, package
from tests.go_opt.report.pages import data_of, page_rows, random_subject
from tests.replicated import replicated_plan
from tests.strategies import examples, make_plan, seeds, small_mcm, toy_graph


def test_a_chain_by_hand() -> None:
    graph, target = chain(1000, 2000), package(2)
    plan = make_plan(graph, target, [0, 1])
    data = page_rows(subject_of(graph, target, plan, "throughput"), inferences=2)
    assert data["title"] == "chain on small-mcm"
    assert data["summary"] == "2 ops on 2 of 2 chips, 2 kernels"
    assert [(fact["label"], fact["value"]) for fact in data["facts"]][:4] == [
        ("interval", "20 us"), ("latency", "45 us"), ("bottleneck", "chip 1 compute"), ("simulated", "20 us"),
    ]  # fmt: skip
    first, second = data["stages"]
    assert (first["name"], first["load"], first["binds"]) == ("chip 0", 0.5, False)
    assert (second["name"], second["load"], second["binds"]) == ("chip 1", 1.0, True)
    (send,) = first["sends"]
    assert (send["to"], send["link"], send["seconds"], send["bytes"]) == (1, "link 0->1", 10e-6, 1000)
    assert second["sends"] == []
    assert [(host["name"], host["seconds"]) for host in data["host"]] == [("host in", 0), ("host out", 5e-6)]
    ops = data["ops"]
    assert ops["name"] == ["op0", "op1"]
    assert (ops["edge_from"], ops["edge_to"]) == ([0], [1])
    assert ops["written_bytes"] == [1000, 1000]
    assert data["kernels"]["seconds"] == [10e-6, 20e-6]
    over = data["timeline"]
    assert [row["name"] for row in over["rows"]] == ["chip 0", "chip 1", "host in", "host out"]
    bars = zip(*(over["kernels"][name] for name in ("row", "begin_ns", "end_ns", "inference")), strict=True)
    assert sorted(bars) == [(0, 0, 10_000, 0), (0, 10_000, 20_000, 1), (1, 20_000, 40_000, 0),
                            (1, 40_000, 60_000, 1)]  # fmt: skip
    assert sorted(zip(over["transfers"]["row"], over["transfers"]["begin_ns"], strict=True)) == [
        (0, 10_000), (0, 20_000), (3, 40_000), (3, 60_000),
    ]  # fmt: skip
    assert [(row["most_bytes"], row["limit_bytes"]) for row in data["memory"]] == [
        (2000, 100_000), (4000, 100_000),
    ]  # fmt: skip
    (term,) = data["limits"]["binding"]
    assert (term["name"], term["seconds"], term["parts"][0]["name"]) == ("chip 1 compute", 20e-6, "op1")
    # The one neighbour of each kernel: all on one chip, and the other would be empty.
    assert {kernel: [move["to"] for move in moves] for kernel, moves in data["moves"].items()} == {
        "0": ["chip 1"], "1": ["chip 0"],
    }  # fmt: skip


@pytest.mark.parametrize("objective", ["throughput", "latency"])
@settings(max_examples=examples(25))
@given(seed=seeds)
def test_a_page_says_what_the_metrics_say(objective: str, seed: int) -> None:
    subject = random_subject(np.random.default_rng(seed), objective)
    if subject is None:
        return
    data, metrics = page_rows(subject, inferences=5), subject.metrics
    whole_s = metrics.makespan_s if objective == "latency" else metrics.interval_s
    kernels, stages = data["kernels"], data["stages"]
    for number, stage in enumerate(stages):
        chips = slice(stage["first"], stage["first"] + stage["chips"])
        mine = np.array(kernels["stage"]) == number
        seconds = np.array(kernels["seconds"])[mine].sum() / stage["chips"]
        assert metrics.compute_s[chips] == pytest.approx(seconds, rel=1e-4)
        per_stage = stage["chips"] if objective == "latency" else 1
        assert stage["busy_s"] == pytest.approx(seconds * per_stage, rel=1e-4)
        assert stage["load"] == pytest.approx(stage["busy_s"] / whole_s if whole_s else 0.0)
        assert stage["weight_bytes"] == metrics.weight_bytes[stage["first"]]
    assert sum(stage["ops"] for stage in stages) == subject.graph.num_ops
    assert [host["seconds"] for host in data["host"]] == metrics.link_s[-2:].tolist()
    sends = [send for stage in stages for send in stage["sends"]] + data["passing"]
    busy = set(zip(subject.target.link_names, metrics.link_s.tolist(), strict=True))
    assert all((send["link"], send["seconds"]) in busy and send["seconds"] > 0 for send in sends)
    marked = [row for row in (*stages, *sends, *data["host"]) if row["binds"]]
    if objective == "throughput" and subject.target.overlap and not metrics.waits:
        is_within = metrics.bottleneck not in {send["link"] for send in sends} | {"host in", "host out"}
        if is_within and metrics.bottleneck.startswith("link"):
            assert marked == [], "a link within a stage has no row"
        else:
            assert [row.get("busy_s", row.get("seconds")) for row in marked] == [metrics.interval_s]


@settings(max_examples=examples(25))
@given(seed=seeds)
def test_the_time_line_and_memory_are_those_of_the_simulator(seed: int) -> None:
    subject = random_subject(np.random.default_rng(seed))
    if subject is None:
        return
    data = page_rows(subject, inferences=5)
    over = data["timeline"]
    timeline = go_opt.timeline(
        subject.graph, subject.target, subject.plan, inferences=5, fidelity=over["fidelity"]
    )
    bars = zip(over["kernels"]["row"], over["kernels"]["kernel"], over["kernels"]["inference"], strict=True)
    named = [(over["rows"][row]["name"], kernel, inference) for row, kernel, inference in bars]
    expected = [
        (f"chip {span.resource}", span.details["kernel"], span.inference) for span in timeline.kernels
    ]
    assert sorted(named) == sorted(expected)
    for stage, memory in zip(data["stages"], data["memory"], strict=True):
        _, held_bytes = timeline.memory[stage["first"]]
        assert memory["most_bytes"] == max(memory["bytes"]) == held_bytes.max()
        assert memory["limit_bytes"] == subject.target.chip_sram_bytes[stage["first"]]


def test_ops_are_told_with_relays() -> None:
    graph, target = toy_graph(), small_mcm(3)
    plan = make_plan(graph, target, [0, 1, 1, 1, 2, 2])  # what embed makes passes chip 1
    plan = with_legal_relays(graph, target, plan)
    data = page_rows(subject_of(graph, target, plan, "throughput"), inferences=2)
    ops = data["ops"]
    origins = {name: ops["origins"][origin] for name, origin in zip(ops["name"], ops["origin"], strict=True)}
    assert origins.pop("x/relay 1") == "relays of the plan"
    assert origins == dict.fromkeys(graph.op_names, "by hand")
    assert data["summary"] == "6 ops on 3 of 3 chips, 6 kernels, 1 relay"
    assert [stage["kernels"] for stage in data["stages"]] == [1, 4, 2]


def test_replicas_have_a_row_each() -> None:
    graph, target = toy_graph(), small_mcm(6)
    plan = replicated_plan(graph, target, np.array([0, 1, 1, 1, 1, 2]), np.array([1, 3, 2]))
    data = data_of(go_opt.plan_page(graph, target, plan))
    assert [stage["name"] for stage in data["stages"]] == ["chip 0", "chips 1-3", "chips 4-5"]
    rows = data["timeline"]["rows"]
    assert [row["stage"] for row in rows] == [0, 1, 1, 1, 2, 2, None, None]
    ran = zip(data["timeline"]["kernels"]["row"], data["timeline"]["kernels"]["inference"], strict=True)
    assert {(row, inference % 3) for row, inference in ran if 1 <= row <= 3} == {(1, 0), (2, 1), (3, 2)}


def test_many_kernels_are_drawn_as_few_bars(monkeypatch: pytest.MonkeyPatch) -> None:
    graph, target = toy_graph(), small_mcm(2)
    subject = subject_of(graph, target, make_plan(graph, target, [0, 0, 1, 1, 1, 1]), "throughput")
    whole = page_rows(subject, inferences=50)
    monkeypatch.setattr("go_opt.report.page.over_time.MOST_SPANS", 150)
    merged = page_rows(subject, inferences=50)
    assert not whole["timeline"]["is_merged"]
    assert "too many kernels" in merged["notes"]["timeline"][0]
    bars = merged["timeline"]["kernels"]
    assert sum(bars["count"]) == len(whole["timeline"]["kernels"]["row"]) == 300
    assert len(bars["row"]) <= 150 + 2 * 50
    for row in range(2):
        spans = [
            (begin, end)
            for at, begin, end in zip(bars["row"], bars["begin_ns"], bars["end_ns"], strict=True)
            if at == row
        ]
        assert all(end <= begin + 1 for (_, end), (begin, _) in pairwise(spans))
    assert MOST_SPANS > 10_000


def test_the_facts_are_those_of_the_search(tmp_path: Path) -> None:
    graph, target = toy_graph(), small_mcm(3)
    result = go_opt.optimize(graph, target, max_evaluations=30, policy=None)
    from go_opt.model.codecs.plan_json import save_plan
    from go_opt.result_json import plan_facts

    save_plan(result.plan, tmp_path / "plan.json", plan_facts(graph, result))
    data = data_of(go_opt.plan_page(graph, target, tmp_path / "plan.json"))
    facts = {fact["label"]: fact for fact in data["facts"]}
    assert data["interval_s"] == result.metrics.interval_s
    assert facts["status"]["value"] == result.status
    assert f"gap {max(result.gap, 0):.2%}" in facts["status"]["note"]
    # Of a plan without a file the bound is that of an explanation.
    data = data_of(go_opt.plan_page(graph, target, result.plan))
    bound_s = go_opt.explain(graph, target, result.plan).bound.seconds  # type: ignore[union-attr]
    gap = result.metrics.interval_s / bound_s - 1.0
    assert math.isfinite(gap)
    assert f"gap {max(gap, 0):.2%}" in {f["label"]: f for f in data["facts"]}["status"]["note"]


def test_plans_that_have_no_page() -> None:
    graph, target = toy_graph(), small_mcm(2)
    with pytest.raises(InfeasibleError, match=r"nothing to draw: .*chip 0"):
        go_opt.plan_page(graph, target, make_plan(graph, target, [1] * 6))
    with pytest.raises(PlanError, match="another target"):
        go_opt.plan_page(graph, small_mcm(3), make_plan(graph, target, [0] * 6))
