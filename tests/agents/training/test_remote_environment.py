"""Training against a service that is killed: it stops cleanly, and goes on to the same end."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from go_opt.agents.training.checkpoint import load_checkpoint
from go_opt.agents.training.requests import finetune
from go_opt.agents.training.run import Progress
from go_opt.errors import EnvironmentFailedError
from go_opt.service.environment.remote_environment import RemoteEnvironment
from go_opt.service.transport.retry import Retry
from tests.agents.training.runs import ended_alike, finetuning

STEPS = 3
ROOT = Path(__file__).parents[3]
SERVICE = """
from go_opt.service.environment.environment_service import EnvironmentService
from go_opt.service.server import serve
serve("127.0.0.1:0", lambda: [EnvironmentService()], workers=2)
"""


@contextmanager
def service() -> Iterator[tuple[subprocess.Popen[str], RemoteEnvironment]]:
    process = subprocess.Popen([sys.executable, "-c", SERVICE], cwd=ROOT, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    try:
        line = process.stderr.readline()
        assert line.startswith("listening on "), line
        address = line.removeprefix("listening on ").strip()
        yield process, RemoteEnvironment(address, "analytical", retry=Retry(tries=2, first_s=0.01))
    finally:
        process.kill()
        process.wait()
        process.stderr.close()


def test_killed_in_the_middle_and_gone_on_with(tmp_path: Path) -> None:
    folder = tmp_path / "killed"
    with service() as (process, remote):
        finetune(finetuning(STEPS), tmp_path / "through", remote)

        def kill(progress: Progress) -> None:
            if progress.step == 2:
                process.kill()
                process.wait()

        with pytest.raises(EnvironmentFailedError) as error:
            finetune(finetuning(STEPS), folder, remote, on_progress=kill)
    sentence = str(error.value)
    assert re.match(
        r"RemoteEnvironment for '.*' on 'mcm-2x2' failed at batch \d+: the environment at ", sentence
    )
    assert remote.address in sentence
    assert sentence.endswith(f"training stopped, {str(folder)!r} holds step 2 of {STEPS} to go on from.")
    assert "\n" not in sentence
    found = load_checkpoint(folder)
    assert found is not None
    assert found.progress["step"] == 2
    assert found.request["environment"] == "RemoteEnvironment (analytical)"  # another is another run
    with service() as (_, remote):  # at another address
        assert finetune(finetuning(STEPS), folder, remote).is_complete
    assert ended_alike(folder, tmp_path / "through")
