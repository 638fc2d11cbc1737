"""Runs each job in a process of this machine."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from contextlib import suppress
from typing import Final

from google.longrunning import operations_pb2

from go_opt.common.processes import module_command, module_environment
from go_opt.proto import training_pb2
from go_opt.service.jobs.runner import JobSpec, OnProgress
from go_opt.service.jobs.runners.frames import STOP, read_frame, write_frame

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
        with (spec.folder / LOG_NAME).open("ab") as log:
            self._process = subprocess.Popen(
                [*command, spec.folder.name, str(spec.kind)],
                cwd=spec.folder.parent,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                env=module_environment(),
                start_new_session=True,  # Ctrl-C is for the service
            )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._stdin, self._stdout = self._process.stdin, self._process.stdout
        with suppress(BrokenPipeError):  # it ended at once, as wait will say
            write_frame(self._stdin, spec.request)
            write_frame(self._stdin, spec.start_policy or b"")

    @property
    def pid(self) -> int:
        return self._process.pid

    def wait(self, on_progress: OnProgress) -> operations_pb2.Operation | None:
        try:
            return self._last_message(on_progress)
        finally:
            try:
                self._process.wait(_EXIT_S)
            except subprocess.TimeoutExpired:
                self.kill()
                self._process.wait()
            self._stdout.close()
            with suppress(BrokenPipeError):
                self._stdin.close()

    def stop(self) -> None:
        # Not by a signal, which would kill a process that has no handler yet.
        with suppress(BrokenPipeError, ValueError):  # ended, or closed after the end
            self._stdin.write(STOP)
            self._stdin.flush()

    def kill(self) -> None:
        self._process.kill()

    def _last_message(self, on_progress: OnProgress) -> operations_pb2.Operation | None:
        while (frame := read_frame(self._stdout.fileno())) is not None:
            message = operations_pb2.Operation.FromString(frame)
            if message.done:
                return message
            progress = training_pb2.TrainingProgress()
            message.metadata.Unpack(progress)
            on_progress(progress)
        return None
