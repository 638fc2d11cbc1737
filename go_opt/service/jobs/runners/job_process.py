"""The process of one training job: ``python -m go_opt.service.jobs.runners.job_process FOLDER KIND``.

Stdin is a socket. The service sends the request and the initial policy, and may later send a stop
message. If the socket closes, the service has ended, and this process exits at once; that is safe
because files are written atomically. This process sends ``google.longrunning.Operation`` messages.
The last one is done; without it the job was interrupted.
"""

from __future__ import annotations

import math
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Final

from google.longrunning import operations_pb2
from google.rpc import code_pb2, status_pb2

from go_opt.common.files import write_bytes_atomically
from go_opt.errors import CancelledError, GoOptError, InfeasibleError
from go_opt.proto import training_pb2
from go_opt.service.jobs.job import STOP, OnProgress, Trained
from go_opt.service.jobs.store import is_out_of_space, lock
from go_opt.service.messages.errors import status_from_error

START_POLICY_NAME: Final = "start_policy.safetensors"
NICENESS: Final = 10  # the service's searches have priority
_REPORT_EVERY_S: Final = 0.2
_PREDECESSOR_S: Final = 60.0  # for an earlier process of this job to end after its service was killed
_CUT_OFF: Final = 3  # exit code
Train = Callable[..., Trained]


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
        last.error.CopyFrom(_stopped(trained.progress))
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


def _stopped(progress: training_pb2.TrainingProgress) -> status_pb2.Status:
    reached = f"after step {progress.step} of {progress.steps}" if progress.step else "before its first step"
    return status_from_error(CancelledError(f"the job was stopped {reached}."))


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
        while service.recv_bytes() == STOP:
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
