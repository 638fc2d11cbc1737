"""The port of a service; replaces a gRPC server that has stopped listening."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from typing import Any, Final

import grpc
from grpc_status import rpc_status

from go_opt.errors import InvalidInputError
from go_opt.service.calls.security import Guard
from go_opt.service.messages.errors import status_from_error
from go_opt.service.messages.requests import parsed
from go_opt.service.transport.address import Address
from go_opt.service.transport.credentials import MESSAGE_OPTIONS

_OPTIONS: Final = (
    *MESSAGE_OPTIONS,
    # With reuse on, a second service on a busy port would share its calls instead of failing.
    ("grpc.so_reuseport", 0),
    # Clients ping while they wait for a search; by default gRPC treats that as an attack.
    ("grpc.http2.min_ping_interval_without_data_ms", 10_000),
    ("grpc.http2.max_ping_strikes", 0),
    # Without pings, the calls of a vanished client would keep their memory.
    ("grpc.keepalive_time_ms", 30_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    # Open calls per connection; further calls wait in the client.
    ("grpc.max_concurrent_streams", 1024),
    # No maximum connection age. It would help load balancers, but gRPC cuts off calls that outlive
    # a grace period, and searches and sessions may last arbitrarily long.
)
_WATCH_S: Final = 0.1
_ENDLESS_S: Final = 1e6
_log = logging.getLogger(__name__)


class Listener:
    """Listens until it is stopped.

    A request whose path is not UTF-8 makes ``grpc.aio`` stop listening for good; open calls
    continue. Anyone who reaches the port can send such a request, so a new server then takes over
    the port. No server may have registered methods, because stopping frees memory to which gRPC's
    core still writes for each of them.

    Args:
      handlers: the handlers of all services.
    """

    def __init__(
        self,
        address: Address,
        guard: Guard,
        handlers: Sequence[grpc.GenericRpcHandler],
        interceptors: Sequence[grpc.aio.ServerInterceptor] = (),
    ) -> None:
        self.address = address
        self._guard = guard
        self._handlers = tuple(handlers)
        self._interceptors = tuple(interceptors)
        self._server: grpc.aio.Server = None
        self._retired: dict[grpc.aio.Server, asyncio.Task[None]] = {}
        self._watching: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Listen; replaces port 0 in the address by the actual port."""
        await self._listen()
        self._watching = asyncio.create_task(self._watch())

    async def stop(self, grace_s: float) -> None:
        """Refuse new calls, and cut off calls that are still open after ``grace_s``."""
        if self._watching is not None:
            self._watching.cancel()
            with suppress(asyncio.CancelledError):
                await self._watching
        await asyncio.gather(*(server.stop(grace_s) for server in (self._server, *self._retired)))

    async def _listen(self) -> None:
        server = grpc.aio.server(options=_OPTIONS, interceptors=self._interceptors)
        server.add_generic_rpc_handlers(self._handlers)
        port = self._guard.listen(server, self.address)
        self.address = Address(self.address.host, port)
        await server.start()
        self._server = server

    async def _watch(self) -> None:
        while True:
            try:
                await self._server.wait_for_termination(_WATCH_S)
            except Exception as error:
                _log.error("gRPC stopped to listen (%s); listening again.", error)
                self._retire()
                await self._listen_again()

    def _retire(self) -> None:
        """Free the server once its last call has ended."""
        server = self._server
        ending = asyncio.create_task(server.stop(_ENDLESS_S))
        self._retired[server] = ending
        ending.add_done_callback(lambda _: self._retired.pop(server))

    async def _listen_again(self) -> None:
        while True:
            try:
                await self._listen()
            except InvalidInputError:  # the port is still busy
                await asyncio.sleep(_WATCH_S)
            else:
                break


class ParsedRequests(grpc.GenericRpcHandler):  # type: ignore[misc]
    """Wraps a handler and parses its requests here instead of in gRPC."""

    def __init__(self, handler: grpc.GenericRpcHandler) -> None:
        self._handler = handler

    def service(self, details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler | None:
        method = self._handler.service(details)
        if method is None:
            return None
        kind = method.request_deserializer.__self__  # the bound method FromString of the message class

        async def serve(requests: AsyncIterator[bytes], context: Any) -> None:
            async def messages() -> AsyncIterator[Any]:
                async for data in requests:
                    try:
                        message = parsed(kind, data)
                    except InvalidInputError as error:
                        rpc = rpc_status.to_status(status_from_error(error))
                        await context.abort(rpc.code, rpc.details, rpc.trailing_metadata)
                    yield message

            if method.request_streaming:
                async for answer in method.stream_stream(messages(), context):
                    await context.write(answer)
                return
            async for message in messages():
                if method.response_streaming:
                    await method.unary_stream(message, context)  # writes its own answers
                else:
                    await context.write(await method.unary_unary(message, context))

        return grpc.stream_stream_rpc_method_handler(serve, response_serializer=method.response_serializer)
