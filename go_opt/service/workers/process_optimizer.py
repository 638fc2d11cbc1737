"""Answers requests in worker processes: :class:`ProcessOptimizer`.

So the service's own process always stays responsive: a crash ends one call, memory is freed,
and a search that does not stop is killed.
"""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Mapping, Sequence
from typing import Any, Final

from google.protobuf.message import Message
from google.rpc import status_pb2

from go_opt.errors import CancelledError
from go_opt.proto import optimizer_pb2
from go_opt.service.calls.calls import ServiceMetric, Stop
from go_opt.service.messages.convert_request import request_from_proto
from go_opt.service.messages.errors import error_from_status
from go_opt.service.messages.requests import parsed, split_graph
from go_opt.service.workers.optimizer import (
    Answer,
    Improve,
    Judgement,
    Optimizer,
    SearchControl,
    reserve_s,
)
from go_opt.service.workers.worker import Frame, Worker
from go_opt.service.workers.worker_pool import WorkerPool

_POLL_S: Final = 0.01
# For larger requests, one step of a search may take seconds to minutes. The service then keeps the
# best plan so far, and answers with it if a step exceeds the deadline, or the budget by this time.
_INSURED_BYTES: Final = 1 << 17
_OVERTIME_S: Final = 0.5
_ANSWERS: Final[Mapping[Judgement, type[Message]]] = {
    "evaluate": optimizer_pb2.EvaluateResponse,
    "verify": optimizer_pb2.VerifyResponse,
    "explain": optimizer_pb2.ExplainResponse,
}


class ProcessOptimizer(Optimizer):
    """The optimizer of ``go-opt serve``.

    Args:
      workers: processes that work at once; one spare process is kept warm.
    """

    def __init__(self, workers: int) -> None:
        self._pool = WorkerPool(workers)
        self._numbers = itertools.count()

    def optimize(self, request: bytes, control: SearchControl) -> Answer:
        # Parsed here first, so that a malformed request takes no worker's time.
        message = split_graph(optimizer_pb2.OptimizeRequest, request)[0]
        requested = request_from_proto(message)
        policy, deadline_s = control.policy, control.deadline_s
        with self._pool.worker(control.stop) as worker:
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

    def judge(self, judgement: Judgement, request: bytes, *, stop: Stop) -> Message:
        with self._pool.worker(stop) as worker:
            call = _WorkerCall(worker, next(self._numbers), stop, None)
            call.send(judgement, request)
            return parsed(_ANSWERS[judgement], call.outcome()[0])

    def is_ready(self) -> bool:
        return self._pool.is_ready()

    def metrics(self) -> Sequence[ServiceMetric]:
        pool = self._pool
        return (
            ServiceMetric("optimizer_workers_replaced", "Workers started anew.", lambda: pool.replaced, True),
            ServiceMetric(
                "optimizer_workers_killed", "Of these, ended while they searched.", lambda: pool.killed, True
            ),
        )

    def close(self) -> None:
        """End all workers; running calls fail."""
        self._pool.close()


class _WorkerFailedError(Exception):
    """A defect in a worker; the message is its traceback."""


class _WorkerCall:
    """One call to a worker, from the request to the answer."""

    def __init__(self, worker: Worker, number: int, stop: Stop, on_improvement: Improve | None) -> None:
        self._worker, self._number = worker, number
        self._stop, self._on_improvement = stop, on_improvement
        self._best: bytes | None = None  # so far
        self._told_s: float | None = None  # when the worker was told to stop
        self.time_limit_s = math.inf  # of the search, counted from its first plan
        self.answer_by_s = math.inf

    def send(self, kind: str, request: bytes, **values: Any) -> None:
        self._worker.is_free = False  # until the call has ended
        self._worker.send(kind, request, call=self._number, **values)

    def outcome(self) -> tuple[bytes, bool]:
        """Returns the answer's bytes and whether it is whole, or raises the worker's error."""
        while True:
            frame = self._worker.receive(_POLL_S)
            if frame is None or frame.kind == "improvement":
                if frame is not None:
                    self._improve(frame.body)
                if self._is_overdue():
                    return self._best_so_far(), False
            else:
                self._worker.is_free = not frame["retires"]
                return self._ended(frame), frame["is_whole"]

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
        if self._told_s is None and self._stop.is_set():
            self._told_s = now_s
            self._worker.send("stop", call=self._number)
        is_due = self._best is not None and now_s >= self.answer_by_s
        return is_due or (self._told_s is not None and now_s - self._told_s >= self._stop.grace_s)

    def _best_so_far(self) -> bytes:
        """The best answer so far of a hung worker, which is not free and so is replaced by the pool."""
        self._worker.is_hung = True
        if self._best is None:
            raise CancelledError("the call was cancelled.")
        return self._best

    def _ended(self, frame: Frame) -> bytes:
        if frame.kind == "answer":
            return frame.body
        if frame.kind == "failed":
            raise _WorkerFailedError(frame.body.decode())
        error = error_from_status(status_pb2.Status.FromString(frame.body))
        raise error or _WorkerFailedError("a worker refused the call with a status of no class.")
