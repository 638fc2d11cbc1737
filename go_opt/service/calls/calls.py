"""The asynchronous front end of all services: serves plain functions on bytes as gRPC methods.

Services provide synchronous functions. This module runs them in threads as ``grpc.aio`` methods,
so that the event loop never blocks. The threads also parse the messages. gRPC itself would
block the event loop on a large graph, and answer malformed bytes with UNKNOWN. Every method is
served as a stream of requests, even for a single message, so that a call can be refused before
its message is read into memory.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
import traceback
from abc import ABC, abstractmethod
from collections import Counter, deque
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractAsyncContextManager, aclosing, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, Literal, NamedTuple, Protocol
from urllib.parse import unquote

import grpc
from google.protobuf.message import Message
from google.rpc import status_pb2
from grpc_status import rpc_status

from go_opt.errors import ExhaustedError, GoOptError, InvalidInputError, ServiceError
from go_opt.service.calls.admission import Admission, AdmissionLimits
from go_opt.service.messages.errors import internal_status, status_from_error
from go_opt.service.transport.credentials import REQUEST_ID_KEY, request_id

_QUICK_THREADS: Final = 4
# Slow readers, idle streams and long polls use no thread, but they use memory.
_MAX_OPEN: Final = 4096
_MAX_OPEN_PER_CLIENT: Final = 1024
_CLOCK_SLACK_S: Final = 0.01  # gRPC uses another clock
_Context = Any  # grpc.aio.ServicerContext; gRPC has no types
_Requests = AsyncIterator[bytes]
_log = logging.getLogger(__name__)


class Stop(threading.Event):
    """Signals that a call should end."""

    # After this time a search that does not stop is killed, because it blocks a slot although nobody
    # waits for it. With two polls, the slot is free 100 ms after the caller left.
    grace_s = 0.08

    def set_within(self, grace_s: float) -> None:
        """Stop, but allow this long to answer with the best plan: the caller still waits."""
        self.grace_s = grace_s
        self.set()


@dataclass(eq=False)
class Call:
    """One call, shared by the event loop, the thread that works on it, and observers."""

    method: str  # "go_opt.v1.Optimizer/Optimize"
    client: str = ""  # token's or certificate's name, else the peer's host; the unit of fairness
    request_id: str = ""  # from the caller, or generated
    deadline_s: float | None = None  # on the monotonic clock
    owner: str = ""  # token's or certificate's name, which owns jobs; empty: unnamed
    # Set when nobody waits any longer, or the service stops.
    stop: Stop = field(default_factory=Stop)
    # The outcome:
    code: grpc.StatusCode = grpc.StatusCode.OK
    message: str = ""
    received_bytes: int = 0
    sent_bytes: int = 0
    waited_s: float = 0.0  # for a slot
    start_s: float = field(default_factory=time.monotonic)
    wall_s: float = 0.0


class Observer(Protocol):
    """Observes calls for metrics, the log and traces; called from the event loop."""

    def started(self, call: Call, metadata: Mapping[str, str | bytes]) -> None:
        """A call arrived; its request is not read yet."""

    def finished(self, call: Call) -> None:
        """The call has its status."""


class ServiceMetric(NamedTuple):
    """A gauge or counter of a service, such as open sessions or running jobs."""

    name: str  # of the metric, without "go_opt_"
    help: str  # one sentence
    read: Callable[[], float]  # called from any thread; must not block
    is_total: bool = False  # only ever grows


Send = Callable[[Message], None]
Work = Callable[[bytes, Call], Message]
_Answer = Callable[[Call, _Requests, _Context], Awaitable[bytes | None]]


@dataclass(frozen=True)
class Method:
    """A method of a service: a function of a request's bytes and its call, of one of these kinds:

    ``search``   one request, one answer; runs on a worker, or waits for one
    ``quick``    one request, one answer within milliseconds; never waits for a search
    ``updates``  as ``search``, but sends what ``work(data, call, send)`` sends, and finally its return
                 value; a slow reader may miss updates, but never the last message
    ``batches``  a stream of requests, each answered once and in order; a request is read only after the
                 last one is answered, so a faster caller fills its own buffers
    ``poll``     one request, one answer from a coroutine that may wait long; UNAVAILABLE in a drain
    """

    kind: Literal["search", "quick", "updates", "batches", "poll"]
    work: Callable[..., Any]


class Service(ABC):
    """A gRPC service whose methods go through :class:`Calls`."""

    name: str  # in full: ``go_opt.v1.Optimizer``

    @abstractmethod
    def methods(self) -> Mapping[str, Method]:
        """The methods of the service by name."""

    def is_ready(self) -> bool:
        """Whether the service has loaded; must not block, because the event loop calls it."""
        return True

    def metrics(self) -> Sequence[ServiceMetric]:
        """The metrics of the service."""
        return ()

    async def drain(self) -> None:  # noqa: B027
        """End all work other than calls within 3 s; calls drain at the same time."""

    def close(self) -> None:  # noqa: B027
        """Free all resources; no more calls arrive."""


def in_thread(work: Callable[[], Any]) -> Future[Any]:
    """Runs ``work`` in a daemon thread, for which neither asyncio nor the end of the process waits."""
    outcome: Future[Any] = Future()
    outcome.set_running_or_notify_cancel()

    def run() -> None:
        try:
            outcome.set_result(work())
        except BaseException as error:  # the reader of the future raises it
            outcome.set_exception(error)

    threading.Thread(target=run, name="go-opt call", daemon=True).start()
    return outcome


class _DefectError(Exception):
    """A call hit a defect, which is in the log."""


class CallQueue:
    """Runs calls in its own threads, in the order of :class:`Admission`."""

    def __init__(self, name: str, threads: int, limits: AdmissionLimits | None) -> None:
        self.name = name
        self.admission = Admission(threads, limits)
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix=f"go-opt-{name}")

    async def run(self, call: Call, read: Callable[[], Awaitable[bytes]], work: Work) -> bytes:
        """Read a request once the queue has a place, wait for a slot, and work in a thread.

        The slot becomes free when the thread is done, even if nobody waits for the answer.
        """
        loop = asyncio.get_running_loop()
        ticket = self.admission.ticket(call.client)
        try:
            data = await read()
            since_s = time.monotonic()
            await ticket.granted(len(data))
            call.waited_s += time.monotonic() - since_s
            future = self._pool.submit(_bytes_of, work, data, call)
        except BaseException:
            ticket.release()
            raise

        def release(_: Future[bytes]) -> None:
            with suppress(RuntimeError):  # the loop has ended, and with it all waiting calls
                loop.call_soon_threadsafe(ticket.release)

        future.add_done_callback(release)
        try:
            return await asyncio.wrap_future(future)
        finally:
            # Its error would keep this frame and the request alive until garbage collection.
            del future

    def close(self) -> None:
        """Drop calls that have not started; running threads cannot be stopped."""
        self._pool.shutdown(wait=False, cancel_futures=True)


class Calls:
    """Serves methods and handles every call from its arrival to its status.

    Args:
      workers: searches that run at once; as many batches also run at once.
      limits: limits on calls that wait for a worker.
      name_of: maps a call's context to the caller's authenticated name; empty: none.
      observers: notified of every call.
    """

    def __init__(
        self,
        *,
        workers: int,
        limits: AdmissionLimits | None = None,
        name_of: Callable[[_Context], str] = lambda context: "",
        observers: Iterable[Observer] = (),
    ) -> None:
        self._searches = CallQueue("search", workers, limits)
        self._batches = CallQueue("batch", workers, limits)
        self._quick = CallQueue("quick", _QUICK_THREADS, limits)
        self.queues = (self._searches, self._batches, self._quick)
        self._name_of = name_of
        self._observers = tuple(observers)
        self._tasks: dict[Call, asyncio.Task] = {}  # of the calls without a status
        self._of_client: Counter[str] = Counter()
        self._polls: set[Call] = set()
        self._cut: set[Call] = set()
        self._idle = asyncio.Event()
        self._idle.set()
        self._is_draining = False

    def register(self, service: Service) -> grpc.GenericRpcHandler:
        """The handler with which a ``grpc.aio`` server serves the service."""
        answers: Mapping[str, Callable[..., Awaitable[bytes | None]]] = {
            "search": partial(_answer_one, self._searches),
            "quick": partial(_answer_one, self._quick),
            "updates": partial(_answer_updates, self._searches),
            "batches": partial(_answer_batches, self._batches),
            "poll": _answer_poll,
        }
        handlers = {}
        for name, method in service.methods().items():
            make = (
                grpc.stream_stream_rpc_method_handler
                if method.kind in ("updates", "batches")
                else grpc.stream_unary_rpc_method_handler
            )
            answer = partial(answers[method.kind], method.work)
            is_poll = method.kind == "poll"
            handlers[name] = make(partial(self._handle, f"{service.name}/{name}", answer, is_poll))
        return grpc.method_handlers_generic_handler(service.name, handlers)

    def refusal(self, method: str, error: GoOptError) -> grpc.RpcMethodHandler:
        """A handler that ends a call with the error without reading its request."""

        async def refuse(call: Call, requests: _Requests, context: _Context) -> None:
            raise error

        return grpc.stream_stream_rpc_method_handler(partial(self._handle, method, refuse, False))

    async def drain(self, finish_s: float, stop_s: float) -> None:
        """Refuse new and waiting calls, and cut off polls; let running calls end within the time.

        ``grpc.aio.Server.stop`` would refuse health checks as well, let waiting calls wait, and cut off
        searches instead of asking for their best plans.

        Args:
          finish_s: how long calls may continue undisturbed.
          stop_s: how long they then have to answer with their best result.
        """
        for calls in self.queues:
            calls.admission.close()
        self._is_draining = True
        self._cut_off(self._polls)
        if await self._is_idle_within(finish_s):
            return
        for call in self._tasks:
            call.stop.set_within(0.8 * stop_s)  # the rest is for sending the answer
        if not await self._is_idle_within(stop_s):
            _log.warning("%d calls were cut off by the end of the drain.", len(self._tasks))
            self._cut_off(self._tasks)

    def close(self) -> None:
        """Drop calls that have not started."""
        for calls in self.queues:
            calls.close()

    async def _handle(
        self, method: str, answer: _Answer, is_poll: bool, requests: _Requests, context: _Context
    ) -> bytes | None:
        """Answer a call, or end it with the status of its error."""
        metadata = dict(context.invocation_metadata() or ())
        call = self._call(method, context, metadata)
        for observer in self._observers:
            observer.started(call, metadata)
        status: status_pb2.Status | None = None
        try:
            self._enter(call, is_poll)
            await context.send_initial_metadata(((REQUEST_ID_KEY, call.request_id),))
            try:
                data = await answer(call, requests, context)
            except BaseException as error:
                _let_go(error)
                raise
            call.sent_bytes += len(data or b"")
            return data
        except asyncio.CancelledError:
            if call not in self._cut:
                call.code = _why_cancelled(call)
                raise
            status = status_from_error(ServiceError("the service stopped before the call was done."))
        except grpc.aio.BaseError:  # the caller left during a read or a send
            call.code = _why_cancelled(call)
            raise asyncio.CancelledError from None
        except _DefectError:
            status = internal_status()
        except Exception as error:
            status = _status(error, call)
        finally:
            self._leave(call)
            if status is not None:
                rpc = rpc_status.to_status(status)
                call.code, call.message = rpc.code, status.message
            call.wall_s = time.monotonic() - call.start_s
            for observer in self._observers:
                observer.finished(call)
        await context.abort(rpc.code, rpc.details, rpc.trailing_metadata)
        raise AssertionError("abort raises.")

    def _call(self, method: str, context: _Context, metadata: Mapping[str, str | bytes]) -> Call:
        left_s = context.time_remaining()
        deadline_s = None if left_s is None else time.monotonic() + left_s
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


async def _answer_one(calls: CallQueue, work: Work, call: Call, requests: _Requests, _: _Context) -> bytes:
    return await calls.run(call, partial(_only, requests, call), work)


async def _answer_updates(
    calls: CallQueue,
    work: Callable[[bytes, Call, Send], Message],
    call: Call,
    requests: _Requests,
    context: _Context,
) -> None:
    newest: deque[bytes] = deque(maxlen=1)  # a slow reader misses older updates
    changed, loop = asyncio.Event(), asyncio.get_running_loop()

    def send(message: Message) -> None:
        newest.append(message.SerializeToString())
        with suppress(RuntimeError):  # the loop has ended, and with it the reader
            loop.call_soon_threadsafe(changed.set)

    def on_done(running: asyncio.Task[bytes]) -> None:
        changed.set()
        if not running.cancelled():
            running.exception()  # retrieve it, because nobody else does if the reader left

    running = asyncio.create_task(
        calls.run(call, partial(_only, requests, call), lambda data, call: work(data, call, send))
    )
    running.add_done_callback(on_done)
    try:
        while newest or not running.done():
            if newest:
                await _send(context, newest.popleft(), call)
            else:
                changed.clear()
                await changed.wait()
        await _send(context, await running, call)
    finally:
        running.cancel()
        del running  # its error would keep this frame and the request alive


async def _answer_batches(
    calls: CallQueue, work: Work, call: Call, requests: _Requests, context: _Context
) -> None:
    async with _messages(requests) as messages:
        async for data in messages:
            call.received_bytes += len(data)
            await _send(context, await calls.run(call, partial(_ready, data), work), call)


async def _answer_poll(
    work: Callable[[bytes, Call], Awaitable[Message]], call: Call, requests: _Requests, _: _Context
) -> bytes:
    data: bytes = (await work(await _only(requests, call), call)).SerializeToString()
    return data


def _messages(requests: _Requests) -> AbstractAsyncContextManager[AsyncGenerator[bytes, None]]:
    """The messages of a call; closed, because gRPC keeps the last message until garbage collection."""
    generator: Any = aiter(requests)
    return aclosing(generator)


async def _only(requests: _Requests, call: Call) -> bytes:
    """The single message of a request."""
    async with _messages(requests) as messages:
        async for data in messages:
            call.received_bytes = len(data)
            return data
    raise InvalidInputError("the call ended before it had sent a request.")


async def _ready(data: bytes) -> bytes:
    return data


async def _send(context: _Context, data: bytes, call: Call) -> None:
    await context.write(data)
    call.sent_bytes += len(data)


def _bytes_of(work: Work, data: bytes, call: Call) -> bytes:
    try:
        answer: bytes = work(data, call).SerializeToString()
    except GoOptError:
        raise
    except Exception:
        # Logged here, because the caller may have left.
        _log.exception("call %s of %s failed.", call.request_id, call.method)
        raise _DefectError from None
    return answer


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
