"""Clients over every transport, with the services of this process behind them."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import pytest

from go_opt.service.calls.security import Security
from go_opt.service.client import local_client
from go_opt.service.client.client import Client
from go_opt.service.client.local_client import LocalClient
from go_opt.service.jobs.job_process import LocalRunner
from go_opt.service.jobs.manager import JobManager
from go_opt.service.jobs.services import OperationsService, TrainingService
from go_opt.service.jobs.store import DataDirectory
from go_opt.service.transport.credentials import Credentials
from go_opt.service.workers.optimizer import LocalOptimizer, OptimizerService
from tests.certificates import Authority
from tests.serving import serve_in_thread

FAKE_JOB: Final = (sys.executable, "-P", str(Path(__file__).with_name("fake_training.py")))
TRANSPORTS: Final = ("in process", "plain", "TLS", "mutual TLS with token")
TOKEN: Final = "0123456789abcdef"


@contextmanager
def served(folder: Path, security: Security) -> Iterator[str]:
    """All that a client asks, in this process; jobs search instead of training."""
    manager = JobManager(DataDirectory(folder), LocalRunner(FAKE_JOB))
    services = (
        OptimizerService(LocalOptimizer(), find_policy=manager.find_policy),
        TrainingService(manager),
        OperationsService(manager),
    )
    try:
        with serve_in_thread(services, security=security) as address:
            yield address
    finally:
        manager.close()


@contextmanager
def connected(transport: str, folder: Path) -> Iterator[Any]:
    """A client over the transport, and what it talks to."""
    if transport == "in process":
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(local_client, "LocalRunner", lambda: LocalRunner(FAKE_JOB))
            with LocalClient(folder=folder) as here:
                yield here
        return
    authority = Authority(folder)
    mine, its = authority.issue("client"), authority.issue("service")
    (folder / "tokens").write_text(f"tester {TOKEN}\n", "ascii")
    (folder / "tokens").chmod(0o600)
    security, credentials = {
        "plain": (Security(), Credentials()),
        "TLS": (Security(its.cert, its.key), Credentials(tls_ca=authority.cert)),
        "mutual TLS with token": (
            Security(its.cert, its.key, authority.cert, folder / "tokens"),
            Credentials(tls_ca=authority.cert, tls_cert=mine.cert, tls_key=mine.key, token=TOKEN),
        ),
    }[transport]
    with served(folder / "data", security) as address, Client(address, credentials=credentials) as client:
        yield client


@pytest.fixture(scope="module", params=TRANSPORTS)
def client(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """What has the methods of a client."""
    with connected(request.param, tmp_path_factory.mktemp("service")) as connection:
        yield connection


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A plain service."""
    with served(tmp_path_factory.mktemp("plain"), Security()) as served_at:
        yield served_at
