"""Jobs in processes that train nothing, and waiting for what becomes of them."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import pytest

from go_opt.proto import training_pb2
from go_opt.service.jobs import manager
from go_opt.service.jobs.job import Job, NewJob
from go_opt.service.jobs.job_process import LocalRunner
from go_opt.service.jobs.manager import JobLimits, JobManager
from go_opt.service.jobs.store import DataDirectory

FAKE_JOB: Final = (sys.executable, "-P", str(Path(__file__).with_name("fake_job.py")))


def new_job(seed: int, policy: str = "mine", request_id: str = "") -> NewJob:
    """Of a request that the fake job's process reads the seed of."""
    message = training_pb2.FinetuneRequest(policy=policy, request_id=request_id, seed=seed)
    kind = training_pb2.JOB_KIND_FINETUNE
    return NewJob(kind, policy, request_id, message.SerializeToString(), b"the start")


def eventually(is_so: Callable[[], bool], timeout_s: float = 60.0) -> None:
    """Wait until it is so."""
    end_s = time.monotonic() + timeout_s
    while not is_so():
        assert time.monotonic() < end_s, "it did not become so"
        time.sleep(0.01)


def ended(jobs: JobManager, job_id: str, timeout_s: float = 60.0, owner: str = "") -> Job:
    """The job once it has ended."""
    eventually(lambda: jobs.job(job_id, owner).is_ended, timeout_s)
    return jobs.job(job_id, owner)


@contextmanager
def managed(folder: Path, **limits: float) -> Iterator[JobManager]:
    """Jobs of the data directory, run as fakes; closed as at the end of a service."""
    given = JobLimits(**limits)  # type: ignore[arg-type]
    jobs = JobManager(DataDirectory(folder), LocalRunner(FAKE_JOB), given)
    try:
        yield jobs
    finally:
        jobs.close()


@pytest.fixture(autouse=True)
def soon_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """A job that was cut off is not waited with."""
    monkeypatch.setattr(manager, "_RETRY_RANGE_S", (0.01, 0.01))
    monkeypatch.setattr(manager, "_FULL_DISK_RETRY_S", 0.01)
    monkeypatch.setattr(manager, "_STORE_AGAIN_S", 0.05)
