"""Runs each job in a process of this machine."""

from __future__ import annotations

import socket
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import suppress
from multiprocessing.connection import Connection
from typing import Final

from google.longrunning import operations_pb2

from go_opt.common.processes import module_command, module_environment
from go_opt.service.jobs.job import STOP, JobSpec, OnProgress, last_message

COMMAND: Final = module_command("go_opt.service.jobs.runners.job_process")
LOG_NAME: Final = "log.txt"  # what the process and its libraries print
_EXIT_S: Final = 30.0  # to exit after the last message


class LocalRunner:
    """Starts a process per job, at low priority; see :mod:`go_opt.service.jobs.runners.job_process`.

    A process ends as soon as that of its runner has, however that came.

    Args:
      command: what to start instead of go-opt's job process, for tests.
    """

    def __init__(self, command: Sequence[str] = COMMAND) -> None:
        self._command = command

    def start(self, spec: JobSpec) -> JobProcess:
        return JobProcess(self._command, spec)

    def close(self) -> None:
        pass


class JobProcess:
    """The process of a job, seen from outside."""

    def __init__(self, command: Sequence[str], spec: JobSpec) -> None:
        spec.folder.mkdir(parents=True, exist_ok=True)
        ours, theirs = socket.socketpair()
        self._connection = Connection(ours.detach())
        with theirs, (spec.folder / LOG_NAME).open("ab") as log:
            self._process = subprocess.Popen(
                [*command, spec.folder.name, str(spec.kind)],
                cwd=spec.folder.parent,
                stdin=theirs.fileno(),
                stdout=log,
                stderr=log,
                env=module_environment(),
                start_new_session=True,  # Ctrl-C is for the service
            )
        with suppress(OSError):  # it ended at once, as wait will say
            self._connection.send_bytes(spec.request)
            self._connection.send_bytes(spec.start_policy or b"")

    @property
    def pid(self) -> int:
        return self._process.pid

    def wait(self, on_progress: OnProgress) -> operations_pb2.Operation | None:
        try:
            return last_message(self._messages(), on_progress)
        finally:
            try:
                self._process.wait(_EXIT_S)
            except subprocess.TimeoutExpired:
                self.kill()
                self._process.wait()
            self._connection.close()

    def stop(self) -> None:
        # Not by a signal, which would kill a process that has no handler yet.
        with suppress(OSError):  # ended, or closed after the end
            self._connection.send_bytes(STOP)

    def kill(self) -> None:
        self._process.kill()

    def _messages(self) -> Iterator[bytes]:
        with suppress(EOFError, OSError):
            while True:
                yield self._connection.recv_bytes()
