"""Relays leave the program whole: files, wire, results, tables, traces."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import cache
from io import StringIO
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

import go_opt
from go_opt.env import cost_tables, greedy_fusion, loop_roles
from go_opt.env.copies.relays import expand_plan
from go_opt.env.model.metrics import Fidelity
from go_opt.model.codecs.plan_json import load_plan, save_plan
from go_opt.model.codecs.wire import plan_from_proto, plan_to_proto
from go_opt.model.plan import Plan, Relay
from go_opt.proto import plan_pb2
from go_opt.report.tables import print_metrics
from go_opt.report.trace import trace_events, trace_text
from go_opt.result_json import decisions_to_dict
from go_opt.solver import slice_order
from tests.copies import with_legal_relays
from tests.go_opt.test_trace import check_format
from tests.strategies import JIT_IS_ON, make_plan, small_mcm, toy_graph

GRAPH = go_opt.load("zoo:deberta_v3_base" if JIT_IS_ON else "zoo:din")
TARGET = go_opt.target("mcm-6x6")


@cache
def real_plan() -> Plan:
    """A sliced plan of a transformer with the relays it needs."""
    tables, order = cost_tables(GRAPH, TARGET), np.arange(GRAPH.num_ops, dtype=np.int32)
    group = greedy_fusion(loop_roles(GRAPH), order)
    slicing = slice_order(tables, order, group, forwarding="free")
    assert slicing is not None
    return with_legal_relays(GRAPH, TARGET, make_plan(GRAPH, TARGET, slicing.placement, fusion_group=group))


def test_there_are_some_and_they_are_valid() -> None:
    plan = real_plan()
    assert plan.relays
    assert go_opt.verify(GRAPH, TARGET, plan) == []
    assert go_opt.evaluate(GRAPH, TARGET, plan).valid


def test_files_and_wire_are_exact(tmp_path: Path) -> None:
    plan = real_plan()
    save_plan(plan, tmp_path / "plan.json")
    sent = plan_pb2.Plan.FromString(plan_to_proto(plan).SerializeToString())
    interval_s = go_opt.evaluate(GRAPH, TARGET, plan).interval_s
    for again in (load_plan(tmp_path / "plan.json"), plan_from_proto(sent)):
        assert again.relays == plan.relays
        assert go_opt.verify(GRAPH, TARGET, again) == []
        assert go_opt.evaluate(GRAPH, TARGET, again).interval_s == interval_s


def test_results_list_them() -> None:
    plan = real_plan()
    decided = json.loads(json.dumps(decisions_to_dict(plan)))
    assert [Relay(row["tensor"], tuple(row["chips"])) for row in decided["relays"]] == list(plan.relays)


def printed(plan: Plan) -> list[str]:
    graph, target = toy_graph(), small_mcm(3)
    console = Console(file=StringIO(), width=240)
    print_metrics(console, graph, target, plan, go_opt.evaluate(graph, target, plan), "throughput")
    assert isinstance(console.file, StringIO)
    answer, table = console.file.getvalue().split("\n\n")
    return [*table.splitlines(), *answer.splitlines()]


def test_tables_count_them_where_there_are_any() -> None:
    plan = make_plan(toy_graph(), small_mcm(3), (0, 0, 1, 1, 2, 2))
    assert printed(plan)[0].split()[:3] == ["chip", "ops", "compute"]
    lines = printed(replace(plan, relays=(Relay("x", (1,)),)))
    assert lines[0].split()[:4] == ["chip", "ops", "relays", "compute"]
    assert [line.split()[:3] for line in lines[1:4]] == [["0", "2", "-"], ["1", "2", "1"], ["2", "2", "-"]]
    assert lines[-1].endswith("valid, 1 relay")
    assert printed(replace(plan, relays=(Relay("x", (1,)), Relay("h", (1,)))))[-1].endswith(", 2 relays")


def test_a_chip_with_nothing_but_a_relay_has_a_row() -> None:
    plan = make_plan(toy_graph(), small_mcm(3), (0, 0, 0, 0, 0, 2))
    lines = printed(replace(plan, relays=(Relay("y", (1,)),)))
    assert [line.split()[:3] for line in lines[1:4]] == [["0", "5", "-"], ["1", "0", "1"], ["2", "1", "-"]]


@pytest.mark.parametrize("fidelity", ["simulated", "analytical"])
def test_traces_show_relays(fidelity: Fidelity) -> None:
    graph, target = toy_graph(), small_mcm(3)
    plan = make_plan(graph, target, (0, 0, 1, 1, 2, 2))
    plan, shown = replace(plan, relays=(Relay("x", (1,)),)), ("RelayCopy", 1, "x/relay 1")
    timeline = go_opt.timeline(graph, target, plan, fidelity=fidelity, inferences=3)
    ran = [(span.name, span.resource, span.details["ops"], span.inference) for span in timeline.kernels]
    assert {row[:3] for row in ran if "/" in str(row[2])} == {shown}
    assert sum(row[:3] == shown for row in ran) == 3
    check_format(trace_events(graph, target, timeline))
    metrics = go_opt.evaluate(graph, target, plan, fidelity=fidelity)
    held = metrics.peak_bytes + metrics.weight_bytes
    assert [int(held_bytes.max()) for _, held_bytes in timeline.memory] == held.tolist()


@pytest.mark.skipif(not JIT_IS_ON, reason="takes minutes interpreted")
def test_a_real_trace() -> None:
    plan = real_plan()
    timeline = go_opt.timeline(GRAPH, TARGET, plan, inferences=2)
    assert not timeline.is_deadlocked
    trace = json.loads(trace_text(GRAPH, TARGET, timeline))
    check_format(trace)
    names = {e["args"]["ops"] for e in trace["traceEvents"] if e.get("cat") == "kernel"}
    expanded, _ = expand_plan(GRAPH, TARGET, plan)
    extra = set(expanded.op_names) - set(GRAPH.op_names)
    assert extra <= names
    assert len(extra) == sum(len(relay.chips) for relay in plan.relays)
