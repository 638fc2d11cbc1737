"""The process of one training job, from both sides.

It is ``python -m go_opt.service.jobs.job_process FOLDER KIND``, and its stdin is a socket. The service
sends the request and the initial policy, and may later send a stop message. If the socket closes, the
service has ended, and the process exits at once; that is safe because files are written atomically. The
process sends ``google.longrunning.Operation`` messages. The last one is done; without it the job was
interrupted.
"""

from __future__ import annotations

import math
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Final

from google.longrunning import operations_pb2
from google.rpc import code_pb2, status_pb2

from go_opt.common.files import write_bytes_atomically
from go_opt.common.processes import module_command, module_environment
from go_opt.errors import CancelledError, GoOptError, InfeasibleError
from go_opt.proto import training_pb2
from go_opt.service.jobs.job import Attempt, NewJob, OnProgress, Trained, last_message, reached_text
from go_opt.service.jobs.store import is_out_of_space, lock
from go_opt.service.messages.errors import status_from_error

COMMAND: Final = module_command("go_opt.service.jobs.job_process")
LOG_NAME: Final = "log.txt"  # the output of the process and its libraries
START_POLICY_NAME: Final = "start_policy.safetensors"
NICENESS: Final = 10  # the service's searches have priority
_STOP: Final = b"stop"  # tells the process to end after the running step
_EXIT_S: Final = 30.0  # time to exit after the last message
_REPORT_EVERY_S: Final = 0.5  # each report is stored
_PREDECESSOR_S: Final = 60.0  # for an earlier process of this job to end after its service was killed
_CUT_OFF: Final = 3  # exit code
Train = Callable[..., Trained]


class LocalRunner:
    """Starts a process per job on this machine, at low priority.

    A job process ends when the runner's process ends, for any reason.

    Args:
      command: replaces the command of the job process, for tests.
    """

    def __init__(self, command: Sequence[str] = COMMAND) -> None:
        self._command = command

    def start(self, new: NewJob, folder: Path) -> Attempt:
        """Start a job in its folder, or resume it from the folder's checkpoint; thread-safe.

        An interrupted job must end before it works in the folder again.

        Raises:
          OSError: the job cannot be started now.
        """
        return JobProcess(self._command, new, folder)

    def close(self) -> None:
        """Free the runner's resources; all jobs have ended."""


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
            self._connection.send_bytes(_STOP)

    def kill(self) -> None:
        self._process.kill()


def main(train: Train, *, niceness: int = NICENESS) -> None:
    """Run the job that the command line and stdin describe."""
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda number, frame: stop.set())
    service = Connection(os.dup(0))
    os.nice(niceness)
    folder, kind = Path(sys.argv[1]), int(sys.argv[2])
    try:
        request, start_policy = service.recv_bytes(), service.recv_bytes()
    except (EOFError, OSError):
        sys.exit(_CUT_OFF)
    threading.Thread(target=_watch, args=(service, stop), name="service", daemon=True).start()
    with _alone(folder):
        job = partial(train, kind, request, on_progress=_reporter(service), should_stop=stop.is_set)
        service.send_bytes(_last_message(job, folder, start_policy).SerializeToString())


def _last_message(job: Train, folder: Path, start_policy: bytes) -> operations_pb2.Operation:
    """Run the job and return its result or error; an exception from here is a defect."""
    last = operations_pb2.Operation(done=True)
    start_file = folder / START_POLICY_NAME if start_policy else None
    try:
        if start_file is not None:
            write_bytes_atomically(start_file, start_policy)
        trained = job(start_file=start_file, folder=folder)
    except GoOptError as error:
        last.error.CopyFrom(_status(error))
        return last
    except OSError as error:
        if not is_out_of_space(error):
            raise
        last.error.CopyFrom(status_pb2.Status(code=code_pb2.UNAVAILABLE, message=f"{error.strerror}."))
        return last
    last.metadata.Pack(trained.progress)
    if trained.result is None:
        stopped = CancelledError(f"the job was stopped {reached_text(trained.progress)}.")
        last.error.CopyFrom(status_from_error(stopped))
    else:
        last.response.Pack(trained.result)
    return last


def _status(error: GoOptError) -> status_pb2.Status:
    status = status_from_error(error)
    if is_out_of_space(error):
        status.code = code_pb2.UNAVAILABLE
    elif not isinstance(error, InfeasibleError):
        # The environment failed or files are damaged; the progress is kept.
        status.code = code_pb2.ABORTED
    return status


def _reporter(service: Connection) -> OnProgress:
    """Sends progress, but not more often than clients can use it."""
    sent_s = -math.inf

    def report(progress: training_pb2.TrainingProgress) -> None:
        nonlocal sent_s
        if time.monotonic() - sent_s < _REPORT_EVERY_S:
            return
        sent_s = time.monotonic()
        message = operations_pb2.Operation()
        message.metadata.Pack(progress)
        service.send_bytes(message.SerializeToString())

    return report


def _watch(service: Connection, stop: threading.Event) -> None:
    with suppress(EOFError, OSError):
        while service.recv_bytes() == _STOP:
            stop.set()
    os._exit(_CUT_OFF)


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Locks the folder against a second process; waits for a process whose service was killed."""
    end_s = time.monotonic() + _PREDECESSOR_S
    while (held := lock(folder / "lock")) is None:
        if time.monotonic() > end_s:
            sys.exit("another process still works on this job.")
        time.sleep(0.05)
    with held:
        yield


def _train(*args: Any, **options: Any) -> Trained:
    # Imported after the watch thread has started.
    from go_opt.service.jobs.train import train_job

    return train_job(*args, **options)


if __name__ == "__main__":
    main(_train)
