"""The calls of ``go_opt.v1.Optimizer``: bytes of a request to bytes of a response.

Messages are parsed here, in a worker thread, and not by gRPC: its event loop would stand
still for a large graph, and answer bytes that are no message with UNKNOWN.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from typing import Final, TypeVar

import grpc
from google.protobuf.message import DecodeError, Message
from grpc_status import rpc_status

from go_opt.env import load_target
from go_opt.errors import GoOptError, InvalidInputError, ServiceError
from go_opt.proto import optimizer_pb2
from go_opt.result import Request
from go_opt.service.convert import (
    fidelity_from_proto,
    metrics_to_proto,
    request_from_proto,
    result_to_proto,
    target_from_proto,
    target_summary,
)
from go_opt.service.errors import internal_status, status_from_error
from go_opt.service.optimizer import Optimizer
from go_opt.wire import graph_from_proto, plan_from_proto

SERVICE_NAME: Final = optimizer_pb2.DESCRIPTOR.services_by_name["Optimizer"].full_name
# Of the time left when the search starts; the rest is for the answer's way back.
_SEARCH_SHARE_OF_DEADLINE: Final = 0.9
_Message = TypeVar("_Message", bound=Message)
_log = logging.getLogger(__name__)


@dataclass(eq=False)
class Call:
    """One open call, shared by the event loop and the thread that works on it."""

    data: bytes
    deadline_s: float | None  # on the monotonic clock
    stop: threading.Event  # set where nobody waits any longer, or the service stops


_Work = Callable[[Call], Message]


class OptimizerServicer:
    """Serves an :class:`Optimizer`; its work runs in threads, the event loop never waits."""

    def __init__(self, optimizer: Optimizer, *, workers: int) -> None:
        self._optimizer = optimizer
        self._pool = ThreadPoolExecutor(workers, thread_name_prefix="go-opt")
        self._work: set[Future[bytes]] = set()  # started or waiting for a thread
        self._calls: list[Call] = []
        self._idle = asyncio.Event()
        self._idle.set()
        self._draining = False

    def handlers(self) -> grpc.GenericRpcHandler:
        """What a ``grpc.aio`` server needs to serve the calls."""
        unary = {
            "Optimize": self._optimize,
            "Evaluate": self._evaluate,
            "ListTargets": self._list_targets,
        }
        methods = {
            name: grpc.unary_unary_rpc_method_handler(self._handler(work)) for name, work in unary.items()
        }
        return grpc.method_handlers_generic_handler(SERVICE_NAME, methods)

    async def drain(self, finish_s: float, stop_s: float) -> None:
        """Refuse new calls; open ones may finish, then are told to answer what they have.

        Args:
          finish_s: how long calls may go on undisturbed.
          stop_s: how long they then have to answer.
        """
        self._draining = True
        if not await self._is_idle_within(finish_s):
            for call in self._calls:
                call.stop.set()
            if not await self._is_idle_within(stop_s):
                _log.warning("%d calls were cut off by the end of the drain.", len(self._calls))

    def close(self) -> bool:
        """Drop work that waits; False where a thread still runs, which cannot be stopped."""
        self._pool.shutdown(wait=False, cancel_futures=True)
        return not self._work

    async def _is_idle_within(self, timeout_s: float) -> bool:
        try:
            await asyncio.wait_for(self._idle.wait(), timeout_s)
        except TimeoutError:
            return False
        return True

    def _handler(self, work: _Work) -> Callable:
        async def handle(data: bytes, context: grpc.aio.ServicerContext) -> bytes:
            try:
                return await self._answer(work, Call(data, _deadline_s(context), threading.Event()))
            except GoOptError as error:
                status = status_from_error(error)
            except Exception:
                _log.exception("a call failed.")
                status = internal_status()
            rpc = rpc_status.to_status(status)
            await context.abort(rpc.code, rpc.details, rpc.trailing_metadata)
            raise AssertionError("abort raises.")

        return handle

    async def _answer(self, work: _Work, call: Call) -> bytes:
        if self._draining:
            raise ServiceError("the service is draining.")
        self._calls.append(call)
        self._idle.clear()
        try:
            return await self._in_thread(work, call)
        finally:
            call.stop.set()
            self._calls.remove(call)
            if not self._calls:
                self._idle.set()

    async def _in_thread(self, work: _Work, call: Call) -> bytes:
        future = self._pool.submit(lambda: work(call).SerializeToString())
        self._work.add(future)
        future.add_done_callback(self._work.discard)
        return await asyncio.wrap_future(future)

    def _optimize(self, call: Call) -> Message:
        message = _parsed(optimizer_pb2.OptimizeRequest, call.data)
        request = request_from_proto(message)
        target = target_from_proto(message.target)
        graph = graph_from_proto(message.graph)
        result = self._optimizer.optimize(
            graph,
            target,
            should_stop=call.stop.is_set,
            policy="default" if message.policy in ("", "default") else None,
            **asdict(_within(request, call.deadline_s)),
        )
        return result_to_proto(result)

    def _evaluate(self, call: Call) -> Message:
        message = _parsed(optimizer_pb2.EvaluateRequest, call.data)
        fidelity = fidelity_from_proto(message.fidelity)
        target = target_from_proto(message.target)
        graph = graph_from_proto(message.graph)
        metrics = self._optimizer.evaluate(
            graph,
            target,
            plan_from_proto(message.plan),
            fidelity=fidelity,
            seed=message.seed if message.HasField("seed") else None,
        )
        return optimizer_pb2.EvaluateResponse(metrics=metrics_to_proto(metrics))

    def _list_targets(self, call: Call) -> Message:
        _parsed(optimizer_pb2.ListTargetsRequest, call.data)
        targets = [target_summary(load_target(name)) for name in self._optimizer.list_targets()]
        return optimizer_pb2.ListTargetsResponse(targets=targets)


def _parsed(message_type: type[_Message], data: bytes) -> _Message:
    try:
        message: _Message = message_type.FromString(data)
    except DecodeError:
        raise InvalidInputError(f"the request is no {message_type.DESCRIPTOR.full_name} message.") from None
    return message


def _within(request: Request, deadline_s: float | None) -> Request:
    """The request with its budget capped by the call's deadline."""
    if deadline_s is None:
        return request
    left_s = max(_SEARCH_SHARE_OF_DEADLINE * (deadline_s - time.monotonic()), 1e-3)
    return replace(request, budget_s=min(request.time_limit_s, left_s))


def _deadline_s(context: grpc.aio.ServicerContext) -> float | None:
    """When the caller stops waiting, on the monotonic clock."""
    left_s = context.time_remaining()
    return None if left_s is None else time.monotonic() + left_s
