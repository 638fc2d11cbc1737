"""Runs in processes of their own: killed at any moment and gone on with."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import go_opt
from tests.agents.training.runs import STEPS, ended_alike

# Argument: folder, steps, seconds between checkpoints. Prints the number of every step.
RUN = """
import sys
from go_opt.agents.policy.network import enable_compilation_cache
from go_opt.agents.training import run as loop
from go_opt.agents.training.requests import pretrain
from tests.agents.training.runs import Flaky, pretraining

folder, steps, checkpoint_every_s = sys.argv[1], int(sys.argv[2]), float(sys.argv[3])
enable_compilation_cache()
loop.CHECKPOINT_EVERY_S = checkpoint_every_s
pretrain(pretraining(steps), folder, Flaky(), on_progress=lambda at: print(at.step, flush=True))
"""


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Of processes that share what they compile."""
    root = str(Path(go_opt.__file__).parents[1])
    cache = str(tmp_path_factory.mktemp("jax"))
    return {"JAX_COMPILATION_CACHE_DIR": cache, **os.environ, "PYTHONPATH": root}


def start(
    environment: dict[str, str], folder: Path, steps: int = STEPS, checkpoint_every_s: float = 0.0
) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", RUN, str(folder), str(steps), str(checkpoint_every_s)]
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)


def run(environment: dict[str, str], folder: Path, steps: int = STEPS) -> None:
    with start(environment, folder, steps) as process:
        process.communicate(timeout=600)
    assert process.returncode == 0


def test_killed_and_gone_on_with(environment: dict[str, str], tmp_path: Path, undisturbed: Path) -> None:
    folder = tmp_path / "killed"
    # Steps of the process, time after them, and between checkpoints: within steps, within the
    # writing of files, and where the last steps were logged but not saved.
    for steps, more_s, checkpoint_every_s in ((2, 0.004, 0.0), (2, 0.01, 1e9)):
        with start(environment, folder, checkpoint_every_s=checkpoint_every_s) as process:
            assert process.stdout is not None
            for _ in range(steps):
                assert process.stdout.readline()
            time.sleep(more_s)
            process.kill()
        assert process.returncode == -signal.SIGKILL
    run(environment, folder)
    assert ended_alike(folder, undisturbed)
