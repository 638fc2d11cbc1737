"""A data directory on a full disk: a tmpfs of its own, where the system allows one."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
IN_A_TMPFS = (
    "unshare",
    "--map-root-user",
    "--mount",
    "sh",
    "-c",
    'mount -t tmpfs -o size=4m tmpfs "$0" && exec "$@"',
)
PROGRAM = """
import logging
import shutil
import sys
from pathlib import Path

from go_opt.errors import ServiceError
from go_opt.service.jobs import manager
from go_opt.service.jobs.job import SUCCEEDED
from tests.service.jobs import fake_job
from tests.service.jobs.conftest import eventually, managed, new_job

data = Path(sys.argv[1]) / "data"
ballast = data.parent / "ballast"
manager._FULL_DISK_RETRY_S, manager._STORE_AGAIN_S = 0.1, 0.1
warned = []
logging.getLogger(manager.__name__).addFilter(lambda record: warned.append(record.getMessage()))


def fill() -> None:
    with ballast.open("wb", buffering=0) as file:
        try:
            while True:
                file.write(bytes(4096))
        except OSError:
            pass


# Created until the disk is full: each one is there, or was refused with the reason.
acknowledged = []
with managed(data, running=0, waiting=10**6) as jobs:
    try:
        while True:
            acknowledged.append(jobs.create(new_job(fake_job.RUNS, f"{len(acknowledged)}-{'x' * 50_000}")).id)
    except ServiceError as error:
        assert str(error).endswith("database or disk is full.") or "disk I/O error" in str(error), error
    assert sorted(acknowledged) == sorted(job.id for job in jobs.page(None, -1))
with managed(data, running=0) as jobs:
    assert sorted(acknowledged) == sorted(job.id for job in jobs.page(None, -1))
shutil.rmtree(data)

# A job that cannot write goes on when it can, and ends as it would have.
with managed(data) as jobs:
    job_id = jobs.create(new_job(fake_job.WAITS)).id
    folder = data / "jobs" / job_id
    eventually((folder / fake_job.STANDS).exists)
    fill()
    (folder / fake_job.GO).touch()
    eventually(lambda: len(warned) > 3)
    assert all("o space left on device" in line or "disk is full" in line for line in warned), warned
    assert not jobs.job(job_id).is_ended
    ballast.unlink()
    eventually(lambda: jobs.job(job_id).is_ended)
    assert jobs.job(job_id).state == SUCCEEDED
    assert jobs.find_policy("mine").read_bytes() == b"trained from the start"
print("done")
"""


def test_a_full_disk(tmp_path: Path) -> None:
    try:
        probe = subprocess.run([*IN_A_TMPFS, str(tmp_path), "true"], capture_output=True, check=False)
    except FileNotFoundError:
        pytest.skip("there is no unshare")
    if probe.returncode:
        pytest.skip("no tmpfs can be mounted")
    command = [*IN_A_TMPFS, str(tmp_path), sys.executable, "-c", PROGRAM, str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    assert done.stdout == "done\n", done.stderr
