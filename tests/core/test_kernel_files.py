"""What was compiled is found again by the sources that it follows from, and by nothing else."""

from __future__ import annotations

import importlib
import os
import shutil
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import numba
import pytest
from numba.core.dispatcher import Dispatcher

import go_opt.search.compile_kernels  # noqa: F401  all kernels
from go_opt.common.caches import kernels

FILES = {
    "__init__.py": "",
    "constants.py": "FACTOR = 2.0\n",
    "inner.py": """
from go_opt.common.compiling import compiled_inline
from kernels_of_a_test.constants import FACTOR

@compiled_inline
def scaled(value):
    return FACTOR * value
""",
    "outer.py": """
from go_opt.common.compiling import compiled
from kernels_of_a_test.inner import (
    scaled,
)

@compiled
def run(value):
    return scaled(value) + 1.0
""",
    "aside.py": "FACTOR = 3.0\n",
}
PACKAGE = "kernels_of_a_test"


@pytest.fixture(autouse=True)
def _own_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    monkeypatch.setattr(numba.config, "CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    _forget()
    yield
    _forget()


def _forget() -> None:
    """As a new process."""
    for name in ("sources_digest", "sources", "folder_of", "_source", "_is_known", "_path", "_folder"):
        getattr(kernels, name).cache_clear()
    for name in [name for name in sys.modules if name.startswith(PACKAGE)]:
        del sys.modules[name]
    importlib.invalidate_caches()


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """Where the package lies."""
    for name, text in FILES.items():
        write(tmp_path / "here" / PACKAGE / name, text)
    return tmp_path / "here"


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    os.utime(path, (1.0, 1.0))  # as long before this process as any other version


def answer(home: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[float, bool]:
    """Of the package that lies there, and whether it was compiled before."""
    _forget()
    with monkeypatch.context() as patch:
        patch.syspath_prepend(str(home))
        run: Any = importlib.import_module(f"{PACKAGE}.outer").run
        assert isinstance(run, Dispatcher)
        return run(5.0), bool(run.stats.cache_hits)


@pytest.mark.parametrize(
    ("file", "old", "new", "expected"),
    [
        ("inner.py", "FACTOR * value", "FACTOR - value", -2.0),
        ("constants.py", "2.0", "4.0", 21.0),
        ("outer.py", "+ 1.0", "+ 2.0", 12.0),
    ],
)
def test_a_change_in_any_file_that_it_follows_from_is_seen(
    home: Path, monkeypatch: pytest.MonkeyPatch, file: str, old: str, new: str, expected: float
) -> None:
    assert answer(home, monkeypatch) == (11.0, False)
    assert answer(home, monkeypatch) == (11.0, True)
    path = home / PACKAGE / file
    write(path, path.read_text().replace(old, new))
    assert answer(home, monkeypatch) == (expected, False)
    write(path, FILES[file])
    assert answer(home, monkeypatch) == (11.0, True)


def test_a_file_that_it_does_not_import_changes_nothing(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert answer(home, monkeypatch) == (11.0, False)
    write(home / PACKAGE / "aside.py", "FACTOR = 7.0\n")
    assert answer(home, monkeypatch) == (11.0, True)


def test_copies_share_what_is_compiled(home: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Whatever their paths, and the times of their files."""
    shutil.copytree(home, tmp_path / "there")
    for path in (tmp_path / "there" / PACKAGE).iterdir():
        os.utime(path, (9.0, 9.0))
    assert answer(home, monkeypatch) == (11.0, False)
    assert answer(tmp_path / "there", monkeypatch) == (11.0, True)


def test_a_file_changed_since_the_process_began_may_not_be_what_runs(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (home / PACKAGE / "inner.py").touch()
    assert answer(home, monkeypatch) == (11.0, False)
    assert kernels.folder_of(f"{PACKAGE}.outer") == Path(os.devnull)
    monkeypatch.setattr(kernels, "_BEGAN_S", kernels.time.time())  # another process
    assert answer(home, monkeypatch) == (11.0, False)
    assert answer(home, monkeypatch) == (11.0, True)


def test_few_versions_stay(home: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(kernels, "_KEPT", 2)
    path = home / PACKAGE / "constants.py"
    for i in range(4):
        write(path, f"FACTOR = {i}.0\n")
        assert answer(home, monkeypatch) == (5.0 * i + 1.0, False)
    folders = [folder.name for folder in (tmp_path / "cache" / "go-opt").iterdir()]
    assert sum(f"{PACKAGE}.outer-" in name for name in folders) == 2
    assert answer(home, monkeypatch)[1]  # the last one is there


@pytest.mark.parametrize("nowhere", ["/dev/null/below", "/proc/nowhere", "/null\0byte"])
def test_what_cannot_be_kept_is_compiled_each_time(
    home: Path, monkeypatch: pytest.MonkeyPatch, nowhere: str
) -> None:
    monkeypatch.setattr(kernels, "_folders", lambda: iter([None, Path(nowhere)]))
    assert [answer(home, monkeypatch) for _ in range(2)] == [(11.0, False), (11.0, False)]


def test_a_folder_that_goes_away_is_made_again(
    home: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """As when another process removes old versions."""
    made = kernels.folder_of

    @cache
    def lost(module: str) -> Path:
        folder = made(module)
        shutil.rmtree(folder)
        return folder

    with monkeypatch.context() as patch:
        patch.setattr(kernels, "folder_of", lost)
        assert answer(home, monkeypatch) == (11.0, False)
    assert answer(home, monkeypatch) == (11.0, True)


def test_where_they_are_kept(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """As numba is told, else in the user's cache, else beside the sources."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "user"))
    assert kernels._folder() == tmp_path / "cache" / "go-opt"
    monkeypatch.setattr(numba.config, "CACHE_DIR", "/dev/null/below")
    kernels._folder.cache_clear()
    assert kernels._folder() == tmp_path / "user" / "go-opt" / "kernels"
    monkeypatch.setattr(numba.config, "CACHE_DIR", "")
    monkeypatch.setenv("XDG_CACHE_HOME", "/dev/null")
    kernels._folder.cache_clear()
    assert kernels._folder() == Path(kernels.__file__).parent / "__pycache__"


def test_all_that_a_kernel_calls_is_among_its_sources() -> None:
    found = {
        value
        for name, module in list(sys.modules.items())
        for value in (vars(module).values() if name.startswith("go_opt.") else ())
        if isinstance(value, Dispatcher)
    }
    assert len(found) > 300
    for dispatcher in found:
        function = dispatcher.py_func
        named = [function.__globals__.get(name) for name in function.__code__.co_names]
        called = {value.py_func.__module__ for value in named if isinstance(value, Dispatcher)}
        assert called <= kernels.sources(function.__module__)
