"""A worker process that stops in the middle of what it says."""

from __future__ import annotations

import socket
import subprocess
import sys
from multiprocessing.connection import Connection

import pytest

from go_opt.errors import ServiceError
from go_opt.service.workers import process_optimizer as workers
from go_opt.service.workers.process_optimizer import Worker

# The header of a frame, and no body.
HALF = "import os, time; os.write(0, (13).to_bytes(4, 'big') + b'{\"kind\": \"x\"}'); time.sleep(600)"


def test_a_frame_that_begins_and_does_not_end_ends_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers, "FRAME_S", 0.2)
    ours, theirs = socket.socketpair()
    worker = object.__new__(Worker)
    with theirs:
        worker._process = subprocess.Popen([sys.executable, "-c", HALF], stdin=theirs.fileno())
    worker._connection = Connection(ours.detach())
    with pytest.raises(ServiceError, match="ended by SIGKILL"):
        worker.receive(60.0)
    assert not worker.is_alive()
    worker.close()
