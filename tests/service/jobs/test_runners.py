"""What every runner must do, on processes that train nothing."""

from __future__ import annotations

import os
import signal
import sys
import threading
import warnings
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest
from google.longrunning import operations_pb2
from google.rpc import code_pb2

from go_opt.errors import InvalidInputError
from go_opt.proto import training_pb2
from go_opt.service.jobs.job import Attempt, NewJob
from go_opt.service.jobs.job_process import LocalRunner
from go_opt.service.jobs.ray_runner import RayRunner
from tests.service.jobs import fake_job
from tests.service.jobs.conftest import FAKE_JOB, eventually, new_job

HAS_RAY = find_spec("ray") is not None
needs_ray = pytest.mark.skipif(not HAS_RAY, reason="the extra ray is not installed")


@pytest.fixture(scope="module", params=["local", pytest.param("ray", marks=needs_ray)])
def runner(request: pytest.FixtureRequest) -> Iterator[LocalRunner]:
    if request.param == "local":
        made: LocalRunner = LocalRunner(FAKE_JOB)
    else:
        with warnings.catch_warnings():  # of Ray and what it starts
            warnings.simplefilter("ignore")
            made = RayRunner(num_cpus=0, command=FAKE_JOB)
    yield made
    made.close()


def spec(folder: Path, seed: int) -> tuple[NewJob, Path]:
    return new_job(seed), folder / "job"


class Waiting:
    """Waits for an attempt in a thread of its own."""

    def __init__(self, attempt: Attempt) -> None:
        self.attempt = attempt
        self.steps: list[int] = []
        self.last: operations_pb2.Operation | None = None
        self._thread = threading.Thread(target=self._wait)
        self._thread.start()

    def _wait(self) -> None:
        self.last = self.attempt.wait(lambda progress: self.steps.append(progress.step))

    def end(self) -> operations_pb2.Operation | None:
        self._thread.join(60)
        assert not self._thread.is_alive()
        return self.last


def pid(folder: Path) -> int:
    return int((folder / "job" / "pid").read_text())


def is_gone(folder: Path) -> bool:
    try:
        os.kill(pid(folder), 0)
    except ProcessLookupError:
        return True
    return Path(f"/proc/{pid(folder)}/stat").read_text().split()[2] == "Z"  # nobody asked how it ended


def test_to_the_end(runner: LocalRunner, tmp_path: Path) -> None:
    waiting = Waiting(runner.start(*spec(tmp_path, fake_job.RUNS)))
    last = waiting.end()
    assert last is not None
    assert last.done
    result = training_pb2.TrainingResult()
    assert last.response.Unpack(result)
    assert result.best_interval_s == 0.5
    assert waiting.steps == sorted(waiting.steps)
    assert (tmp_path / "job" / "policy.safetensors").read_bytes() == b"trained from the start"


def test_told_to_stop_at_once(runner: LocalRunner, tmp_path: Path) -> None:
    attempt = runner.start(*spec(tmp_path, fake_job.RUNS))
    attempt.stop()
    last = Waiting(attempt).end()
    assert last is not None
    assert last.error.code == code_pb2.CANCELLED
    attempt.stop()  # too late, and no harm
    attempt.kill()


def test_told_to_stop(runner: LocalRunner, tmp_path: Path) -> None:
    waiting = Waiting(runner.start(*spec(tmp_path, fake_job.WAITS)))
    eventually((tmp_path / "job" / fake_job.STANDS).exists)
    waiting.attempt.stop()
    last = waiting.end()
    assert last is not None
    assert (last.error.code, last.error.message) == (
        code_pb2.CANCELLED,
        "the job was stopped after step 3 of 4.",
    )
    assert (tmp_path / "job" / "policy.safetensors").read_bytes() == b"stopped"


def test_a_signal_is_a_wish_to_stop(runner: LocalRunner, tmp_path: Path) -> None:
    waiting = Waiting(runner.start(*spec(tmp_path, fake_job.WAITS)))
    eventually((tmp_path / "job" / fake_job.STANDS).exists)
    os.kill(pid(tmp_path), signal.SIGTERM)
    last = waiting.end()
    assert last is not None
    assert last.error.code == code_pb2.CANCELLED


def test_killed(runner: LocalRunner, tmp_path: Path) -> None:
    waiting = Waiting(runner.start(*spec(tmp_path, fake_job.IS_DEAF)))
    eventually((tmp_path / "job" / fake_job.STANDS).exists)
    waiting.attempt.kill()
    assert waiting.end() is None
    eventually(lambda: is_gone(tmp_path))


def test_cut_off_and_gone_on_with(runner: LocalRunner, tmp_path: Path) -> None:
    waiting = Waiting(runner.start(*spec(tmp_path, fake_job.WAITS)))
    eventually((tmp_path / "job" / fake_job.STANDS).exists)
    os.kill(pid(tmp_path), signal.SIGKILL)
    assert waiting.end() is None
    (tmp_path / "job" / fake_job.GO).touch()
    again = Waiting(runner.start(*spec(tmp_path, fake_job.WAITS)))
    last = again.end()
    assert last is not None
    assert last.HasField("response")
    assert min(again.steps) > 1


@pytest.mark.parametrize(
    ("seed", "code", "message"),
    [
        (fake_job.FAILS, code_pb2.ABORTED, "the board is on fire."),
        (fake_job.DISK_IS_FULL, code_pb2.UNAVAILABLE, "'step' cannot be written: No space left on device."),
    ],
)
def test_a_failure(runner: LocalRunner, tmp_path: Path, seed: int, code: int, message: str) -> None:
    last = Waiting(runner.start(*spec(tmp_path, seed))).end()
    assert last is not None
    assert (last.done, last.error.code, last.error.message) == (True, code, message)


def test_what_is_printed_is_kept(tmp_path: Path) -> None:
    command = (sys.executable, "-c", "print(1 / 0)")
    assert Waiting(LocalRunner(command).start(*spec(tmp_path, fake_job.RUNS))).end() is None
    assert "ZeroDivisionError" in (tmp_path / "job" / "log.txt").read_text()


@pytest.mark.skipif(HAS_RAY, reason="Ray is installed")
def test_ray_is_an_extra() -> None:
    with pytest.raises(InvalidInputError, match=r"pip install 'go-opt\[ray\]'"):
        RayRunner()
