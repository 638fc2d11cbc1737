"""Damaged files under a service: one clear sentence, what is damaged is left alone, and so is all else."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import numpy as np
import pytest

import go_opt
from go_opt.agents.training.checkpoint import Checkpoint, save_checkpoint
from go_opt.errors import GoOptError, NotFoundError, PolicyError
from go_opt.proto import plan_pb2, training_pb2
from go_opt.service.jobs.job import RUNNING, SUCCEEDED, NewJob
from go_opt.service.jobs.store import DataDirectory
from tests.service.faults.served import NO_WORKERS, PATIENCE_S, ROOT, START_S, folder_of, serving
from tests.service.jobs import fake_job
from tests.service.jobs.conftest import eventually, new_job

Damage = Callable[[bytes], bytes]


def files_of(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@contextmanager
def started(data: Path) -> Iterator[subprocess.Popen[str]]:
    command = (
        sys.executable,
        "-P",
        "-m",
        "go_opt.cli",
        "serve",
        "--address",
        "127.0.0.1:0",
        "--workers",
        "1",
    )
    with subprocess.Popen(
        [*command, "--data-dir", str(data)],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def refusal(data: Path) -> str:
    """What a service that does not start says, once in a line."""
    with started(data) as process:
        _, said = process.communicate(timeout=START_S)
    assert process.returncode == 2, said
    assert said.count("\n") == 1, said
    return said


def truncated(data: bytes) -> bytes:
    return data[: len(data) // 2]


def flipped(data: bytes) -> bytes:
    return data[:-2000] + bytes([data[-2000] ^ 4]) + data[-1999:]


def flipped_in_a_row(data: bytes) -> bytes:
    """Of what SQLite has no idea: a letter of a name."""
    assert data.count(b"policy-33") >= 1
    return data.replace(b"policy-33", b"policy-3s")


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (truncated, "cannot be used: "),
        (flipped_in_a_row, "it is damaged"),
        (lambda data: b"not a database, but a few words of text" * 9, "file is not a database"),
        (lambda data: data[:60] + (7).to_bytes(4, "big") + data[64:], "is of version 7"),
        (lambda data: b"", "is lost, but not the jobs' folders"),
    ],
    ids=["truncated", "flipped", "text", "version", "empty"],
)
def test_a_damaged_store(tmp_path: Path, damage: Damage, words: str) -> None:
    with closing(DataDirectory(tmp_path)) as data:
        for i in range(50):
            job = data.store.create(new_job(i, f"policy-{i}"))
        data.folder(job.id).mkdir()
    store = tmp_path / "jobs.sqlite3"
    store.write_bytes(damage(store.read_bytes()))
    before = files_of(tmp_path)
    said = refusal(tmp_path)
    assert str(store) in said
    assert words in said
    assert before.items() <= files_of(tmp_path).items()


def test_a_second_service_on_the_same_data(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with serving(tmp_path, data=data, env=NO_WORKERS) as served, served.client() as client:
        job = client.pretrain("mine", graphs=["zoo:din"], target="mcm-2x2", seed=fake_job.WAITS)
        eventually((folder_of(data, job) / fake_job.STANDS).exists)
        assert "is in use by another service" in refusal(data)
        (folder_of(data, job) / fake_job.GO).touch()
        assert (job.wait(60).state, job.latest.attempts) == ("SUCCEEDED", 1)


def test_a_store_that_is_damaged_while_it_is_used(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with serving(tmp_path, "--jobs", "1", data=data) as served, served.client() as client:
        client.pretrain("mine", graphs=["zoo:din"], target="mcm-2x2", seed=fake_job.WAITS)
        for path in data.glob("jobs.sqlite3*"):
            with path.open("r+b") as file:
                file.write(b"\xa5" * path.stat().st_size)
        refusals = []
        for number in range(3):
            try:
                client.pretrain(f"another-{number}", graphs=["zoo:din"], target="mcm-2x2")
            except GoOptError as refused:  # unless the pages it needs were read before
                refusals.append(str(refused))
        assert all("the service cannot store or read its jobs: " in refusal for refusal in refusals)
        assert client.optimize(go_opt.load("zoo:din"), max_evaluations=2).plan is not None
        served.ends_within_s()
        assert "Traceback" not in served.log()
    assert "cannot be used" in refusal(data)


def a_pretraining(policy: str) -> NewJob:
    message = training_pb2.PretrainRequest(
        policy=policy,
        zoo_graphs=["din"],
        target=plan_pb2.Target(name="mcm-2x2"),
        samples=128,
        lessons=["placement"],
        most_ops=60,
    )
    return NewJob(training_pb2.JOB_KIND_PRETRAIN, policy, "", message.SerializeToString())


def test_a_damaged_checkpoint_beside_a_sound_job(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with closing(DataDirectory(data)) as directory:
        job = directory.store.create(a_pretraining("damaged"))
        directory.store.update(job.id, state=RUNNING, attempts=1)
        path = directory.folder(job.id) / "checkpoint.safetensors"
        save_checkpoint(path.parent, Checkpoint({}, {"step": 3}, {"a": np.ones(10_000, np.float32)}))
        damaged = flipped(path.read_bytes())
        path.write_bytes(damaged)
        directory.store.create(a_pretraining("sound"))
    job_program = ROOT / "tests/service/jobs/small_job.py"
    serves = serving(tmp_path, "--jobs", "2", data=data, job=job_program, env=NO_WORKERS)
    with serves as served, served.client() as client:
        jobs = {job.latest.policy: job for job in client.list_operations()}
        with pytest.raises(PolicyError) as failed:
            jobs["damaged"].result(PATIENCE_S)
        assert "/checkpoint.safetensors' is " in str(failed.value)
        assert "\n" not in str(failed.value)
        assert jobs["sound"].wait(PATIENCE_S).state == "SUCCEEDED"
    assert path.read_bytes() == damaged


def test_policies_that_are_not_whole(tmp_path: Path) -> None:
    data = tmp_path / "data"
    graph = go_opt.load("zoo:din")
    with closing(DataDirectory(data)) as directory:
        for name, content in (("half", b"\x10" * 100), ("empty", b""), ("missing", None)):
            job = directory.store.create(new_job(0, name))
            directory.store.update(job.id, state=SUCCEEDED, result=b"")
            folder = directory.folder(job.id)
            folder.mkdir()
            (folder / ".policy.safetensors.0123.tmp").write_bytes(b"\x10" * 100)
            if content is not None:
                (folder / "policy.safetensors").write_bytes(content)
    with serving(tmp_path, data=data) as served, served.client() as client:
        for name in ("half", "empty"):
            with pytest.raises(PolicyError) as refused:
                client.optimize(graph, budget_s=2, policy=name)
            assert "\n" not in str(refused.value)
            assert str(tmp_path) not in str(refused.value)
        with pytest.raises(NotFoundError, match="there is no policy 'missing'"):
            client.optimize(graph, budget_s=2, policy="missing")
        assert client.optimize(graph, max_evaluations=2).plan is not None
