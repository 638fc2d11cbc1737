"""The store: what was acknowledged survives, and what is damaged is refused and left alone."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from go_opt.errors import AlreadyExistsError, InvalidInputError, NotFoundError, ServiceError
from go_opt.service.jobs.job import FAILED, QUEUED, RUNNING
from go_opt.service.jobs.store import DataDirectory, JobStore
from tests.service.jobs.conftest import new_job

ROOT = Path(__file__).parents[3]
# Creates jobs and says so, until it is killed.
WRITER = """
import sys
from itertools import count
from go_opt.service.jobs.store import JobStore
from tests.service.jobs.conftest import new_job

store = JobStore(sys.argv[1])
for i in count():
    print(store.create(new_job(i, f"policy-{i}")).id, flush=True)
"""


@pytest.fixture
def store(tmp_path: Path) -> Iterator[JobStore]:
    with closing(JobStore(tmp_path / "jobs.sqlite3")) as store:
        yield store


def test_a_job_comes_back(store: JobStore) -> None:
    new = new_job(3, request_id="id")
    job = store.create(new)
    assert (job.number, job.state, job.attempts, job.policy) == (1, QUEUED, 0, "mine")
    assert store.job(job.id) == store.find(policy="mine") == store.find(request_id="id") == job
    assert store.request(job.id) == new
    assert store.find(policy="id", request_id="mine") is None
    store.update(job.id, state=RUNNING, progress=b"p")
    assert (store.job(job.id).state, store.job(job.id).progress) == (RUNNING, b"p")
    store.delete(job.id)
    for gone in (store.job, store.request):
        with pytest.raises(NotFoundError, match=f"no operation 'operations/{job.id}'"):
            gone(job.id)


@pytest.mark.parametrize(
    ("policy", "request_id", "field"), [("mine", "", "policy"), ("other", "id", "request_id")]
)
def test_names_are_given_once(store: JobStore, policy: str, request_id: str, field: str) -> None:
    store.create(new_job(0, request_id="id"))
    with pytest.raises(AlreadyExistsError) as refused:
        store.create(new_job(0, policy, request_id))
    assert refused.value.field == field


def test_no_request_id_is_not_one(store: JobStore) -> None:
    for policy in "ab":
        store.create(new_job(0, policy))


def test_pages(store: JobStore) -> None:
    for i in range(5):
        store.update(store.create(new_job(i, f"p{i}")).id, state=FAILED if i % 2 else QUEUED)
    assert [job.number for job in store.page(None, 3)] == [5, 4, 3]
    assert [job.number for job in store.page(3, 3)] == [2, 1]
    assert [job.number for job in store.in_states((QUEUED,))] == [1, 3, 5]


def test_what_was_acknowledged_survives_a_kill(tmp_path: Path) -> None:
    path = tmp_path / "jobs.sqlite3"
    command = [sys.executable, "-c", WRITER, str(path)]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as writer:
        assert writer.stdout is not None
        acknowledged = [writer.stdout.readline().strip() for _ in range(20)]
        writer.kill()
        acknowledged += writer.stdout.read().split("\n")[:-1]
    with closing(JobStore(path)) as store:
        stored = [job.id for job in store.in_states((QUEUED,))]
        assert stored[: len(acknowledged)] == acknowledged


def test_a_full_disk(store: JobStore) -> None:
    job = store.create(new_job(0))
    store._connection.execute("PRAGMA max_page_count = 1")
    with pytest.raises(ServiceError, match="cannot store or read its jobs: database or disk is full"):
        store.create(new_job(0, "x" * 2**20))
    assert store.page(None, 9) == [job]


def overwrite(at: int) -> Callable[[bytes], bytes]:
    return lambda data: data[:at] + b"\xa5" * 3000 + data[at + 3000 :]


DAMAGE: dict[str, Callable[[bytes], bytes]] = {
    "header": overwrite(0),
    "first page": overwrite(100),
    "a later page": overwrite(2 * 4096),
    "a letter in a row": lambda data: data.replace(b"policy-33", b"policy-3s"),
    "half of it": lambda data: data[: len(data) // 2 + 100],
    "text": lambda data: b"no database at all, but some text of a few words",
}


@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE.keys())
def test_a_damaged_store_is_refused_and_left_alone(tmp_path: Path, damage: Callable[[bytes], bytes]) -> None:
    path = tmp_path / "jobs.sqlite3"
    with closing(JobStore(path)) as store:
        for i in range(50):
            store.create(new_job(i, f"policy-{i}"))
    damaged = damage(path.read_bytes())
    path.write_bytes(damaged)
    for _ in range(2):
        with pytest.raises(InvalidInputError) as refused:
            DataDirectory(tmp_path)
        assert str(refused.value).startswith(f"job store '{path}' cannot be used: ")
        assert "\n" not in str(refused.value)
        assert refused.value.field == "data"
        assert path.read_bytes() == damaged


@pytest.mark.parametrize("version", [1, 7])
def test_another_version_is_refused(tmp_path: Path, version: int) -> None:
    JobStore(tmp_path / "jobs.sqlite3").close()
    with closing(sqlite3.connect(tmp_path / "jobs.sqlite3")) as connection:
        connection.execute(f"PRAGMA user_version = {version}")
    with pytest.raises(InvalidInputError, match=f"is of version {version}, this go-opt reads version 2"):
        JobStore(tmp_path / "jobs.sqlite3")


def test_the_database_of_another_program_is_refused(tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / "jobs.sqlite3")) as connection:
        connection.execute("CREATE TABLE mine (x)")
    with pytest.raises(InvalidInputError, match="it is another program's database"):
        JobStore(tmp_path / "jobs.sqlite3")


def test_a_lost_store_is_not_replaced(tmp_path: Path) -> None:
    (tmp_path / "jobs" / "0123456789abcdef").mkdir(parents=True)
    with pytest.raises(InvalidInputError, match="is lost, but not the jobs' folders"):
        DataDirectory(tmp_path)
    assert not (tmp_path / "jobs.sqlite3").exists()


@pytest.mark.parametrize("place", ["file", "file/below"])
def test_a_place_that_cannot_be_used(tmp_path: Path, place: str) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(InvalidInputError, match="cannot be"):
        DataDirectory(tmp_path / place)
