"""Runs each job in a process on this machine."""

from __future__ import annotations

import socket
import subprocess
from collections.abc import Generator, Sequence
from contextlib import closing, suppress
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Final

from google.longrunning import operations_pb2

from go_opt.common.processes import module_command, module_environment
from go_opt.service.jobs.job import STOP, NewJob, OnProgress, last_message

COMMAND: Final = module_command("go_opt.service.jobs.runners.job_process")
LOG_NAME: Final = "log.txt"  # the output of the process and its libraries
_EXIT_S: Final = 30.0  # time to exit after the last message


class LocalRunner:
    """Starts a process per job, at low priority; see :mod:`go_opt.service.jobs.runners.job_process`.

    A job process ends when the runner's process ends, for any reason.

    Args:
      command: replaces the command of the job process, for tests.
    """

    def __init__(self, command: Sequence[str] = COMMAND) -> None:
        self._command = command

    def start(self, new: NewJob, folder: Path) -> JobProcess:
        return JobProcess(self._command, new, folder)

    def close(self) -> None:
        pass


class JobProcess:
    """The process of a job, seen from outside."""

    def __init__(self, command: Sequence[str], new: NewJob, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        ours, theirs = socket.socketpair()
        self._connection = Connection(ours.detach())
        with theirs, (folder / LOG_NAME).open("ab") as log:
            self._process = subprocess.Popen(
                [*command, folder.name, str(new.kind)],
                cwd=folder.parent,
                stdin=theirs.fileno(),
                stdout=log,
                stderr=log,
                env=module_environment(),
                start_new_session=True,  # Ctrl-C is for the service
            )
        with suppress(OSError):  # the process has already ended; wait reports it
            self._connection.send_bytes(new.request)
            self._connection.send_bytes(new.start_policy or b"")

    @property
    def pid(self) -> int:
        return self._process.pid

    def wait(self, on_progress: OnProgress) -> operations_pb2.Operation | None:
        with closing(self.messages()) as messages:
            return last_message(messages, on_progress)

    def messages(self) -> Generator[bytes, None, None]:
        """Yields the messages of the process; afterwards the process has time to exit."""
        try:
            with suppress(EOFError, OSError):
                while True:
                    yield self._connection.recv_bytes()
        finally:
            try:
                self._process.wait(_EXIT_S)
            except subprocess.TimeoutExpired:
                self.kill()
                self._process.wait()
            self._connection.close()

    def stop(self) -> None:
        # Not with a signal, which would kill a process without a handler yet.
        with suppress(OSError):  # ended, or closed after the end
            self._connection.send_bytes(STOP)

    def kill(self) -> None:
        self._process.kill()
