"""Waiting for kernels that another process compiles: who waits can stop, and never outlasts that process."""

from __future__ import annotations

import fcntl
import itertools
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from go_opt.common.processes import module_environment
from go_opt.env import load_target, load_zoo
from go_opt.result import OptimizeResult, Request
from go_opt.search.compiling import kernel_cache
from go_opt.search.compiling.kernel_cache import are_compiled
from go_opt.search.methods.events import waiting_until
from go_opt.search.optimizer import optimize_request
from tests.service.jobs.conftest import eventually


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
        Request(replication=False, splits=False, **options),
        should_stop=lambda: next(asked) >= polls,
    )


def methods(result: OptimizeResult) -> set[str]:
    return {step.method.split(",")[0] for step in result.history}


FIRST = {"greedy", "slice: default order"}
NEXT = {"slice: short branches first", "slice: height order", "slice: least memory"}
WAIT = {"proof"}


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


def test_one_process_compiles_for_all_searches(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(kernel_cache, "_is_interpreted", lambda: False)
    monkeypatch.setattr(kernel_cache, "marker", lambda: tmp_path / "ready")
    monkeypatch.setattr(kernel_cache, "_started", started := [])
    sleeps = (sys.executable, "-c", "import time; time.sleep(1e6)")
    monkeypatch.setattr(kernel_cache, "module_command", lambda module: sleeps)
    with open(tmp_path / "improvement.lock", "w") as lock:  # of another search's process, which then dies
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert methods(search(max_evaluations=10**6)) == FIRST | NEXT  # it waits
        assert started == []
    for _ in range(2):
        assert not are_compiled()
    (process,) = started
    with open(tmp_path / "improvement.lock", "w") as lock:
        with pytest.raises(BlockingIOError):
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        process.kill()
        process.wait()
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    assert are_compiled()  # it ended without: they are compiled here


def test_without_a_lock_they_are_compiled_here(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setattr(kernel_cache, "_is_interpreted", lambda: False)
    monkeypatch.setattr(kernel_cache, "marker", lambda: tmp_path / "file" / "ready")
    monkeypatch.setattr(kernel_cache, "_started", [])
    assert are_compiled()


def test_it_is_left_behind_and_compiles_what_runs_here(tmp_path: Path) -> None:
    """From within another checkout, whose sources are others."""
    other, kernels = tmp_path / "other", tmp_path / "kernels"
    (other / "go_opt").mkdir(parents=True)
    (other / "go_opt" / "__init__.py").write_text("raise SystemExit(1)")
    leave = "from go_opt.search.compiling import kernel_cache as k; print(k._compiling().pid)"
    done = subprocess.run(
        [sys.executable, "-W", "error", "-P", "-c", leave],
        cwd=other,
        env={**module_environment(), "NUMBA_CACHE_DIR": str(kernels)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stderr == ""  # not even that it still runs
    try:
        eventually(lambda: any(kernels.rglob("*.nbc")))
    finally:
        with suppress(ProcessLookupError):
            os.killpg(int(done.stdout), signal.SIGKILL)
