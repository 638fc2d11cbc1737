from __future__ import annotations

import os
from pathlib import Path

import pytest

from go_opt.common.processes import num_cores


@pytest.fixture(autouse=True)
def _eight_cpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8)), raising=False)


def _cores(tmp_path: Path, own: str, **files: str) -> int:
    (tmp_path / "own").write_text(own)
    for name, text in files.items():
        file = tmp_path / name.replace("__", "/").replace("_dot_", ".")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    return num_cores(tmp_path, tmp_path / "own")


def test_without_control_groups_the_mask_counts(tmp_path: Path) -> None:
    assert num_cores(tmp_path, tmp_path / "none") == 8


@pytest.mark.parametrize(
    ("cpu_max", "cores"),
    [("max 100000\n", 8), ("300000 100000\n", 3), ("250000 100000\n", 2), ("50000 100000\n", 1)],
)
def test_the_quota_of_version_2_counts_rounded_down_and_at_least_one(
    tmp_path: Path, cpu_max: str, cores: int
) -> None:
    assert _cores(tmp_path, "0::/\n", cpu_dot_max=cpu_max) == cores


def test_the_quota_of_a_group_around_it_counts_too(tmp_path: Path) -> None:
    limits = {"pod__cpu_dot_max": "200000 100000", "pod__box__cpu_dot_max": "max 100000"}
    assert _cores(tmp_path, "0::/pod/box\n", **limits) == 2


def test_a_container_that_sees_its_own_group_at_the_root_finds_its_quota(tmp_path: Path) -> None:
    own = "12:cpuset:/docker/1\n3:cpu,cpuacct:/docker/1\n"
    limits = {"cpu__cpu_dot_cfs_quota_us": "400000\n", "cpu__cpu_dot_cfs_period_us": "100000\n"}
    assert _cores(tmp_path, own, **limits) == 4


def test_no_quota_of_version_1_is_no_limit(tmp_path: Path) -> None:
    limits = {"cpu__cpu_dot_cfs_quota_us": "-1\n", "cpu__cpu_dot_cfs_period_us": "100000\n"}
    assert _cores(tmp_path, "3:cpu:/\n", **limits) == 8


def test_a_mask_narrower_than_the_quota_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0})
    assert _cores(tmp_path, "0::/\n", cpu_dot_max="300000 100000") == 1
