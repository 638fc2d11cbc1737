"""Plans of earlier searches: which one a search begins with, what is kept, and what stays alone."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import pytest

import go_opt
from go_opt.agents.generator import generate_graph
from go_opt.api.plan_store import METHOD, PlanStore
from go_opt.env import load_target
from go_opt.env.target import Target, first_chips
from go_opt.errors import InvalidInputError
from go_opt.model.codecs.plan_json import plan_to_dict
from go_opt.model.codecs.wire import graph_to_proto
from go_opt.model.graph import Graph
from go_opt.proto import optimizer_pb2
from go_opt.result import OptimizeResult
from go_opt.service.calls.calls import Call
from go_opt.service.workers.optimizer import LocalOptimizer, OptimizerService, SearchControl
from tests.zoo import stateless

GRAPH = generate_graph(3, family="towers", num_ops=30)
TARGET = load_target("mcm-2x2")


def searched(graph: Graph = GRAPH, target: Target = TARGET, **options: Any) -> OptimizeResult:
    options = {"max_evaluations": 30, "policy": None, "simulate": False} | options
    return go_opt.optimize(graph, target, **options)


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def began_with(result: OptimizeResult) -> str:
    return result.history[0].method


def test_a_second_search_begins_where_the_first_ended(tmp_path: Path) -> None:
    first = searched(remember=tmp_path)
    again = searched(remember=tmp_path, max_evaluations=2)
    assert METHOD not in [step.method for step in first.history]
    assert began_with(again) == METHOD
    assert again.metrics.interval_s <= first.metrics.interval_s
    assert len(names(tmp_path)) == 1


def test_a_start_that_is_given_comes_before_what_is_remembered(tmp_path: Path) -> None:
    first = searched(remember=tmp_path)
    assert began_with(searched(remember=tmp_path, start=first.plan)) == "start"


def test_the_nearest_by_hand(tmp_path: Path) -> None:
    """The same objective counts most, then the target, then the number of chips."""
    wide = load_target("mcm-6x6")
    targets = {chips: first_chips(wide, chips) for chips in (2, 4, 8)}
    for target in targets.values():
        searched(target=target, remember=tmp_path)
    searched(target=targets[4], objective="latency", remember=tmp_path)
    store = PlanStore(tmp_path)

    def chips_of(target: Target, objective: Any = "throughput") -> int:
        start = store.nearest(GRAPH, target, objective)
        assert start is not None
        assert start.plan is not None
        (chips,) = [n for n, one in targets.items() if one.fingerprint == start.plan.target_fingerprint]
        return chips

    assert [chips_of(targets[chips]) for chips in (2, 4, 8)] == [2, 4, 8]
    assert chips_of(first_chips(wide, 3)) == 4
    assert chips_of(wide) == 8
    assert chips_of(wide, "latency") == 4
    assert store.nearest(generate_graph(4, family="towers", num_ops=30), wide, "throughput") is None


def test_other_costs_are_the_same_structure(tmp_path: Path) -> None:
    searched("zoo:dcn_v2", remember=tmp_path)
    other = go_opt.load("zoo:dcn_v2", precision="as-is")
    assert other.fingerprint != go_opt.load("zoo:dcn_v2").fingerprint
    assert began_with(searched(other, remember=tmp_path)) == METHOD
    assert len(names(tmp_path)) == 2


def test_a_worse_plan_does_not_replace_a_better_one(tmp_path: Path) -> None:
    best = searched(max_evaluations=200)
    worst = searched(max_evaluations=1)
    assert worst.metrics.interval_s > best.metrics.interval_s
    store = PlanStore(tmp_path)
    for result, kept in ((worst, worst), (best, best), (worst, best)):
        store.keep(GRAPH, TARGET, result)
        start = store.nearest(GRAPH, TARGET, "throughput")
        assert start is not None
        assert start.plan is not None
        assert plan_to_dict(start.plan) == plan_to_dict(kept.plan)


def test_same_contents_same_answer(tmp_path: Path) -> None:
    for target in (first_chips(TARGET, 2), first_chips(TARGET, 3)):
        searched(target=target, remember=tmp_path / "a")
    shutil.copytree(tmp_path / "a", tmp_path / "b")  # of other times
    plans = [searched(remember=tmp_path / folder, seed=5).plan for folder in "ab"]
    assert plan_to_dict(plans[0]) == plan_to_dict(plans[1])


def test_the_plans_used_longest_ago_go_first(tmp_path: Path) -> None:
    targets = [first_chips(load_target("mcm-6x6"), chips) for chips in (2, 3, 4)]
    results = [searched(target=target) for target in targets]
    store = PlanStore(tmp_path)
    for second, (target, result) in enumerate(zip(targets, results, strict=True)):
        store.keep(GRAPH, target, result)
        for path in tmp_path.iterdir():
            if path.stat().st_mtime > 1e9:
                os.utime(path, (second, second))
    store.nearest(GRAPH, targets[0], "throughput")  # is used now
    (tmp_path / "notes.json").write_text("{}" * 1000)
    most = sum(path.stat().st_size for path in tmp_path.glob("*-*")) - 1
    PlanStore(tmp_path, most).keep(GRAPH, targets[2], results[2])
    assert len(names(tmp_path)) == 4  # nothing new was kept, so nothing was deleted
    four = first_chips(load_target("mcm-6x6"), 5)
    PlanStore(tmp_path, most).keep(GRAPH, four, searched(target=four))
    left = [name for name in names(tmp_path) if name != "notes.json"]
    assert {name.split("-")[3] for name in left} == {"2", "5"}
    assert (tmp_path / "notes.json").exists()


@pytest.mark.parametrize("text", ["", "{", "[]", '{"format": "go_opt.v1.Plan"}', '{"format": "other"}'])
def test_what_cannot_be_read_is_left_alone(tmp_path: Path, text: str) -> None:
    searched(remember=tmp_path)
    (name,) = names(tmp_path)
    (tmp_path / name).write_text(text)
    assert began_with(searched(remember=tmp_path)) != METHOD
    is_ours = text in ("", '{"format": "go_opt.v1.Plan"}')
    assert ((tmp_path / name).read_text() != text) == is_ours


def test_a_plan_of_another_graph_under_the_name_is_replaced(tmp_path: Path) -> None:
    other = generate_graph(4, family="towers", num_ops=12)
    searched(remember=tmp_path / "kept")
    searched(other, remember=tmp_path / "other")
    (name,), (others,) = names(tmp_path / "kept"), names(tmp_path / "other")
    shutil.copy(tmp_path / "other" / others, tmp_path / "kept" / name)
    result = searched(remember=tmp_path / "kept")
    start = PlanStore(tmp_path / "kept").nearest(GRAPH, TARGET, "throughput")
    assert start is not None
    assert start.plan is not None
    assert plan_to_dict(start.plan) == plan_to_dict(result.plan)


def test_a_folder_that_cannot_be_one(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(InvalidInputError, match="folder"):
        searched(remember=tmp_path / "file")


def test_a_plan_that_cannot_be_kept_is_not_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full(*args: object) -> None:
        raise InvalidInputError("'plan' cannot be written: No space left on device.")

    monkeypatch.setattr("go_opt.api.plan_store.save_plan", full)
    assert searched(remember=tmp_path).plan is not None
    assert "is not remembered: 'plan' cannot be written" in caplog.text


def test_splits_are_remembered(tmp_path: Path) -> None:
    first = searched(stateless("gpt2_step"), target="mcm-6x6", remember=tmp_path, max_evaluations=150)
    assert first.plan.splits
    again = searched(stateless("gpt2_step"), target="mcm-6x6", remember=tmp_path, max_evaluations=5)
    assert again.metrics.interval_s <= first.metrics.interval_s


class Recorded(LocalOptimizer):
    """Notes which folder each request may use."""

    def __init__(self) -> None:
        super().__init__()
        self.folders: list[Path | None] = []

    def optimize(self, request: bytes, control: SearchControl) -> Any:
        self.folders.append(control.remember)
        return super().optimize(request, control)


def test_callers_of_a_service_have_plans_of_their_own(tmp_path: Path) -> None:
    optimizer = Recorded()
    service = OptimizerService(optimizer, plans=tmp_path)
    for number, owner in enumerate(("anna", "../anna", "anna", "")):
        request = optimizer_pb2.OptimizeRequest(
            graph=graph_to_proto(GRAPH), seed=number, max_evaluations=5, no_simulate=True
        )
        request.target.name = "mcm-2x2"
        call = Call("Optimize", "host", "id", None, owner)
        answer: Any = service.methods()["Optimize"].work(request.SerializeToString(), call)
        began = answer.history[0].method
        assert (began == METHOD) == (number == 2)
    folders = optimizer.folders
    assert folders[0] == folders[2]
    assert len(set(folders)) == 3
    assert {folder.parent for folder in folders if folder is not None} == {tmp_path}
