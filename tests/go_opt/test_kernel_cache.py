"""Waiting for kernels that another process compiles: who waits can stop, and never outlasts that process."""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from go_opt.env import load_target, load_zoo
from go_opt.result import OptimizeResult, Request
from go_opt.search.compiling import kernel_cache
from go_opt.search.compiling.kernel_cache import are_compiled
from go_opt.search.methods.events import waiting_until
from go_opt.search.optimizer import optimize_request


@pytest.fixture
def compiler(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    """The process that compiles: it never ends by itself, and nothing comes into the cache."""
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(1e6)"]) as process:
        monkeypatch.setattr(kernel_cache, "_is_interpreted", lambda: False)
        monkeypatch.setattr(kernel_cache, "marker", lambda: tmp_path / "ready")
        monkeypatch.setattr(kernel_cache, "_compiling", lambda: process)
        yield process
        process.kill()


def search(polls: int = 300, **options: Any) -> OptimizeResult:
    """Stopped when it has asked that often whether to."""
    asked = itertools.count()
    return optimize_request(
        load_zoo("mobilenet_v2"),
        load_target("mcm-6x6"),
        Request(replication=False, **options),
        should_stop=lambda: next(asked) >= polls,
    )


def methods(result: OptimizeResult) -> set[str]:
    return {step.method.split(",")[0] for step in result.history}


FIRST = {"greedy", "slice: default order"}
NEXT = {"slice: depth order", "slice: height order"}
WAIT = {
    "refinement",
    "annealing",
    "clones",
    "slice: order of a free slicing",
}


@pytest.mark.parametrize("decide", ["placement", "all"])
def test_a_search_that_counts_waits_and_can_be_stopped(
    compiler: subprocess.Popen[bytes], decide: Any
) -> None:
    result = search(max_evaluations=10**6, decide=decide)
    assert methods(result) == FIRST | NEXT
    assert result.evaluations < 20


def test_its_budget_ends_the_wait(compiler: subprocess.Popen[bytes]) -> None:
    assert methods(search(10**9, max_evaluations=10**6, budget_s=0.3)) <= FIRST | NEXT


def test_a_search_short_of_time_does_something_else(compiler: subprocess.Popen[bytes]) -> None:
    tried = methods(search(budget_s=600.0))
    assert tried >= FIRST | NEXT | {"slice: random order"}
    assert not tried & WAIT


def test_a_process_that_dies_is_not_waited_for(compiler: subprocess.Popen[bytes]) -> None:
    waiting = waiting_until(are_compiled)
    next(waiting)
    compiler.kill()
    compiler.wait()
    assert list(waiting) == []


def test_what_is_in_the_cache_is_not_waited_for(compiler: subprocess.Popen[bytes], tmp_path: Path) -> None:
    waiting = waiting_until(are_compiled)
    next(waiting)
    (tmp_path / "ready").touch()
    assert list(waiting) == []


def test_to_leave_it_behind_is_no_warning(tmp_path: Path) -> None:
    leave = "from go_opt.search.compiling import kernel_cache as k; print(k._compiling().pid)"
    root = str(Path(kernel_cache.__file__).parents[3])
    env = {**os.environ, "PYTHONPATH": root, "NUMBA_CACHE_DIR": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", leave], env=env, capture_output=True, text=True, check=True
    )
    os.killpg(int(done.stdout), signal.SIGKILL)
    assert done.stderr == ""
