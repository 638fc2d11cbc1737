"""Answers requests in worker processes: :class:`ProcessOptimizer`, and :func:`main` of such a process.

So the service's own process always stays responsive: a crash ends one call, memory is freed,
and a search that does not stop is killed. A worker answers one request at a time. It exits when its socket
closes, so it ends with the service in every case.
"""

from __future__ import annotations

import gc
import itertools
import json
import math
import os
import queue
import signal
import socket
import subprocess
import threading
import time
import traceback
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Final

from google.protobuf.message import Message
from google.rpc import status_pb2

from go_opt.common.processes import give_back, module_command, module_environment
from go_opt.errors import CancelledError, GoOptError, ServiceError
from go_opt.proto import optimizer_pb2
from go_opt.search.compiling.warm_up import warm_up
from go_opt.service.calls.calls import ServiceMetric, Stop
from go_opt.service.messages.convert import request_from_proto
from go_opt.service.messages.errors import error_from_status, status_from_error
from go_opt.service.messages.requests import parsed, split_graph
from go_opt.service.workers.optimizer import (
    Answer,
    Improve,
    LocalOptimizer,
    Optimizer,
    PlanQuery,
    SearchControl,
    reserve_s,
)

FRAME_S: Final = 10.0  # for a frame to arrive once it has begun
_NICE: Final = 10
_OOM_SCORE: Final = "500"
_SPARES: Final = 1
_POLL_S: Final = 0.01
# For larger requests, one step of a search may take seconds to minutes. The service then keeps the
# best plan so far, and answers with it if a step exceeds the deadline, or the budget by this time.
_INSURED_BYTES: Final = 1 << 17
_OVERTIME_S: Final = 0.5
_ANSWERS: Final[Mapping[PlanQuery, type[Message]]] = {
    "evaluate": optimizer_pb2.EvaluateResponse,
    "verify": optimizer_pb2.VerifyResponse,
    "explain": optimizer_pb2.ExplainResponse,
}


# A worker retires after this: compiled code and caches free their memory only at exit.
_MOST_CALLS: Final = 1000
_MOST_BYTES: Final = 1 << 30
Frame = tuple[dict[str, Any], bytes]
"""A message between service and worker: values, and a body. The kinds, in the order of a call:

``ready``       worker: it has loaded everything and accepts requests
``optimize``    service: a request; ``call`` numbers it; the fields of its control
``evaluate``    service: a request; ``call`` numbers it; likewise ``verify``, ``explain``
``improvement`` worker: the best answer so far
``stop``        service: end the call of this number
``answer``      worker: the answer; ``is_whole`` as of :class:`go_opt.service.workers.optimizer.Answer`
``refused``     worker: the call's status
``failed``      worker: a defect, as a traceback

The last three end the call; ``retires`` is true if the worker accepts no further call.
"""


def send(connection: Connection, kind: str, body: bytes = b"", **values: Any) -> None:
    """Send a complete frame."""
    connection.send_bytes(json.dumps({"kind": kind, **values}).encode())
    connection.send_bytes(body)


def receive(connection: Connection) -> Frame:
    """Receives the next frame.

    Raises:
      EOFError, OSError: the other process has ended.
    """
    return json.loads(connection.recv_bytes()), connection.recv_bytes()


class Worker:
    """A worker process, seen from the service; used by one thread at a time."""

    def __init__(self) -> None:
        ours, theirs = socket.socketpair()
        self._connection = Connection(ours.detach())
        with theirs:
            self._process = subprocess.Popen(
                module_command("go_opt.service.workers.process_optimizer"),
                stdin=theirs.fileno(),
                stdout=subprocess.DEVNULL,
                env=module_environment(),
                start_new_session=True,  # Ctrl-C is for the service, which ends its workers
            )
        _put_behind_service(self._process.pid)
        self.has_loaded = False  # as far as the service knows
        self.is_free = True  # accepts a call, now or once it is ready
        self.is_hung = False  # did not stop a search in time

    @property
    def pid(self) -> int:
        return self._process.pid

    def is_alive(self) -> bool:
        return self._process.poll() is None

    def is_ready(self, timeout_s: float = 0.0) -> bool:
        """Whether the worker has loaded everything; a call waits until then.

        Raises:
          ServiceError: the process has ended.
        """
        if not self.has_loaded:
            self.has_loaded = self.receive(timeout_s) is not None
        return self.has_loaded

    def send(self, kind: str, body: bytes = b"", **values: Any) -> None:
        """Send a frame; ServiceError if the process has ended."""
        try:
            send(self._connection, kind, body, **values)
        except OSError:
            raise self._ended() from None

    def receive(self, timeout_s: float) -> Frame | None:
        """The next frame, or None if none starts in time; an incomplete frame kills the process.

        Raises:
          ServiceError: the process ended.
        """
        frozen = threading.Timer(FRAME_S, self.end)
        try:
            if not self._connection.poll(timeout_s):
                return None
            frozen.start()
            return receive(self._connection)
        except (EOFError, OSError):
            raise self._ended() from None
        finally:
            frozen.cancel()

    def end(self) -> None:
        """Kill the process at once."""
        self.is_free = False
        self._process.kill()

    def close(self) -> None:
        """Kill the process and free its resources."""
        self.end()
        self._process.wait()
        self._connection.close()

    def _ended(self) -> ServiceError:
        self.end()
        status = self._process.wait()
        how = f"by {signal.Signals(-status).name}" if status < 0 else f"with exit code {status}"
        return ServiceError(f"the process of this call ended {how}; it is started anew, try again.")


def _put_behind_service(pid: int) -> None:
    """Lowers the worker's CPU priority, and makes it an earlier target of the OOM killer."""
    with suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, pid, _NICE)
    with suppress(OSError):
        Path(f"/proc/{pid}/oom_score_adj").write_text(_OOM_SCORE, "ascii")


class ProcessOptimizer(Optimizer):
    """The optimizer of ``go-opt serve``; thread-safe.

    Args:
      workers: processes that work at once; one spare process is kept warm, for when a worker is lost.
    """

    def __init__(self, workers: int) -> None:
        self._size = workers
        self._numbers = itertools.count()
        self._changed = threading.Condition()
        self._lent: list[Worker] = []
        # The last used worker is last in the list and is taken first: its caches are warm, and as few
        # workers as possible have started a policy's process.
        self._idle = [Worker() for _ in range(workers + _SPARES)]
        self._is_closed = False
        self._replaced = 0  # workers that ended for any reason and were replaced
        self._killed = 0  # of these, killed during a search

    def optimize(self, request: bytes, control: SearchControl) -> Answer:
        # Parsed here first, so that a malformed request takes no worker's time.
        message = split_graph(optimizer_pb2.OptimizeRequest, request)[0]
        requested = request_from_proto(message)
        policy, deadline_s = control.policy, control.deadline_s
        with self._worker(control.stop) as worker:
            call = _WorkerCall(worker, next(self._numbers), control.stop, control.on_improvement)
            is_sized = message.HasField("fewest_chips")  # the budget applies to each number of chips
            call.time_limit_s = math.inf if is_sized else requested.time_limit_s
            call.send(
                "optimize",
                request,
                policy=None if policy is None else str(policy),
                deadline_s=deadline_s,
                remember=None if control.remember is None else str(control.remember),
                improvements=control.on_improvement is not None or len(request) > _INSURED_BYTES,
            )
            if deadline_s is not None:
                left_s = deadline_s - time.monotonic()
                call.answer_by_s = deadline_s - reserve_s(left_s, len(request)) / 2
            body, is_whole = call.outcome()
            return Answer(parsed(optimizer_pb2.OptimizeResponse, body), is_whole)

    def inspect(self, query: PlanQuery, request: bytes, *, stop: Stop) -> Message:
        with self._worker(stop) as worker:
            call = _WorkerCall(worker, next(self._numbers), stop, None)
            call.send(query, request)
            return parsed(_ANSWERS[query], call.outcome()[0])

    def is_ready(self) -> bool:
        """Whether at least as many workers as work at once have loaded everything."""
        with self._changed:
            self._drop_dead()
            lent = sum(worker.has_loaded for worker in self._lent)
            return lent + sum(map(_is_ready, self._idle)) >= self._size

    def metrics(self) -> Sequence[ServiceMetric]:
        return (
            ServiceMetric(
                "optimizer_workers_replaced", "Workers started anew.", lambda: self._replaced, True
            ),
            ServiceMetric(
                "optimizer_workers_killed", "Of these, ended while they searched.", lambda: self._killed, True
            ),
        )

    def close(self) -> None:
        """End all workers; calls under way fail."""
        with self._changed:
            self._is_closed = True
            for worker in (*self._lent, *self._idle):
                worker.end()
            for worker in self._idle:  # the borrowing threads close the lent workers
                worker.close()
            self._idle.clear()

    @contextmanager
    def _worker(self, stop: threading.Event) -> Iterator[Worker]:
        """Lends a ready worker for one call.

        Raises:
          CancelledError: ``stop`` was set before a worker was ready.
          ServiceError: the pool is closed, or the worker could not start.
        """
        worker = self._lend(stop)
        try:
            while not worker.is_ready(_POLL_S):
                _check(stop)
            yield worker
        finally:
            with self._changed:
                self._lent.remove(worker)
                if self._is_closed:
                    worker.close()
                elif worker.is_free:
                    self._idle.append(worker)
                else:
                    self._replace(worker)
                self._changed.notify()

    def _lend(self, stop: threading.Event) -> Worker:
        with self._changed:
            while not self._is_closed:
                self._drop_dead()
                if self._idle and len(self._lent) < self._size:
                    lent = next(filter(_is_ready, reversed(self._idle)), self._idle[-1])
                    self._idle.remove(lent)
                    self._lent.append(lent)
                    return lent
                self._changed.wait(_POLL_S)
                _check(stop)
        raise ServiceError("the service has stopped.")

    def _drop_dead(self) -> None:
        """Replace idle workers that have died, for example killed for memory."""
        for worker in [worker for worker in self._idle if not worker.is_alive()]:
            self._idle.remove(worker)
            self._replace(worker)

    def _replace(self, worker: Worker) -> None:
        """Kill a worker, and start a new one in a thread, because the exit of a large process is slow."""
        self._replaced += 1
        self._killed += worker.is_hung
        worker.end()

        def replace() -> None:
            worker.close()
            new = Worker()
            with self._changed:
                if self._is_closed:
                    new.close()
                    return
                self._idle.insert(0, new)
                self._changed.notify()

        threading.Thread(target=replace, name="go-opt-worker", daemon=True).start()


class _WorkerFailedError(Exception):
    """A defect in a worker; the message is its traceback."""


class _WorkerCall:
    """One call to a worker, from the request to the answer."""

    def __init__(self, worker: Worker, number: int, stop: Stop, on_improvement: Improve | None) -> None:
        self._worker, self._number = worker, number
        self._stop, self._on_improvement = stop, on_improvement
        self._best: bytes | None = None  # so far
        self._stopped_s: float | None = None  # when the worker was told to stop
        self.time_limit_s = math.inf  # of the search, counted from its first plan
        self.answer_by_s = math.inf

    def send(self, kind: str, request: bytes, **values: Any) -> None:
        self._worker.is_free = False  # until the call has ended
        self._worker.send(kind, request, call=self._number, **values)

    def outcome(self) -> tuple[bytes, bool]:
        """Returns the answer's bytes and whether it is whole, or raises the worker's error."""
        while True:
            values, body = self._worker.receive(_POLL_S) or ({}, b"")
            if (kind := values.get("kind")) in (None, "improvement"):
                if kind is not None:
                    self._improve(body)
                if self._is_overdue():
                    return self._best_so_far(), False
            else:
                self._worker.is_free = not values["retires"]
                return self._ended(kind, body), values["is_whole"]

    def _improve(self, body: bytes) -> None:
        if self._best is None:
            search_end_s = time.monotonic() + self.time_limit_s + _OVERTIME_S
            self.answer_by_s = min(self.answer_by_s, search_end_s)
        self._best = body
        if self._on_improvement is not None:
            self._on_improvement(optimizer_pb2.OptimizeResponse.FromString(body))

    def _is_overdue(self) -> bool:
        """Whether the answer is due, or the grace period after a stop is over."""
        now_s = time.monotonic()
        if self._stopped_s is None and self._stop.is_set():
            self._stopped_s = now_s
            self._worker.send("stop", call=self._number)
        is_due = self._best is not None and now_s >= self.answer_by_s
        return is_due or (self._stopped_s is not None and now_s - self._stopped_s >= self._stop.grace_s)

    def _best_so_far(self) -> bytes:
        """The best answer so far of a hung worker, which is not free and so is replaced by the pool."""
        self._worker.is_hung = True
        if self._best is None:
            raise CancelledError("the call was cancelled.")
        return self._best

    def _ended(self, kind: str, body: bytes) -> bytes:
        if kind == "answer":
            return body
        if kind == "failed":
            raise _WorkerFailedError(body.decode())
        error = error_from_status(status_pb2.Status.FromString(body))
        raise error or _WorkerFailedError("a worker refused the call with a status of no class.")


def _is_ready(worker: Worker) -> bool:
    try:
        return worker.is_ready()
    except ServiceError:  # it has just ended; its borrower gets the error
        return False


def _check(stop: threading.Event) -> None:
    if stop.is_set():
        raise CancelledError("the call was cancelled.")


class _WorkerLoop:
    """A worker process, seen from itself."""

    def __init__(self, connection: Connection) -> None:
        self._connection, self._optimizer = connection, LocalOptimizer()
        self._calls: queue.SimpleQueue[tuple[Frame, Stop]] = queue.SimpleQueue()
        # A separate thread reads, so that a running search can be stopped.
        threading.Thread(target=self._read, daemon=True).start()

    def run(self) -> None:
        send(self._connection, "ready")
        for number in range(1, _MOST_CALLS + 1):
            frame, stop = self._calls.get()
            kind, body, is_whole = self._outcome(*frame, stop)
            retires = number == _MOST_CALLS or _resident_bytes() > _MOST_BYTES
            send(self._connection, kind, body, is_whole=is_whole, retires=retires)
            del frame, body
            give_back()

    def _read(self) -> None:
        last, stop = None, Stop()
        while True:
            try:
                frame = receive(self._connection)
            except (EOFError, OSError):
                os._exit(0)  # even during a search, because nobody waits for it
            if frame[0]["kind"] != "stop":
                last, stop = frame[0]["call"], Stop()
                self._calls.put((frame, stop))
            elif frame[0]["call"] == last:
                stop.set()
            del frame

    def _outcome(self, values: dict[str, Any], request: bytes, stop: Stop) -> tuple[str, bytes, bool]:
        try:
            message, is_whole = self._answer(values, request, stop)
            return "answer", message.SerializeToString(), is_whole
        except GoOptError as error:
            return "refused", status_from_error(error).SerializeToString(), True
        except Exception:
            return "failed", traceback.format_exc().encode("utf-8", "replace"), True

    def _answer(self, values: dict[str, Any], request: bytes, stop: Stop) -> tuple[Message, bool]:
        if values["kind"] != "optimize":
            return self._optimizer.inspect(values["kind"], request, stop=stop), True
        improve = self._improve if values["improvements"] else None
        remember = None if values["remember"] is None else Path(values["remember"])
        policy = values["policy"] if values["policy"] in (None, "default", "only") else Path(values["policy"])
        control = SearchControl(policy, stop, values["deadline_s"], improve, remember)
        return self._optimizer.optimize(request, control)

    def _improve(self, response: optimizer_pb2.OptimizeResponse) -> None:
        send(self._connection, "improvement", response.SerializeToString())


def _resident_bytes() -> int:
    """Resident memory of this process; 0 if the system does not report it."""
    with suppress(OSError), open("/proc/self/statm", "rb") as numbers:
        return int(numbers.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    return 0


def main() -> None:
    worker = _WorkerLoop(Connection(os.dup(0)))
    warm_up()
    gc.freeze()  # loaded modules are never garbage; collecting over them would slow every large graph
    worker.run()


if __name__ == "__main__":
    main()
