"""Jobs that train: killed at any moment, what they leave is what they would have left."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from google.rpc import code_pb2, status_pb2

from go_opt.agents.policy.network import save_policy, untrained
from go_opt.env import load_target, load_zoo
from go_opt.model.codecs.wire import graph_to_proto, plan_from_proto
from go_opt.model.plan import Plan
from go_opt.proto import plan_pb2, training_pb2
from go_opt.service.jobs.job import CANCELLED, FAILED, RUNNING, SUCCEEDED, Job, NewJob, operation
from go_opt.service.jobs.job_process import JobProcess, LocalRunner
from go_opt.service.jobs.manager import JobManager
from go_opt.service.jobs.store import DataDirectory
from go_opt.solver.verify.verifier import verify
from tests.service.jobs.conftest import ended, eventually
from tests.service.jobs.small_job import CONFIG

SMALL_JOB = (sys.executable, "-P", str(Path(__file__).with_name("small_job.py")))
STEPS = 6
PATIENCE_S = 400.0  # a process of a job takes seconds on a machine of its own, and minutes on a busy one
TARGET = plan_pb2.Target(name="mcm-2x2")
GRAPH = load_zoo("din")


class Process(JobProcess):
    def has_ended(self) -> bool:
        return self._process.poll() is not None


class Runner(LocalRunner):
    """Remembers what it started."""

    def __init__(self) -> None:
        self.started: list[Process] = []

    def start(self, new: NewJob, folder: Path) -> Process:
        self.started.append(Process(SMALL_JOB, new, folder))
        return self.started[-1]


@pytest.fixture(autouse=True, scope="module")
def compilation_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """For the processes of the jobs."""
    with pytest.MonkeyPatch.context() as patch:
        if "JAX_COMPILATION_CACHE_DIR" not in os.environ:
            patch.setenv("JAX_COMPILATION_CACHE_DIR", str(tmp_path_factory.mktemp("jax")))
        yield


@pytest.fixture(scope="module")
def start_policy(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    path = tmp_path_factory.mktemp("policy") / "start.safetensors"
    save_policy(path, untrained(CONFIG, 0), {})
    return path.read_bytes()


def finetuning(start_policy: bytes, **changes: Any) -> NewJob:
    options: dict[str, Any] = {"graph": graph_to_proto(GRAPH), "target": TARGET, "samples": 20 * STEPS}
    message = training_pb2.FinetuneRequest(
        **({"policy": "mine", "lessons": ["placement"]} | options | changes)
    )
    return NewJob(training_pb2.JOB_KIND_FINETUNE, "mine", "", message.SerializeToString(), start_policy)


def left(folder: Path) -> tuple[bytes, list[dict[str, float]]]:
    """Policy and metrics, without what depends on the clock."""
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text("utf-8").splitlines()]
    for line in lines:
        del line["elapsed_s"], line["samples_per_s"]
    return (folder / "policy.safetensors").read_bytes(), lines


def run(data: Path, new: NewJob, kills_after_s: Sequence[float]) -> tuple[Path, Job]:
    """Run a job that is killed so long after the next checkpoint of each attempt."""
    runner, known = Runner(), None
    with closing(JobManager(DataDirectory(data), runner)) as jobs:
        job_id = jobs.create(new).id
        folder = data / "jobs" / job_id
        for i, after_s in enumerate(kills_after_s):
            eventually(partial(has_another, folder, known), PATIENCE_S)
            time.sleep(after_s)
            runner.started[i].kill()
            eventually(runner.started[i].has_ended)
            known = version(folder)
        return folder, ended(jobs, job_id, PATIENCE_S)


def test_killed_and_gone_on_with(tmp_path: Path, start_policy: bytes) -> None:
    through, _ = run(tmp_path / "through", finetuning(start_policy), ())
    killed, job = run(tmp_path / "killed", finetuning(start_policy), (0.004,))
    assert (job.state, job.attempts) == (SUCCEEDED, 2)
    assert left(killed) == left(through)
    check_plan(operation(job))


def has_another(folder: Path, known: tuple[int, int] | None) -> bool:
    return version(folder) != known


def version(folder: Path) -> tuple[int, int] | None:
    try:
        status = (folder / "checkpoint.safetensors").stat()
    except FileNotFoundError:
        return None
    return status.st_ino, status.st_mtime_ns


def check_plan(message: Any) -> None:
    result = training_pb2.TrainingResult()
    assert message.response.Unpack(result)
    plan: Plan = plan_from_proto(result.best_plan)
    assert verify(GRAPH, load_target("mcm-2x2"), plan) == []
    assert 0 < result.best_interval_s < 2 * result.reference_interval_s
    assert (result.progress.step, result.progress.checkpoint_step) == (STEPS, STEPS)


def test_a_damaged_checkpoint(tmp_path: Path, start_policy: bytes) -> None:
    with closing(DataDirectory(tmp_path)) as data:
        job = data.store.create(finetuning(start_policy))
        data.store.update(job.id, state=RUNNING, attempts=1)
        data.folder(job.id).mkdir()
        (data.folder(job.id) / "checkpoint.safetensors").write_bytes(b"\xa5" * 1000)
    with closing(JobManager(DataDirectory(tmp_path), Runner())) as jobs:
        status = failure(jobs, job.id)
    assert status.code == code_pb2.ABORTED
    assert status.message.startswith(f"go-opt checkpoint file '{job.id}/checkpoint.safetensors' is ")
    assert "\n" not in status.message


def test_an_environment_that_is_not_there(tmp_path: Path, start_policy: bytes) -> None:
    environment = training_pb2.TrainingEnvironment(address="127.0.0.1:1")
    with closing(JobManager(DataDirectory(tmp_path), Runner())) as jobs:
        status = failure(jobs, jobs.create(finetuning(start_policy, environment=environment)).id)
    assert status.code == code_pb2.ABORTED
    assert "127.0.0.1:1" in status.message
    assert str(tmp_path) not in status.message


def test_cancelled_between_steps(tmp_path: Path, start_policy: bytes) -> None:
    with closing(JobManager(DataDirectory(tmp_path), Runner())) as jobs:
        job_id = jobs.create(finetuning(start_policy, samples=1_000_000)).id
        eventually(lambda: version(tmp_path / "jobs" / job_id) is not None, PATIENCE_S)
        jobs.cancel(job_id)
        assert ended(jobs, job_id, PATIENCE_S).state == CANCELLED
        assert jobs.find_policy("mine").read_bytes()


def failure(jobs: JobManager, job_id: str) -> status_pb2.Status:
    job = ended(jobs, job_id, PATIENCE_S)
    assert job.state == FAILED
    assert job.error is not None
    return status_pb2.Status.FromString(job.error)
