"""kill -9 of what works for a service: a worker in the middle of a call, a policy's process, both."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import go_opt
from go_opt.errors import ServiceError
from tests.service.faults.served import Served, serving
from tests.service.jobs.conftest import eventually

GRAPH = go_opt.load("zoo:bert_base")


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with serving(tmp_path_factory.mktemp("service")) as service:
        yield service


def kill(served: Served, kind: str) -> None:
    """Kill all of a kind, and wait until the last has ended."""
    killed = served.processes(kind)
    for pid in killed:
        os.kill(pid, signal.SIGKILL)
    eventually(lambda: all(map(has_ended, killed)))


def has_ended(pid: int) -> bool:
    """Also where its parent has not asked yet."""
    try:
        return Path(f"/proc/{pid}/stat").read_text("ascii").rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


def test_a_worker_in_mid_call(served: Served) -> None:
    with served.client() as client:
        stream = client.optimize_stream(GRAPH, budget_s=60)
        next(stream)
        kill(served, "process_optimizer")  # that of the call, and the spare
        with pytest.raises(ServiceError, match=r"the process of this call ended by SIGKILL; .* try again"):
            for _ in stream:
                pass
    # The spare may still be on its way out, and be given to a call that is then told the same.
    with served.client(retry=go_opt.Retry()) as client:
        assert client.optimize(GRAPH, max_evaluations=2).plan is not None
    eventually(lambda: served.reading("lane_running") == 0)
    eventually(lambda: len(served.processes("process_optimizer")) == 2)


def test_a_client_that_tries_again_does_not_notice(served: Served) -> None:
    with served.client(retry=go_opt.Retry()) as client, ThreadPoolExecutor() as pool:
        answer = pool.submit(client.optimize, GRAPH, budget_s=3, seed=7)
        eventually(lambda: served.reading("lane_running", lane="search") == 1)
        kill(served, "process_optimizer")
        assert answer.result().plan is not None
