"""Plans of training steps: files, the check and what it finds in mutants, gains, traces."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from go_opt.env import load_target
from go_opt.errors import PlanError
from go_opt.parallel import Case, Configuration, cost_step
from go_opt.parallel.plans.answers import loaded_step, searched_step
from go_opt.parallel.plans.checks import check_passes, check_step, check_sums, replicas
from go_opt.parallel.plans.explaining import gains
from go_opt.parallel.schedule import Timeline, simulate
from go_opt.parallel.step import Step

MODEL = "gpt:hidden=2048,layers=12,heads=16,sequence=2048"


def case(target: str = "dgx-a100-16", batch: int = 32) -> Case:
    return Case.read(MODEL, load_target(target), batch)


def rules(step: Step) -> set[str]:
    return {one.constraint for one in check_step(step)}


@pytest.mark.parametrize(
    "text",
    [
        "data=16",
        "tensor=8,data=2,sequence_parallel=on,zero=3",
        "pipeline=4,data=4,recompute=none",
        "pipeline=4,data=4,schedule=gpipe",
        "tensor=2,pipeline=2,data=4,schedule=interleaved,stages_per_device=3",
    ],
)
def test_plans_without_a_violation(text: str) -> None:
    assert check_step(cost_step(case(), text)) == []


def test_a_plan_that_breaks_a_rule() -> None:
    step = cost_step(case(), "pipeline=4,data=4")
    assert rules(replace(step, layers=step.layers[1:])) == {"layers"}
    assert rules(replace(step, layers=((0, 0, 4), (0, 0, 2), (0, 0, 3), (0, 0, 2)))) == {"layers"}
    assert rules(replace(step, layers=((0, 0, 6), (0, 0, 0), (0, 0, 3), (0, 0, 3)))) == {"layers"}
    assert rules(replace(step, chosen=replace(step.chosen, data=2))) == {"configuration"}
    kind = replace(step.case.machine.target.kinds[0], sram_bytes=10**9)
    small = replace(step.case.machine.target, kinds=(kind,))
    assert rules(Step(Case.read(MODEL, small, 32), step.chosen, step.layers)) == {"memory"}


def mutated(timeline: Timeline, kind: str) -> Timeline:
    order, start_s, end_s = timeline.order, timeline.start_s.copy(), timeline.end_s.copy()
    if kind == "early":  # the last rank begins before its input is there
        start_s[-1, 0], end_s[-1, 0] = 0.0, end_s[-1, 0] - start_s[-1, 0]
    elif kind == "two at once":
        start_s[0, 1] = start_s[0, 0]
    else:  # one micro-batch twice, and so another never
        batches = order.micro_batch.copy()
        batches[0, 0] = batches[0, 1]
        order = replace(order, micro_batch=batches)
    return replace(timeline, order=order, start_s=start_s, end_s=end_s)


@pytest.mark.parametrize(
    ("kind", "words"), [("early", "begins before"), ("two at once", "is busy"), ("twice", "never runs")]
)
def test_schedules_that_are_wrong(kind: str, words: str) -> None:
    step = cost_step(case(), "pipeline=4,data=4")
    timeline = simulate(step)
    assert list(check_passes(step, timeline)) == []
    assert any(words in one.message for one in check_passes(step, mutated(timeline, kind)))


def test_gradients_that_are_summed_wrongly() -> None:
    chosen = Configuration(tensor=2, pipeline=2, data=3)
    groups = replicas(chosen)
    assert groups[0] == [0, 2, 4]
    assert list(check_sums(chosen, groups)) == []
    for wrong in (groups[1:], [*groups, groups[0]], [[0, 2, 5], *groups[1:]], [[0, 2, 6], *groups[1:]]):
        assert list(check_sums(chosen, wrong)) != []


def test_a_plan_file_gives_the_plan_back(tmp_path: Path) -> None:
    answer = searched_step(MODEL, load_target("ethernet-a100-32"), 64, 60.0, lambda: False)
    path = tmp_path / "plan.json"
    answer.save(path)
    again = loaded_step(path, None)
    assert (again.step.chosen, again.step.layers) == (answer.step.chosen, answer.step.layers)
    assert again.step.step_s == answer.step.step_s
    assert again.verify() == []
    with pytest.raises(PlanError, match="another target"):
        loaded_step(path, load_target("dgx-a100-32"))


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"layers": [[1, 2]]}, "layers"),
        ({"layers": "all"}, "layers"),
        ({"layers": [[1, 2, -1]]}, "layers"),
        ({"batch": "many"}, "batch"),
        ({"batch": 0}, "batch"),
        ({"parallel": {"tensors": 2}}, "tensors"),
        ({"parallel": [2]}, "parallel"),
        ({"model": "gpt:hidden=2"}, "layers"),
        ({"target": "dgx-a100-x"}, "target"),
        ({"target": 3}, "target"),
        ({"objective": "latency"}, "objective"),
    ],
)
def test_plan_files_that_are_wrong(tmp_path: Path, change: dict[str, Any], field: str) -> None:
    path = tmp_path / "plan.json"
    target = load_target("dgx-a100-2")
    searched_step(MODEL, target, 4, 60.0, lambda: False).save(path)
    data = json.loads(path.read_text())
    path.write_text(json.dumps(data | change))
    with pytest.raises(PlanError) as raised:
        loaded_step(path, None)
    assert raised.value.field == field
    path.write_text(json.dumps({name: value for name, value in data.items() if name not in change}))
    with pytest.raises(PlanError):
        loaded_step(path, None)


def test_gains() -> None:
    step = cost_step(case("ethernet-a100-16"), "tensor=2,pipeline=2,data=4")
    found = {gain.what: gain.step_s for gain in gains(step)}
    assert found["twice the rate among nodes"] < step.step_s
    assert found["no bubble"] == pytest.approx(step.step_s - step.terms_s["bubble_s"])
    assert list(found.values()) == sorted(found.values())
    alone = cost_step(case("dgx-a100-1"), "")
    assert "no bubble" not in {gain.what for gain in gains(alone)}


def test_a_trace_has_every_pass(tmp_path: Path) -> None:
    target = load_target("dgx-a100-16")
    answer = searched_step(MODEL, target, 32, 60.0, lambda: False)
    passes = answer.save_trace(tmp_path / "trace.json")
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    slices = [event for event in events if event["ph"] == "X"]
    assert len(slices) == passes
    end_s = max(event["ts"] + event["dur"] for event in slices) * 1e-6
    assert np.isclose(end_s, simulate(answer.step).end_s.max())
