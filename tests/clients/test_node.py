"""End to end with a client in JavaScript, which knows the published protos and nothing else."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import google.longrunning
import pytest

import go_opt

ROOT: Final = Path(go_opt.__file__).parents[1]
SERVE: Final = ROOT / "tests/service/faults/serve.py"
JOB: Final = ROOT / "tests/contract/fake_training.py"
SOURCE: Final = Path(__file__).with_name("node")
INSTALL_TIMEOUT_S: Final = 120
TEST_TIMEOUT_S: Final = 600


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The client with its packages installed."""
    if shutil.which("node") is None or shutil.which("npm") is None:
        pytest.skip("needs node and npm")
    folder = tmp_path_factory.mktemp("node") / "client"
    shutil.copytree(SOURCE, folder, ignore=shutil.ignore_patterns("node_modules"))
    command = ["npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund"]
    try:
        installed = subprocess.run(
            command, cwd=folder, capture_output=True, text=True, timeout=INSTALL_TIMEOUT_S, check=False
        )
    except subprocess.TimeoutExpired:
        pytest.skip("the packages of the client cannot be had: npm did not end")
    if installed.returncode:
        pytest.skip(f"the packages of the client cannot be had: {installed.stderr.strip()[-300:]}")
    return folder


@pytest.fixture(scope="module")
def proto_path(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Where the published protos lie, those of go-opt and those of Google."""
    own = tmp_path_factory.mktemp("protos")
    googleapis = Path(google.longrunning.__path__[0]).parents[1]
    for path in (ROOT / "proto").glob("*.proto"):
        _copy(path, own / "go_opt" / "proto" / path.name)
    # The Python package alone calls this file operations_proto.proto.
    operations = googleapis / "google" / "longrunning" / "operations_proto.proto"
    _copy(operations, own / "google" / "longrunning" / "operations.proto")
    return f"{own}:{googleapis}"


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A service in a process of its own, whose jobs search instead of training."""
    data = tmp_path_factory.mktemp("service") / "data"
    command = [sys.executable, "-P", str(SERVE), str(JOB), "serve", "--address", "127.0.0.1:0"]
    with subprocess.Popen(
        [*command, "--workers", "1", "--data-dir", str(data), "--log-level", "warning"],
        env={**os.environ, "PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1"},
        stderr=subprocess.PIPE,
        text=True,
    ) as service:
        assert service.stderr is not None
        place = next(line for line in service.stderr if line.startswith("listening on "))
        yield place.removeprefix("listening on ").strip()
        service.send_signal(signal.SIGTERM)
        _, errors = service.communicate(timeout=30)
    assert service.returncode == 0, errors


def test_a_client_in_javascript(project: Path, proto_path: str, address: str) -> None:
    tests = subprocess.run(
        ["node", "--test"],
        cwd=project,
        env={**os.environ, "GO_OPT_ADDRESS": address, "PROTO_PATH": proto_path},
        capture_output=True,
        text=True,
        timeout=TEST_TIMEOUT_S,
        check=False,
    )
    assert tests.returncode == 0, tests.stdout + tests.stderr
    assert "# skipped 0" in tests.stdout


def _copy(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(source, target)
