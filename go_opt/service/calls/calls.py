"""The asynchronous front of all services: plain functions on bytes as gRPC methods.

Services write synchronous functions; here they become ``grpc.aio`` methods that work in
threads, so that the event loop never waits. Messages are parsed in those threads and not
by gRPC, which would stand still for a large graph, and answer bytes that are no message
with UNKNOWN. Every method is served as a stream of requests, also one that takes a single
message: only so is a call refused before its message is read into memory.
"""

from __future__ import annotations

import asyncio
import functools
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, aclosing
from dataclasses import dataclass
from typing import Any, Final, Literal

import grpc
from google.protobuf.message import Message

from go_opt.errors import GoOptError, InvalidInputError
from go_opt.service.calls.admission import AdmissionLimits
from go_opt.service.calls.call import Call, Observer, Outcome, ServiceMetric
from go_opt.service.calls.lane import Lane, Updates, Work
from go_opt.service.calls.open_calls import OpenCalls

_QUICK_THREADS: Final = 4
_Context = Any  # grpc.aio.ServicerContext; gRPC has no types
_Requests = AsyncIterator[bytes]
Emit = Callable[[Message], None]


@dataclass(frozen=True)
class Method:
    """A method of a service: a function of the bytes of a request and its call, of one of these kinds:

    ``search``   one request, one answer; as many at once as there are workers, others wait in turn
    ``quick``    one request, one answer within milliseconds; never behind a search
    ``updates``  as ``search``, but sends what ``work(data, call, emit)`` emits, and last what it returns; a
                 slow reader misses emitted messages, never the last
    ``batches``  a stream of requests, each answered once and in order; the next is not read before the last
                 is answered, so a caller that sends faster fills its own buffers
    ``poll``     one request, one answer of a coroutine that may wait long; UNAVAILABLE in a drain
    """

    kind: Literal["search", "quick", "updates", "batches", "poll"]
    work: Callable[..., Any]


class Service(ABC):
    """A gRPC service whose methods go through :class:`Calls`."""

    name: str  # in full: ``go_opt.v1.Optimizer``

    @abstractmethod
    def methods(self) -> Mapping[str, Method]:
        """What it serves, by name."""

    def is_ready(self) -> bool:
        """Whether it has loaded what it needs; asked from the event loop, so it answers at once."""
        return True

    def metrics(self) -> Sequence[ServiceMetric]:
        """What it measures."""
        return ()

    async def drain(self) -> None:  # noqa: B027
        """End what it does besides its calls within 3 s; these are drained meanwhile."""

    def close(self) -> None:  # noqa: B027
        """Free what it holds; no call comes any more."""


class Calls:
    """Serves methods, and leads every call from its arrival to its status.

    Args:
      workers: searches that run at once, and batches.
      limits: of calls that wait for one of the workers.
      name_of: the name that who calls has proven, by the context of the call; empty: none.
      observers: told of every call.
    """

    def __init__(
        self,
        *,
        workers: int,
        limits: AdmissionLimits | None = None,
        name_of: Callable[[_Context], str] = lambda context: "",
        observers: Iterable[Observer] = (),
    ) -> None:
        self._searches = Lane("search", workers, limits)
        self._batches = Lane("batch", workers, limits)
        self._quick = Lane("quick", _QUICK_THREADS, limits)
        self.lanes = (self._searches, self._batches, self._quick)
        self._open = OpenCalls(name_of, observers)

    def register(self, service: Service) -> grpc.GenericRpcHandler:
        """What a ``grpc.aio`` server needs to serve the service."""
        serves: Mapping[str, Callable[..., Awaitable[bytes | None]]] = {
            "search": functools.partial(self._serve_one, self._searches),
            "quick": functools.partial(self._serve_one, self._quick),
            "updates": self._serve_updates,
            "batches": self._serve_batches,
            "poll": self._serve_poll,
        }
        handlers = {}
        for name, method in service.methods().items():
            sends_stream = method.kind in ("updates", "batches")
            make = (
                grpc.stream_stream_rpc_method_handler
                if sends_stream
                else grpc.stream_unary_rpc_method_handler
            )
            serve = functools.partial(serves[method.kind], method.work, f"{service.name}/{name}")
            handlers[name] = make(serve)
        return grpc.method_handlers_generic_handler(service.name, handlers)

    def refusal(self, method: str, error: GoOptError) -> grpc.RpcMethodHandler:
        """Ends a call of any kind with the error, without reading of it."""

        async def refuse(requests: _Requests, context: _Context) -> None:
            async def answer(call: Call, outcome: Outcome) -> None:
                raise error

            await self._open.lead(method, context, answer)

        return grpc.stream_stream_rpc_method_handler(refuse)

    async def drain(self, finish_s: float, stop_s: float) -> None:
        """Refuse new and waiting calls; the others end within the time.

        Args:
          finish_s: how long calls may go on undisturbed.
          stop_s: how long they then have to answer what they have.
        """
        for lane in self.lanes:
            lane.admission.close()
        await self._open.drain(finish_s, stop_s)

    def close(self) -> None:
        """Drop what has not started."""
        for lane in self.lanes:
            lane.close()

    async def _serve_one(
        self, lane: Lane, work: Work, method: str, requests: _Requests, context: _Context
    ) -> bytes | None:
        async def answer(call: Call, outcome: Outcome) -> bytes:
            data = await lane.run(call, outcome, lambda: _only(requests, outcome), work)
            outcome.sent_bytes = len(data)
            return data

        return await self._open.lead(method, context, answer)

    async def _serve_updates(
        self,
        work: Callable[[bytes, Call, Emit], Message],
        method: str,
        requests: _Requests,
        context: _Context,
    ) -> None:
        async def answer(call: Call, outcome: Outcome) -> None:
            updates = Updates(asyncio.get_running_loop())

            def on_done(running: asyncio.Task[bytes]) -> None:
                updates.finish()
                if not running.cancelled():
                    running.exception()  # where the reader has left nobody else asks for it

            def worked(data: bytes, call: Call) -> Message:
                return work(data, call, updates.emit)

            running = asyncio.create_task(
                self._searches.run(call, outcome, lambda: _only(requests, outcome), worked)
            )
            running.add_done_callback(on_done)
            try:
                async for update in updates:
                    await _send(context, update, outcome)
                await _send(context, await running, outcome)
            finally:
                running.cancel()
                del running  # an error in it would hold this frame, and the request

        await self._open.lead(method, context, answer)

    async def _serve_batches(self, work: Work, method: str, requests: _Requests, context: _Context) -> None:
        async def answer(call: Call, outcome: Outcome) -> None:
            async with _messages(requests) as messages:
                async for data in messages:
                    outcome.received_bytes += len(data)
                    answered = await self._batches.run(call, outcome, functools.partial(_ready, data), work)
                    await _send(context, answered, outcome)

        await self._open.lead(method, context, answer)

    async def _serve_poll(
        self,
        work: Callable[[bytes, Call], Awaitable[Message]],
        method: str,
        requests: _Requests,
        context: _Context,
    ) -> bytes | None:
        async def answer(call: Call, outcome: Outcome) -> bytes:
            message = await work(await _only(requests, outcome), call)
            data: bytes = message.SerializeToString()
            outcome.sent_bytes = len(data)
            return data

        return await self._open.lead(method, context, answer, is_poll=True)


def _messages(requests: _Requests) -> AbstractAsyncContextManager[AsyncGenerator[bytes, None]]:
    """The messages of a call; closed, for gRPC keeps the last until garbage is collected."""
    generator: Any = aiter(requests)
    return aclosing(generator)


async def _only(requests: _Requests, outcome: Outcome) -> bytes:
    """The one message of a request."""
    async with _messages(requests) as messages:
        async for data in messages:
            outcome.received_bytes = len(data)
            return data
    raise InvalidInputError("the call ended before it had sent a request.")


async def _ready(data: bytes) -> bytes:
    return data


async def _send(context: _Context, data: bytes, outcome: Outcome) -> None:
    await context.write(data)
    outcome.sent_bytes += len(data)
