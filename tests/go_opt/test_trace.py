"""Trace files: valid events of Chrome's format, which say what the timeline says."""

from __future__ import annotations

import json
from collections import defaultdict
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings

import go_opt
from go_opt.env.critical_path import critical_path
from go_opt.env.model.metrics import Fidelity
from go_opt.errors import InfeasibleError, InvalidInputError, PlanError
from go_opt.report.trace import trace_events, trace_text
from tests.env.simulator.test_by_hand import chain, package
from tests.replicated import replicated_plan
from tests.strategies import (
    examples,
    make_plan,
    random_graph,
    random_plan,
    random_simulated_target,
    seeds,
    small_mcm,
    toy_graph,
)

Events = dict[str, list[dict[str, Any]]]
NS = 1e-3  # in microseconds, the unit of a trace


def by_phase(trace: dict[str, Any]) -> Events:
    events: Events = defaultdict(list)
    for event in trace["traceEvents"]:
        events[event["ph"]].append(event)
    return events


def check_format(trace: dict[str, Any]) -> Events:
    """What Perfetto and chrome://tracing ask of the events."""
    events = by_phase(trace)
    assert set(events) <= set("MXsfC")
    for event in trace["traceEvents"]:
        assert isinstance(event["name"], str)
        assert isinstance(event["pid"], int)
        if event["ph"] != "M":
            assert event["ts"] >= 0
    named = {(e["pid"], e["tid"]) for e in events["M"] if e["name"] == "thread_name"}
    tracks = defaultdict(list)
    for event in events["X"]:
        assert event["dur"] >= 0
        assert event["args"]["inference"] >= 0
        assert (event["pid"], event["tid"]) in named
        tracks[event["pid"], event["tid"]].append((event["ts"], event["ts"] + event["dur"]))
    for slices in tracks.values():
        assert all(before[1] <= after[0] + NS / 2 for before, after in pairwise(sorted(slices)))
    check_arrows(events, tracks)
    for event in events["C"]:
        assert event["args"]["bytes"] >= 0
    return events


def check_arrows(events: Events, tracks: dict[tuple[int, int], list[tuple[float, float]]]) -> None:
    starts = {event["id"]: event for event in events["s"]}
    assert len(starts) == len(events["s"]) == len(events["f"])
    for end in events["f"]:
        start = starts[end["id"]]
        assert (end["name"], end["cat"], end["bp"]) == (start["name"], start["cat"], "e")
        assert start["ts"] <= end["ts"]
        for event in (start, end):
            slices = tracks[event["pid"], event["tid"]]
            assert any(begin - NS / 2 <= event["ts"] <= until + NS / 2 for begin, until in slices)


def test_the_chain_by_hand() -> None:
    graph, target = chain(1000, 2000), package(2)
    timeline = go_opt.timeline(graph, target, make_plan(graph, target, [0, 1]), inferences=2)
    trace = trace_events(graph, target, timeline)
    events = check_format(trace)
    assert trace["otherData"] == {
        "model": "chain", "target": "small-mcm", "fidelity": "simulated", "interval_s": pytest.approx(20e-6),
    }  # fmt: skip
    tracks = {e["tid"]: e["args"]["name"] for e in events["M"] if e["name"] == "thread_name"}
    assert [*tracks.values()] == ["chip 0", "chip 1", "link 0->1", "link 1->0", "host in", "host out"]
    slices = [
        (tracks[e["tid"]], e["name"], e["cat"], e["args"], e["ts"], e["dur"])
        for e in events["X"]
        if e["args"]["inference"] == 1
    ]
    assert slices == [
        ("chip 0", "Exp", "kernel", {"inference": 1, "kernel": 0, "ops": "op0"}, 10, 10),
        ("chip 1", "Exp", "kernel", {"inference": 1, "kernel": 1, "ops": "op1"}, 40, 20),
        ("link 0->1", "t0", "transfer", {"inference": 1, "bytes": 1000}, 20, 10),
        ("host out", "t1", "transfer", {"inference": 1, "bytes": 1000}, 60, 5),
    ]
    arrows = [
        (tracks[s["tid"]], tracks[f["tid"]], s["name"]) for s, f in zip(events["s"], events["f"], strict=True)
    ]
    assert sorted(set(arrows)) == [
        ("chip 0", "link 0->1", "t0"), ("chip 1", "host out", "t1"), ("link 0->1", "chip 1", "t0"),
    ]  # fmt: skip
    assert [(e["name"], e["ts"], e["args"]["bytes"]) for e in events["C"]] == [
        ("chip 0", 0, 2000), ("chip 1", 0, 4000),
    ]  # fmt: skip


@pytest.mark.parametrize("fidelity", ["simulated", "analytical"])
@settings(max_examples=examples(40))
@given(seed=seeds)
def test_any_trace_is_valid(fidelity: Fidelity, seed: int) -> None:
    rng = np.random.default_rng(seed)
    target = random_simulated_target(rng)
    graph = random_graph(rng, int(rng.integers(2, 20)))
    plan = random_plan(rng, graph, target, monotone=True, fusion="legal")
    try:
        timeline = go_opt.timeline(graph, target, plan, fidelity=fidelity, inferences=5)
    except InfeasibleError:
        assert not go_opt.evaluate(graph, target, plan, fidelity=fidelity).valid
        return
    trace = json.loads(trace_text(graph, target, timeline), parse_constant=pytest.fail)
    events = check_format(trace)
    assert trace["otherData"]["fidelity"] == fidelity
    metrics = go_opt.evaluate(graph, target, plan, fidelity=fidelity)
    assert trace["otherData"]["interval_s"] == (metrics.interval_s if metrics.valid else None)
    most = defaultdict(int)
    for event in events["C"]:
        most[int(event["name"].split()[1])] = max(most[int(event["name"].split()[1])], event["args"]["bytes"])
    held = metrics.peak_bytes + metrics.weight_bytes
    if timeline.is_deadlocked:  # the fullest moment may never come
        assert all(most[chip] <= held[chip] for chip in most)
    else:
        assert dict(most) == {chip: held[chip] for chip in np.flatnonzero(held)}


def test_inferences_that_overlap_get_tracks_of_their_own() -> None:
    graph, target = toy_graph(), small_mcm(6)
    plan = make_plan(graph, target, (0, 0, 1, 1, 1, 1))
    timeline = go_opt.timeline(graph, target, plan, fidelity="analytical", inferences=6)
    events = check_format(trace_events(graph, target, timeline))
    links = [e["args"]["name"] for e in events["M"] if e["name"] == "thread_name"]
    assert links.count("link 0->1") == 2, "x is still under way when h leaves"


def test_what_has_no_timeline() -> None:
    graph, target = toy_graph(), small_mcm(2)
    plan = make_plan(graph, target, [0] * 6)
    with pytest.raises(InvalidInputError, match="inferences must be between 1 and 10000, not 0"):
        go_opt.timeline(graph, target, plan, inferences=0)
    with pytest.raises(InvalidInputError, match="fidelity must be one of analytical, simulated, not 'exact'"):
        go_opt.timeline(graph, target, plan, fidelity="exact")  # type: ignore[arg-type]
    with pytest.raises(PlanError, match="another target"):
        go_opt.timeline(graph, small_mcm(3), plan)
    with pytest.raises(PlanError, match="chips are 0 to 1"):
        go_opt.timeline(graph, target, make_plan(graph, target, [2] * 6))
    skips = make_plan(graph, target, [1] * 6)
    tight = small_mcm(2, sram_bytes=1000)
    for on, broken, reason in (
        (target, skips, "chip 0"),
        (tight, make_plan(graph, tight, [0] * 6), "out of memory"),
    ):
        for fidelity in ("simulated", "analytical"):
            with pytest.raises(InfeasibleError, match=f"nothing to trace: .*{reason}"):
                go_opt.timeline(graph, on, broken, fidelity=fidelity)


@pytest.mark.parametrize("fidelity", ["analytical", "simulated"])
def test_replicas_take_inferences_in_turn_on_tracks_of_their_own(fidelity: Fidelity) -> None:
    graph, target = toy_graph(), small_mcm(6)
    plan = replicated_plan(graph, target, np.array([0, 1, 1, 1, 1, 2]), np.array([1, 3, 2]))
    timeline = go_opt.timeline(graph, target, plan, fidelity=fidelity, inferences=7)
    events = by_phase(trace_events(graph, target, timeline))
    named = [event for event in events["M"] if event["name"] == "thread_name"]
    track = {(event["pid"], event["tid"]): event["args"]["name"] for event in named}
    chips: dict[int, set[str]] = defaultdict(set)
    for event in events["X"]:
        if event["cat"] == "kernel":
            chips[event["args"]["inference"]].add(track[event["pid"], event["tid"]])
    assert chips == {s: {"chip 0", f"chip {1 + s % 3}", f"chip {4 + s % 2}"} for s in range(7)}
    sent = {track[event["pid"], event["tid"]] for event in events["X"] if event["cat"] == "transfer"}
    assert sent == {f"link {chip}->{chip + 1}" for chip in range(5)} | {"host in", "host out"}


def test_one_inference_alone() -> None:
    graph, target = toy_graph(), small_mcm(3)
    plan = make_plan(graph, target, [0, 0, 0, 0, 0, 1])
    timeline = go_opt.timeline(graph, target, plan, inferences=1)
    events = by_phase(trace_events(graph, target, timeline, critical_path(graph, target, plan)))
    names = {(e["pid"], e["tid"]): e["args"]["name"] for e in events["M"] if e["name"] == "thread_name"}
    # 2 us of host, five kernels of 29.4 us in all, 11 us for y to chip 1; 14 us there, 10 us to the host.
    idle = [
        (names[e["pid"], e["tid"]], e["name"], e["ts"], e["dur"]) for e in events["X"] if e["cat"] == "idle"
    ]
    assert idle == [
        ("chip 0 alone", "host: embed", 0, 2),
        ("chip 1 alone", "kernel: add", 0, 31.4),
        ("chip 1 alone", "transfer: y", 31.4, 11),
        ("chip 0 alone", "nothing", 31.4, 35),
        ("chip 1 alone", "nothing", 56.4, 10),
        ("chip 2 alone", "nothing", 0, 66.4),
    ]
