"""Tracks calls from their arrival to their status, and ends them in a drain."""

from __future__ import annotations

import asyncio
import logging
import time
import traceback
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import suppress
from typing import Any, Final
from urllib.parse import unquote

import grpc
from google.rpc import status_pb2
from grpc_status import rpc_status

from go_opt.errors import ExhaustedError, GoOptError, ServiceError
from go_opt.service.calls.call import Call, Observer, Outcome
from go_opt.service.calls.lane import DefectError
from go_opt.service.messages.errors import internal_status, status_from_error
from go_opt.service.transport.credentials import REQUEST_ID_KEY, request_id

# Slow readers, idle streams and long polls use no thread, but they use memory.
_MAX_OPEN: Final = 4096
_MAX_OPEN_PER_CLIENT: Final = 1024
_CLOCK_SLACK_S: Final = 0.01  # gRPC uses another clock
_Context = Any  # grpc.aio.ServicerContext; gRPC has no types
_log = logging.getLogger(__name__)


class OpenCalls:
    """The calls without a status.

    Args:
      name_of: maps a call's context to the caller's authenticated name; empty: none.
      observers: notified of every call.
    """

    def __init__(self, name_of: Callable[[_Context], str], observers: Iterable[Observer]) -> None:
        self._name_of = name_of
        self._observers = tuple(observers)
        self._tasks: dict[Call, asyncio.Task] = {}
        self._of_client: Counter[str] = Counter()
        self._polls: set[Call] = set()
        self._cut: set[Call] = set()
        self._idle = asyncio.Event()
        self._idle.set()
        self._is_draining = False

    async def lead(
        self,
        method: str,
        context: _Context,
        answer: Callable[[Call, Outcome], Awaitable[bytes | None]],
        *,
        is_poll: bool = False,
    ) -> bytes | None:
        """Answer a call, or end it with the status of its error."""
        metadata = dict(context.invocation_metadata() or ())
        outcome = Outcome()
        call = self._call(method, context, metadata, outcome.start_s)
        for observer in self._observers:
            observer.started(call, metadata)
        status: status_pb2.Status | None = None
        try:
            self._enter(call, is_poll)
            await context.send_initial_metadata(((REQUEST_ID_KEY, call.request_id),))
            try:
                return await answer(call, outcome)
            except BaseException as error:
                _let_go(error)
                raise
        except asyncio.CancelledError:
            if call not in self._cut:
                outcome.code = _why_cancelled(call)
                raise
            status = status_from_error(ServiceError("the service stopped before the call was done."))
        except grpc.aio.BaseError:  # the caller left during a read or a send
            outcome.code = _why_cancelled(call)
            raise asyncio.CancelledError from None
        except DefectError:
            status = internal_status()
        except Exception as error:
            status = _status(error, call)
        finally:
            self._leave(call)
            if status is not None:
                rpc = rpc_status.to_status(status)
                outcome.code, outcome.message = rpc.code, status.message
            outcome.wall_s = time.monotonic() - outcome.start_s
            for observer in self._observers:
                observer.finished(call, outcome)
        await context.abort(rpc.code, rpc.details, rpc.trailing_metadata)
        raise AssertionError("abort raises.")

    async def drain(self, finish_s: float, stop_s: float) -> None:
        """Refuse new calls and cut off polls; other calls may finish, then must answer at once."""
        self._is_draining = True
        self._cut_off(self._polls)
        if await self._is_idle_within(finish_s):
            return
        for call in self._tasks:
            call.stop.set_within(0.8 * stop_s)  # the rest is for sending the answer
        if not await self._is_idle_within(stop_s):
            _log.warning("%d calls were cut off by the end of the drain.", len(self._tasks))
            self._cut_off(self._tasks)

    def _call(
        self, method: str, context: _Context, metadata: Mapping[str, str | bytes], now_s: float
    ) -> Call:
        left_s = context.time_remaining()
        deadline_s = None if left_s is None else now_s + left_s
        name = self._name_of(context)
        called = request_id(metadata.get(REQUEST_ID_KEY))
        return Call(method, name or _peer_host(context), called, deadline_s, owner=name)

    def _enter(self, call: Call, is_poll: bool) -> None:
        if self._is_draining:
            raise ServiceError("the service is draining.")
        if len(self._tasks) >= _MAX_OPEN:
            raise ExhaustedError(f"{_MAX_OPEN} calls are open, the most there may be.")
        if self._of_client[call.client] >= _MAX_OPEN_PER_CLIENT:
            raise ExhaustedError(f"this client has {_MAX_OPEN_PER_CLIENT} calls open, the most it may.")
        task = asyncio.current_task()
        assert task is not None
        self._tasks[call] = task
        self._of_client[call.client] += 1
        if is_poll:
            self._polls.add(call)
        self._idle.clear()

    def _leave(self, call: Call) -> None:
        call.stop.set()
        if self._tasks.pop(call, None) is None:  # the call was refused
            return
        self._of_client[call.client] -= 1
        if not self._of_client[call.client]:
            del self._of_client[call.client]
        self._polls.discard(call)
        self._cut.discard(call)
        if not self._tasks:
            self._idle.set()

    def _cut_off(self, calls: Iterable[Call]) -> None:
        for call in list(calls):
            self._cut.add(call)
            self._tasks[call].cancel()

    async def _is_idle_within(self, timeout_s: float) -> bool:
        with suppress(TimeoutError):
            await asyncio.wait_for(self._idle.wait(), timeout_s)
        return self._idle.is_set()


def _status(error: Exception, call: Call) -> status_pb2.Status:
    if isinstance(error, GoOptError) and type(error) is not GoOptError:  # the base class says nothing
        return status_from_error(error)
    _log.error("call %s of %s failed.", call.request_id, call.method, exc_info=error)
    return internal_status()


def _let_go(error: BaseException) -> None:
    """Clear the frames that an error passed through.

    Futures and errors reference each other, which keeps the request alive until garbage collection.
    """
    cause: BaseException | None = error
    while cause is not None:
        traceback.clear_frames(cause.__traceback__)
        cause = cause.__cause__ or cause.__context__


def _why_cancelled(call: Call) -> grpc.StatusCode:
    """The status that the caller saw; gRPC cancels a call in both cases."""
    is_late = call.deadline_s is not None and time.monotonic() > call.deadline_s - _CLOCK_SLACK_S
    return grpc.StatusCode.DEADLINE_EXCEEDED if is_late else grpc.StatusCode.CANCELLED


def _peer_host(context: Any) -> str:
    """The host of the caller, without the port, which differs for every connection."""
    scheme, _, place = unquote(context.peer()).partition(":")
    return place.rpartition(":")[0].strip("[]") if scheme in ("ipv4", "ipv6") else scheme
