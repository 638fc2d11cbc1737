"""The asynchronous front end of all services: serves plain functions on bytes as gRPC methods.

Services provide synchronous functions. This module runs them in threads as ``grpc.aio`` methods,
so that the event loop never blocks. The threads also parse the messages. gRPC itself would
block the event loop on a large graph, and answer malformed bytes with UNKNOWN. Every method is
served as a stream of requests, even for a single message, so that a call can be refused before
its message is read into memory.
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
    """A method of a service: a function of a request's bytes and its call, of one of these kinds:

    ``search``   one request, one answer; runs on a worker, or waits for one
    ``quick``    one request, one answer within milliseconds; never waits for a search
    ``updates``  as ``search``, but sends what ``work(data, call, emit)`` emits, and finally its return
                 value; a slow reader may miss emitted messages, but never the last
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
        self._searches = Lane("search", workers, limits)
        self._batches = Lane("batch", workers, limits)
        self._quick = Lane("quick", _QUICK_THREADS, limits)
        self.lanes = (self._searches, self._batches, self._quick)
        self._open = OpenCalls(name_of, observers)

    def register(self, service: Service) -> grpc.GenericRpcHandler:
        """The handler with which a ``grpc.aio`` server serves the service."""
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
        """A handler that ends a call with the error without reading its request."""

        async def refuse(requests: _Requests, context: _Context) -> None:
            async def answer(call: Call, outcome: Outcome) -> None:
                raise error

            await self._open.lead(method, context, answer)

        return grpc.stream_stream_rpc_method_handler(refuse)

    async def drain(self, finish_s: float, stop_s: float) -> None:
        """Refuse new and waiting calls; let running calls end within the time.

        Args:
          finish_s: how long calls may continue undisturbed.
          stop_s: how long they then have to answer with their best result.
        """
        for lane in self.lanes:
            lane.admission.close()
        await self._open.drain(finish_s, stop_s)

    def close(self) -> None:
        """Drop calls that have not started."""
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
                    running.exception()  # retrieve it, because nobody else does if the reader left

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
                del running  # its error would keep this frame and the request alive

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
    """The messages of a call; closed, because gRPC keeps the last message until garbage collection."""
    generator: Any = aiter(requests)
    return aclosing(generator)


async def _only(requests: _Requests, outcome: Outcome) -> bytes:
    """The single message of a request."""
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
