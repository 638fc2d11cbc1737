"""Where compiled programs are kept, and that nothing breaks where they cannot be."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import jax
import pytest

from go_opt.agents.policy.network import enable_compilation_cache

OPTIONS = (
    "jax_compilation_cache_dir",
    "jax_persistent_cache_min_compile_time_secs",
    "jax_persistent_cache_min_entry_size_bytes",
)


@pytest.fixture(autouse=True)
def _nothing_set(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    before = {name: getattr(jax.config, name) for name in OPTIONS}
    jax.config.update(OPTIONS[0], None)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    yield
    for name, value in before.items():
        jax.config.update(name, value)


def folder() -> str | None:
    return jax.config.jax_compilation_cache_dir


def test_the_users_cache_keeps_everything(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    enable_compilation_cache()
    assert folder() == str(tmp_path / "cache" / "go-opt" / "jax")
    assert Path(folder() or "").is_dir()
    assert [getattr(jax.config, name) for name in OPTIONS[1:]] == [0.0, 0]


@pytest.mark.parametrize("base", [None, "", "relative"])
def test_else_the_one_in_the_home_folder(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, base: str | None
) -> None:
    if base is not None:
        monkeypatch.setenv("XDG_CACHE_HOME", base)
    enable_compilation_cache()
    assert folder() == str(tmp_path / "home" / ".cache" / "go-opt" / "jax")


def test_a_folder_that_was_given_stays(tmp_path: Path) -> None:
    jax.config.update(OPTIONS[0], str(tmp_path / "given"))
    enable_compilation_cache()
    assert folder() == str(tmp_path / "given")
    assert not (tmp_path / "home").exists()
    assert jax.config.jax_persistent_cache_min_entry_size_bytes == 0


@pytest.mark.parametrize("base", ["/dev/null", "/proc/nowhere", "/null\0byte"])
def test_without_a_place_to_write_there_is_none(monkeypatch: pytest.MonkeyPatch, base: str) -> None:
    if "\0" not in base:
        monkeypatch.setenv("XDG_CACHE_HOME", base)
    else:
        monkeypatch.setattr("go_opt.common.caches.folder.os.environ", {"XDG_CACHE_HOME": base})
    enable_compilation_cache()
    assert folder() is None
