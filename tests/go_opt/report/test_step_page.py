"""The page of a training step: its rows against the plan, and drawn in a real browser."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from go_opt.env import load_target
from go_opt.parallel import Case, cost_step, plan_step
from go_opt.parallel.plans.answers import StepAnswer
from go_opt.parallel.schedule import simulate
from go_opt.report.page import Claims, step_page
from go_opt.report.page.over_time import MOST_SPANS
from go_opt.report.page.page import step_data
from tests.go_opt.report.browser import browser, find_browser
from tests.go_opt.report.pages import read_page
from tests.go_opt.report.test_browser import COLOURS, check_quiet, stage_colours

MODEL = "gpt:hidden=2048,layers=10,heads=16,sequence=2048,vocabulary=400000"


def answer(text: str = "pipeline=4,data=4,overlap=on", devices: int = 16, batch: int = 64) -> StepAnswer:
    return StepAnswer(cost_step(Case.read(MODEL, load_target(f"dgx-a100-{devices}"), batch), text), MODEL)


def test_rows_are_those_of_the_plan() -> None:
    found = answer()
    data, step, timeline = (
        step_data(found, Claims(lower_bound_s=0.5 * found.step.step_s)),
        found.step,
        simulate(found.step),
    )
    facts = {fact["label"]: fact for fact in data["facts"]}
    assert facts["status"]["note"] == "gap 100.00%"
    assert sum(part["seconds"] for part in data["parts"]) == pytest.approx(step.step_s)
    assert [row["layers"] for row in data["stages"]] == [f"{n} layers: full recomputed" for n in (2, 3, 3, 2)]
    assert [row["state_bytes"] + row["other_bytes"] for row in data["stages"]] == list(step.memory_bytes)
    assert [row["is_slowest"] for row in data["stages"]] == [s == max(step.rank_s) for s in step.rank_s]
    passes = data["timeline"]["passes"]
    assert len(passes["row"]) == timeline.order.chunk.size == 4 * 2 * 16
    assert data["timeline"]["end_ns"] == round(timeline.step_s * 1e9)
    for rank, memory in enumerate(data["memory"]):
        assert max(memory["bytes"]) == memory["most_bytes"] == timeline.peak_bytes[rank]
        assert memory["most_bytes"] == pytest.approx(step.memory_bytes[rank], abs=1)
    assert not data["notes"]["timeline"]
    json.dumps(data, allow_nan=False)


def test_large_steps_are_drawn_in_part() -> None:
    data = step_data(answer("pipeline=8,data=2", batch=2 * 1200), Claims())
    assert len(data["timeline"]["passes"]["row"]) <= MOST_SPANS
    assert "ranks 8 are drawn" not in str(data["notes"])
    data = step_data(answer("pipeline=8,data=2", batch=2 * 6000), Claims())
    assert len(data["timeline"]["rows"]) == 1
    assert data["notes"]["timeline"] == ["Of 8 ranks 1 are drawn."]
    assert "status" not in {fact["label"] for fact in data["facts"]}


def test_a_page_is_whole() -> None:
    page = read_page(step_page(StepAnswer(answer().step, "gpt:</script><img src=x>"), Claims()))
    assert not {"link", "img", "iframe"} & {tag for tag, _ in page.elements}
    assert json.loads(page.scripts["application/json"])["title"].startswith("gpt:</script>")


@pytest.mark.skipif(find_browser() is None, reason="no browser to open pages in")
def test_it_is_drawn(tmp_path: Path) -> None:
    case = Case.read(MODEL, load_target("dgx-a100-16"), 64)
    found = plan_step(case, allows=lambda chosen: chosen.pipeline == 4)
    page = tmp_path / "step.html"
    page.write_text(step_page(StepAnswer(found, MODEL), Claims()), "utf-8")
    program = find_browser()
    assert program is not None
    with browser(program, tmp_path / "profile") as tab:
        tab.open(page)
        assert stage_colours(tab) <= set(tab.run(f"{COLOURS}('timeline')"))
        assert tab.run("document.querySelector('#facts dt').textContent") == "step"
        assert tab.run("document.querySelectorAll('#pipeline > li').length") == 4
        assert tab.run("document.querySelectorAll('#memory figure').length") == 4
        check_quiet(tab, page)
