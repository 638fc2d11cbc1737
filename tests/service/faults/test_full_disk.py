"""A service on a full disk: refusals instead of losses, and all is well once there is room."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.service.faults.served import ROOT
from tests.service.jobs.test_full_disk import IN_A_TMPFS


def test_a_full_disk(tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    try:
        probe = subprocess.run([*IN_A_TMPFS, str(disk), "true"], capture_output=True, check=False)
    except FileNotFoundError:
        pytest.skip("there is no unshare")
    if probe.returncode:
        pytest.skip("no tmpfs can be mounted")
    program = ("-m", "tests.service.faults.full_disk", str(tmp_path), str(disk))
    command = [*IN_A_TMPFS, str(disk), sys.executable, *program]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=240, check=False)
    assert done.stdout == "done\n", done.stderr
