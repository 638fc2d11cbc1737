"""kill -9 of a service: what it acknowledged is there after the restart, and nothing of it goes on alone."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import go_opt
from go_opt.errors import NotFoundError, ServiceError
from go_opt.service.client.client import Client
from go_opt.service.client.operation import Operation
from tests.service.faults.served import HERE, NO_WORKERS, PATIENCE_S, Served, folder_of, serving
from tests.service.faults.torn_job import TORN
from tests.service.jobs import fake_job
from tests.service.jobs.conftest import eventually

SAMPLES_PER_STEP = 20
STEPS = 4
TORN_JOB = HERE / "torn_job.py"


def pretrain(client: Client, policy: str) -> Operation:
    """A real job; the same request whenever it is asked for."""
    return client.pretrain(
        policy,
        graphs=["zoo:din", "zoo:two_tower_retrieval"],
        target="mcm-2x2",
        samples=SAMPLES_PER_STEP * STEPS,
        lessons=["placement"],
        most_ops=60,
        request_id=f"request of {policy}".replace(" ", "-"),
    )


def test_a_killed_training_ends_as_if_nothing_had_been(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with serving(tmp_path, data=data, job=TORN_JOB, env={**NO_WORKERS, "GO_OPT_TEST_TEARS": "1"}) as served:
        with served.client() as client:
            killed, through = pretrain(client, "killed"), pretrain(client, "through")
        folder = folder_of(data, killed)
        eventually((folder / TORN).exists, PATIENCE_S)  # killed in the writing of a checkpoint
    assert len(list(folder.glob(".checkpoint.*.tmp"))) == 1
    with serving(tmp_path, data=data, job=TORN_JOB, env=NO_WORKERS) as served, served.client() as client:
        assert pretrain(client, "killed").name == killed.name
        at_step = client.operation(killed.name).latest.checkpoint_step
        checkpoint = folder / "checkpoint.safetensors"
        before = checkpoint.stat().st_mtime_ns
        eventually(lambda: checkpoint.stat().st_mtime_ns != before, PATIENCE_S)  # killed in a step
        assert at_step <= 2
    with serving(tmp_path, data=data, job=TORN_JOB, env=NO_WORKERS) as served, served.client() as client:
        ended = [client.operation(job.name).wait(PATIENCE_S) for job in (killed, through)]
        assert [job.state for job in ended] == ["SUCCEEDED"] * 2
        assert [job.attempts for job in ended] == [3, 1]
        assert [job.step for job in ended] == [STEPS] * 2
    policies = [folder_of(data, job) / "policy.safetensors" for job in (killed, through)]
    assert policies[0].read_bytes() == policies[1].read_bytes()
    assert not list(folder.glob(".*.tmp"))


def test_every_job_that_was_acknowledged_is_there(tmp_path: Path) -> None:
    data, most, last_in_time = tmp_path / "data", 60, 40
    acknowledged: dict[str, str] = {}
    enough, killed = threading.Event(), threading.Event()

    def ask(client: Client, number: int) -> None:
        if number >= last_in_time:  # of a service that is gone
            killed.wait()
        with suppress(ServiceError):
            acknowledged[f"p{number}"] = a_waiting_job(client, f"p{number}").name
        if len(acknowledged) >= most // 3:
            enough.set()

    with (
        serving(tmp_path, data=data, env=NO_WORKERS) as served,
        served.client() as client,
        ThreadPoolExecutor(8) as pool,
    ):
        for number in range(most):
            pool.submit(ask, client, number)
        assert enough.wait(60)
        served.kill()
        killed.set()
    assert most // 3 <= len(acknowledged) <= last_in_time
    with serving(tmp_path, data=data, env=NO_WORKERS) as served, served.client() as client:
        listed = {job.latest.policy: job.name for job in client.list_operations()}
        assert acknowledged.items() <= listed.items()
        again = {f"p{number}": a_waiting_job(client, f"p{number}").name for number in range(most)}
        assert listed.items() <= again.items()
        assert len(client.list_operations()) == len(set(again.values())) == most
        runs, cancelled, deleted = (client.operation(again[f"p{number}"]) for number in (0, 1, 2))
        cancelled.cancel()
        deleted.cancel()
        deleted.wait(60)
        deleted.delete()
    with serving(tmp_path, data=data, env=NO_WORKERS) as served, served.client() as client:
        left = {job.name: job.latest for job in client.list_operations()}
        assert len(left) == most - 1
        ended = client.operation(cancelled.name).wait(60)  # it may have been the one that ran
        assert ended.state == "CANCELLED"
        with suppress(NotFoundError):
            client.operation(deleted.name)
            raise AssertionError("a deleted job is back.")
        for name in left:
            if name != runs.name:
                client.operation(name).cancel()
        (folder_of(data, runs) / fake_job.GO).parent.mkdir(exist_ok=True)
        (folder_of(data, runs) / fake_job.GO).touch()
        assert client.operation(runs.name).wait(60).state == "SUCCEEDED"


def a_waiting_job(client: Client, policy: str) -> Operation:
    return client.pretrain(
        policy, graphs=["zoo:din"], target="mcm-2x2", seed=fake_job.WAITS, request_id=f"request-{policy}"
    )


def test_no_process_is_left(tmp_path: Path) -> None:
    with serving(tmp_path, data=tmp_path / "data") as served, served.client() as client:
        job = a_waiting_job(client, "mine")
        eventually((folder_of(tmp_path / "data", job) / fake_job.STANDS).exists)
        stream = client.optimize_stream(go_opt.load("zoo:bert_base"), budget_s=60)
        next(stream)
        eventually(lambda: len(of_kinds(served)) == 3)
        served.kill()  # waits until none is left
        with suppress(ServiceError):
            for _ in stream:
                pass
            raise AssertionError("the stream ended well.")


def of_kinds(served: Served) -> set[str]:
    kinds = ("serve.py", "process_optimizer", "fake_job.py")
    return {kind for kind in kinds if served.processes(kind)}
