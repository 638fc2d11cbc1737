"""Jobs from their creation to their end: cut off, cancelled, deleted, given up."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
from google.rpc import code_pb2, status_pb2

from go_opt.errors import (
    EnvironmentFailedError,
    ExhaustedError,
    InvalidInputError,
    NotFoundError,
    PreconditionError,
    ServiceError,
)
from go_opt.proto import training_pb2
from go_opt.service.jobs.job import (
    CANCELLED,
    CANCELLING,
    FAILED,
    QUEUED,
    RUNNING,
    SUCCEEDED,
    Job,
    checkpoint_step,
    operation,
)
from go_opt.service.jobs.job_process import LocalRunner
from go_opt.service.jobs.manager import JobManager
from go_opt.service.jobs.store import DataDirectory, JobStore, lock
from go_opt.service.messages.errors import error_from_status
from tests.service.jobs import fake_job
from tests.service.jobs.conftest import FAKE_JOB, ended, eventually, managed, new_job

ROOT = Path(__file__).parents[3]
# Runs a job that waits, until it is killed.
SERVICE = """
import sys, threading
from pathlib import Path
from tests.service.jobs.conftest import managed, new_job
from tests.service.jobs.fake_job import WAITS

with managed(Path(sys.argv[1])) as jobs:
    print(jobs.create(new_job(WAITS)).id, flush=True)
    threading.Event().wait()
"""


def status(job: Job) -> status_pb2.Status:
    assert job.error is not None
    return status_pb2.Status.FromString(job.error)


def running(jobs: JobManager, data: Path, seed: int, policy: str = "mine") -> str:
    """A job of this seed that has done two steps, and does no third by itself."""
    job_id = jobs.create(new_job(seed, policy)).id
    eventually((folder_of(data, job_id) / fake_job.STANDS).exists)
    return job_id


@contextmanager
def full(data: DataDirectory) -> Iterator[None]:
    """The database may grow no more."""
    connection = data.store._connection
    (most,) = connection.execute("PRAGMA max_page_count").fetchone()
    connection.execute("PRAGMA max_page_count = 1")  # that is, as large as it is
    yield
    connection.execute(f"PRAGMA max_page_count = {most}")


def folder_of(data: Path, job_id: str) -> Path:
    return data / "jobs" / job_id


def test_to_the_end(tmp_path: Path) -> None:
    with managed(tmp_path) as jobs:
        job_ids = [jobs.create(new_job(fake_job.RUNS, policy)).id for policy in ("one", "two")]
        for job_id, policy in zip(job_ids, ("one", "two"), strict=True):
            message = operation(ended(jobs, job_id))
            assert message.name == f"operations/{job_id}"
            assert message.done
            result = training_pb2.TrainingResult()
            assert message.response.Unpack(result)
            assert (result.policy, result.best_interval_s) == (policy, 0.5)
            progress = training_pb2.TrainingProgress()
            assert message.metadata.Unpack(progress)
            assert progress == result.progress
            assert (progress.state, progress.attempts) == (SUCCEEDED, 1)
            assert (progress.step, progress.steps, progress.checkpoint_step) == (4, 4, 4)
            assert progress.create_time.ToNanoseconds() <= progress.start_time.ToNanoseconds()
            assert progress.start_time.ToNanoseconds() < progress.end_time.ToNanoseconds()
            assert jobs.find_policy(policy).read_bytes() == b"trained from the start"
    with managed(tmp_path) as jobs:  # results survive
        assert operation(jobs.job(job_id)) == message


def test_the_job_process_is_cut_off(tmp_path: Path) -> None:
    with managed(tmp_path) as jobs:
        job_id = running(jobs, tmp_path, fake_job.WAITS)
        os.kill(int((folder_of(tmp_path, job_id) / "pid").read_text()), signal.SIGKILL)
        (folder_of(tmp_path, job_id) / fake_job.GO).touch()
        job = ended(jobs, job_id)
        assert (job.state, job.attempts) == (SUCCEEDED, 2)
        assert jobs.find_policy("mine").read_bytes() == b"trained from the start"


def test_the_service_is_killed(tmp_path: Path) -> None:
    command = [sys.executable, "-c", SERVICE, str(tmp_path)]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as service:
        assert service.stdout is not None
        job_id = service.stdout.readline().strip()
        eventually((folder_of(tmp_path, job_id) / fake_job.STANDS).exists)
        service.kill()

    def is_alone() -> bool:
        held = lock(folder_of(tmp_path, job_id) / "lock")
        if held is not None:
            held.close()
        return held is not None

    eventually(is_alone)  # its process does not go on without it
    (folder_of(tmp_path, job_id) / fake_job.GO).touch()
    with managed(tmp_path) as jobs:
        job = ended(jobs, job_id)
        assert (job.state, job.attempts) == (SUCCEEDED, 2)


def test_the_service_drains(tmp_path: Path) -> None:
    with managed(tmp_path, failed_attempts=1) as jobs:
        job_id = running(jobs, tmp_path, fake_job.WAITS)
    with closing(DataDirectory(tmp_path)) as data:
        job = data.store.job(job_id)
        assert (job.state, job.attempts, job.failed_attempts) == (QUEUED, 1, 0)
    (folder_of(tmp_path, job_id) / fake_job.GO).touch()
    with managed(tmp_path, failed_attempts=1) as jobs:
        job = ended(jobs, job_id)
        assert (job.state, job.attempts) == (SUCCEEDED, 2)


def test_a_job_that_crashes_is_given_up(tmp_path: Path) -> None:
    with managed(tmp_path, failed_attempts=2) as jobs:
        job = ended(jobs, jobs.create(new_job(fake_job.CRASHES)).id)
        # The first start got as far as the crash, so it was not in vain.
        assert (job.state, job.attempts) == (FAILED, 3)
        assert status(job).code == code_pb2.INTERNAL
        assert status(job).message == (
            "given up after 2 starts that got no further: the job's process ended before its time."
        )
        with pytest.raises(NotFoundError, match="its job is FAILED"):
            jobs.find_policy("mine")


def test_a_job_that_gets_on_is_not_given_up(tmp_path: Path) -> None:
    with managed(tmp_path, failed_attempts=1) as jobs:
        job = ended(jobs, jobs.create(new_job(fake_job.CRASHES_AND_GETS_ON)).id)
        assert (job.state, job.attempts) == (SUCCEEDED, 1 + fake_job.STEPS)


def test_a_job_whose_service_is_killed_each_time_is_given_up(tmp_path: Path) -> None:
    with closing(DataDirectory(tmp_path)) as data:
        job = data.store.create(new_job(fake_job.RUNS))
        data.store.update(job.id, state=RUNNING, failed_attempts=2, attempts=2)
    with managed(tmp_path, failed_attempts=2) as jobs:
        assert status(ended(jobs, job.id)).code == code_pb2.INTERNAL


def test_the_environment_fails(tmp_path: Path) -> None:
    with managed(tmp_path) as jobs:
        job = ended(jobs, jobs.create(new_job(fake_job.FAILS)).id)
        assert (job.state, job.attempts) == (FAILED, 1)
        assert (status(job).code, status(job).message) == (code_pb2.ABORTED, "the board is on fire.")
        assert isinstance(error_from_status(status(job)), EnvironmentFailedError)


def test_a_job_outlasts_a_full_disk(tmp_path: Path) -> None:
    with managed(tmp_path, failed_attempts=2) as jobs:
        job_id = jobs.create(new_job(fake_job.DISK_IS_FULL)).id
        eventually(lambda: jobs.job(job_id).attempts > 4)
        assert jobs.job(job_id).failed_attempts < 2
        (folder_of(tmp_path, job_id) / fake_job.GO).touch()
        assert ended(jobs, job_id).state == SUCCEEDED


def test_a_job_is_cancelled_on_a_full_disk(tmp_path: Path) -> None:
    with managed(tmp_path, failed_attempts=2) as jobs:
        job_id = jobs.create(new_job(fake_job.DISK_IS_FULL)).id
        eventually(lambda: jobs.job(job_id).attempts > 1)
        jobs.cancel(job_id)
        assert ended(jobs, job_id).state == CANCELLED


def test_the_disk_of_the_store_is_full(tmp_path: Path) -> None:
    data = DataDirectory(tmp_path)
    jobs = JobManager(data, LocalRunner(FAKE_JOB))
    with closing(jobs):
        job_id = running(jobs, tmp_path, fake_job.WAITS)
        with full(data):
            with pytest.raises(ServiceError, match="cannot store or read its jobs: database or disk is full"):
                jobs.create(new_job(fake_job.RUNS, "y" * 2**20))
            # Its process ends, but no one is told so before that is stored.
            (folder_of(tmp_path, job_id) / fake_job.GO).touch()
        assert ended(jobs, job_id).state == SUCCEEDED
        assert [job.id for job in jobs.page(None, 10)] == [job_id]
        assert ended(jobs, jobs.create(new_job(fake_job.RUNS, "other")).id).state == SUCCEEDED


def test_an_end_that_cannot_be_stored_comes_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = DataDirectory(tmp_path)
    is_full, refused, update = threading.Event(), threading.Event(), data.store.update

    def update_or_not(job_id: str, **values: Any) -> None:
        if is_full.is_set() and "ended_ns" in values:
            refused.set()
            raise ServiceError("the disk is full.")
        update(job_id, **values)

    monkeypatch.setattr(data.store, "update", update_or_not)
    is_full.set()
    with closing(JobManager(data, LocalRunner(FAKE_JOB))) as jobs:
        job_id = jobs.create(new_job(fake_job.RUNS)).id
        assert refused.wait(30)
        assert not operation(jobs.job(job_id)).done
        is_full.clear()
        assert ended(jobs, job_id).state == SUCCEEDED
        assert jobs.job(job_id).attempts == 1


def test_cancelled_while_it_waits(tmp_path: Path) -> None:
    with managed(tmp_path) as jobs:
        first, second = (
            running(jobs, tmp_path, fake_job.WAITS),
            jobs.create(new_job(fake_job.RUNS, "second")).id,
        )
        jobs.cancel(second)
        job = jobs.job(second)
        assert (job.state, job.attempts) == (CANCELLED, 0)
        assert status(job).message == "the job was cancelled before it was started."
        with pytest.raises(NotFoundError, match="'second': its job is CANCELLED"):
            jobs.find_policy("second")
        assert not jobs.job(first).is_ended


def test_cancelled_while_it_runs(tmp_path: Path) -> None:
    with managed(tmp_path) as jobs:
        job_id = running(jobs, tmp_path, fake_job.WAITS)
        jobs.cancel(job_id)
        jobs.cancel(job_id)
        job = ended(jobs, job_id)
        assert (job.state, job.attempts) == (CANCELLED, 1)
        assert status(job).code == code_pb2.CANCELLED
        assert status(job).message == "the job was cancelled after step 3 of 4."
        assert jobs.find_policy("mine").read_bytes() == b"stopped"
        jobs.cancel(job_id)
        assert jobs.job(job_id) == job


def test_cancelled_and_deaf(tmp_path: Path) -> None:
    with managed(tmp_path, grace_s=3.0) as jobs:
        job_id = running(jobs, tmp_path, fake_job.IS_DEAF)
        jobs.cancel(job_id)
        job = ended(jobs, job_id)  # killed, and started once more to make a policy of its checkpoint
        assert (job.state, job.attempts) == (CANCELLED, 2)
        assert jobs.find_policy("mine").read_bytes() == b"stopped"


def test_cancelled_when_the_service_is_killed(tmp_path: Path) -> None:
    with closing(DataDirectory(tmp_path)) as data:
        job = data.store.create(new_job(fake_job.RUNS))
        data.store.update(job.id, state=CANCELLING, attempts=1)
    with managed(tmp_path) as jobs:
        assert ended(jobs, job.id).state == CANCELLED


def test_deleted(tmp_path: Path) -> None:
    with managed(tmp_path) as jobs:
        job_id = running(jobs, tmp_path, fake_job.WAITS)
        with pytest.raises(PreconditionError, match=f"operations/{job_id} has not ended"):
            jobs.delete(job_id)
        jobs.cancel(job_id)
        ended(jobs, job_id)
        jobs.delete(job_id)
        assert list((tmp_path / "jobs").iterdir()) == []
        for gone in (lambda: jobs.job(job_id), lambda: jobs.delete(job_id), lambda: jobs.find_policy("mine")):
            with pytest.raises(NotFoundError):
                gone()
        jobs.create(new_job(fake_job.RUNS))  # the name is free


@pytest.mark.parametrize("is_forgotten", [True, False])
def test_killed_while_it_deletes(tmp_path: Path, is_forgotten: bool) -> None:
    with managed(tmp_path) as jobs:
        job_id = ended(jobs, jobs.create(new_job(fake_job.RUNS)).id).id
    folder_of(tmp_path, job_id).rename(folder_of(tmp_path, job_id + ".deleted"))
    if is_forgotten:
        with closing(JobStore(tmp_path / "jobs.sqlite3")) as store:
            store.delete(job_id)
    with managed(tmp_path) as jobs:
        if is_forgotten:
            assert list((tmp_path / "jobs").iterdir()) == []
        else:
            assert jobs.find_policy("mine").is_file()


def test_so_many_wait(tmp_path: Path) -> None:
    with managed(tmp_path, waiting=2) as jobs:
        running(jobs, tmp_path, fake_job.WAITS)
        for policy in ("a", "b"):
            jobs.create(new_job(fake_job.RUNS, policy))
        with pytest.raises(ExhaustedError, match="2 training jobs wait already, the limit is 2") as refused:
            jobs.create(new_job(fake_job.RUNS, "c"))
        assert refused.value.retry_s > 1


def test_several_at_once(tmp_path: Path) -> None:
    with managed(tmp_path, running=2) as jobs:
        for policy in ("a", "b"):
            running(jobs, tmp_path, fake_job.WAITS, policy)
        third = jobs.create(new_job(fake_job.RUNS, "c")).id
        assert [job.state for job in jobs.page(None, 3)] == [QUEUED, RUNNING, RUNNING]
        jobs.cancel(jobs.page(None, 2)[1].id)
        assert ended(jobs, third).state == SUCCEEDED


def test_a_clock_that_jumps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with managed(tmp_path) as jobs:
        job_id = running(jobs, tmp_path, fake_job.WAITS)
        monkeypatch.setattr(time, "time_ns", lambda: 1)  # 1970
        (folder_of(tmp_path, job_id) / fake_job.GO).touch()
        assert ended(jobs, job_id).state == SUCCEEDED
        progress = training_pb2.TrainingProgress()
        operation(jobs.job(job_id)).metadata.Unpack(progress)
        assert progress.end_time.ToNanoseconds() == 1


def test_progress_is_seen_and_stored(tmp_path: Path) -> None:
    with managed(tmp_path) as jobs:
        job_id = running(jobs, tmp_path, fake_job.WAITS)
        eventually(lambda: checkpoint_step(jobs.job(job_id).progress) > 0)
        with closing(sqlite3.connect(tmp_path / "jobs.sqlite3")) as reader:
            stored = lambda: reader.execute("SELECT progress FROM jobs").fetchone()[0]  # noqa: E731
            eventually(lambda: checkpoint_step(stored()) > 0)


def test_watched(tmp_path: Path) -> None:
    with managed(tmp_path) as jobs:
        job_id = running(jobs, tmp_path, fake_job.WAITS)
        told, untold = threading.Event(), threading.Event()
        with jobs.watch(job_id, told.set):
            with jobs.watch(job_id, untold.set):
                pass
            jobs.cancel(job_id)
            assert told.wait(30)
        assert not untold.is_set()


def test_one_service_at_a_time(tmp_path: Path) -> None:
    with managed(tmp_path), pytest.raises(InvalidInputError, match="in use by another service"):
        DataDirectory(tmp_path)
    DataDirectory(tmp_path).close()
