"""Compiled functions as plain Python: before they are compiled, with equal results, and never after."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

import go_opt
from go_opt.env import evaluate_plan
from go_opt.env.copies.splits import planned_graph
from go_opt.model.codecs.plan_json import load_plan
from go_opt.result import OptimizeResult, Step
from go_opt.search import optimizer

ROOT: Final = Path(__file__).resolve().parents[2]
KERNELS: Final = """
from go_opt.common.compiling import compiled, compiled_inner

@compiled_inner
def half(number):
    return number // 2

@compiled
def steps(number):
    count = 0
    while number > 0:
        number = half(number)
        count += 1
    return count
"""
CALLS: Final = """
import sys
sys.path.insert(0, "")
from numba.core import event
from go_opt.common.interpreted import interpreted_until_compiled
import kernels
event.register("numba:compile", compiled := event.RecordingListener())
with interpreted_until_compiled():
    print(kernels.steps(1000), len(compiled.buffer), len(kernels.steps.overloads))
print(kernels.steps(1000), len(compiled.buffer) > 0, len(kernels.steps.overloads))
"""


def test_what_is_not_compiled_is_interpreted_and_what_is_cached_is_loaded(tmp_path: Path) -> None:
    (tmp_path / "kernels.py").write_text(KERNELS, "utf-8")
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path / "cache"), "PYTHONPATH": str(ROOT)}
    environment.pop("NUMBA_DISABLE_JIT", None)
    for expected in (["10 0 0", "10 True 1"], ["10 0 1", "10 False 1"]):
        ran = subprocess.run(
            [sys.executable, "-c", CALLS],
            cwd=tmp_path, env=environment, capture_output=True, text=True, check=True,
        )  # fmt: skip
        assert ran.stdout.splitlines() == expected


FIRST_PLANS: Final = """
import sys
from numba.core import event
import go_opt
from go_opt.model.codecs.plan_json import save_plan
from go_opt.search import optimizer

class Begun(BaseException):
    pass

def begin(*given):
    better.append(at_once(*given))
    raise Begun

event.register("numba:compile", compiled := event.RecordingListener())
at_once, optimizer._plan_at_once, optimizer.start_compiling = optimizer._plan_at_once, begin, lambda: True
for name in sys.argv[1:]:
    steps, better = [], []
    try:
        go_opt.optimize("zoo:" + name, on_step=steps.append, on_improvement=better.append)
    except Begun:
        pass
    assert compiled.buffer == []
    found = better[-1]
    assert found.objective_s == better[-2].objective_s == steps[-1].best_s
    assert (found.status, found.lower_bound_s) == ("FEASIBLE", 0.0)
    save_plan(found.plan, name + ".json")
    print(*(value.hex() for value in map(float, (found.metrics.interval_s, found.metrics.makespan_s))))
"""
MODELS: Final = ("resnet50", "nasnet_mobile", "gpt2", "gpt2_step")


def test_the_first_plan_after_an_install_needs_no_compilation(tmp_path: Path) -> None:
    """It is valid, and costs what it costs by compiled functions."""
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path / "cache"), "PYTHONPATH": str(ROOT)}
    environment.pop("NUMBA_DISABLE_JIT", None)
    ran = subprocess.run(
        [sys.executable, "-c", FIRST_PLANS, *MODELS],
        cwd=tmp_path, env=environment, capture_output=True, text=True, check=True,
    )  # fmt: skip
    target = go_opt.target("mcm-6x6")
    for name, told in zip(MODELS, ran.stdout.splitlines(), strict=True):
        graph, plan = go_opt.load(f"zoo:{name}"), load_plan(tmp_path / f"{name}.json")
        placed = planned_graph(graph, plan)
        assert go_opt.verify(graph, target, plan) == []
        metrics = evaluate_plan(placed, target, plan, waits=False)
        assert metrics.valid
        assert told.split() == [float(metrics.interval_s).hex(), float(metrics.makespan_s).hex()]


@pytest.mark.parametrize("stops", [True, False])
def test_whoever_has_a_plan_hears_of_better_ones_alone(monkeypatch: pytest.MonkeyPatch, stops: bool) -> None:
    """A search that is stopped with a worse plan answers with that one; any other as after a warm start."""
    monkeypatch.setattr(optimizer, "has_evaluated", lambda: False)
    monkeypatch.setattr(optimizer, "start_compiling", lambda: True)
    steps, better = list[Step](), list[OptimizeResult]()

    def should_stop() -> bool:  # after the greedy plan, which comes before the kernels are compiled and again
        return stops and len(steps) >= 3

    watch = {"on_step": steps.append, "on_improvement": better.append, "should_stop": should_stop}
    found = go_opt.optimize("zoo:resnet50", max_evaluations=1, policy=None, **watch)
    assert [step.method for step in steps] == ["greedy", "slice: default order", "greedy"]
    assert [result.method for result in better] == ["greedy", "slice: default order"]
    assert [step.best_s for step in steps] == [result.objective_s for result in [*better, better[-1]]]
    assert found.method == ("slice: default order" if stops else "greedy")
    assert found.lower_bound_s > 0.0
