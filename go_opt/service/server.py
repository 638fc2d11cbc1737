""":func:`serve` runs any number of services, with health checks and reflection."""

from __future__ import annotations

import asyncio
import gc
import logging
import multiprocessing
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Sequence
from typing import Any, Final, NoReturn

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection, reflection_pb2_grpc
from grpc_status import rpc_status

from go_opt.common.processes import give_back, num_cores
from go_opt.errors import InvalidInputError
from go_opt.service.calls.admission import AdmissionLimits
from go_opt.service.calls.calls import Calls, Observer, Service, in_thread
from go_opt.service.calls.security import Authentication, Guard, Security
from go_opt.service.messages.errors import status_from_error
from go_opt.service.messages.requests import parsed
from go_opt.service.observability import Metrics, Observability
from go_opt.service.transport.address import Address, check_free, parse_address
from go_opt.service.transport.credentials import MESSAGE_OPTIONS

# Together a little less than the 5 s in which a drain must end.
_FINISH_S: Final = 2.4  # running calls continue
_STOP_S: Final = 1.0  # searches answer with their best plan
_SEND_S: Final = 0.3  # answers are sent
_CLOSE_S: Final = 0.4  # services end their processes
_GIVE_BACK_S: Final = 10.0  # between two returns of free memory to the system
# A thread yields to the event loop after this time; Python's default is 5 ms.
_SWITCH_INTERVAL_S: Final = 0.0005
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
_POLL_S: Final = 0.05  # of services that load
_Health = health_pb2.HealthCheckResponse
_ENDLESS_S: Final = 1e6
_log = logging.getLogger(__name__)


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


class _Handlers(list[grpc.GenericRpcHandler]):
    """Stands in for a server, to collect the handlers that generated code adds."""

    def add_generic_rpc_handlers(self, handlers: Iterable[grpc.GenericRpcHandler]) -> None:
        self.extend(map(ParsedRequests, handlers))

    def add_registered_method_handlers(self, name: str, handlers: object) -> None:
        """Does nothing: the generic handlers include these methods."""


class Server:
    """Running services; created by :meth:`start` in a running event loop.

    Args:
      address: where to listen; port 0 picks a free port.
    """

    def __init__(
        self,
        address: Address,
        services: Sequence[Service],
        *,
        guard: Guard | None = None,
        workers: int = 1,
        limits: AdmissionLimits | None = None,
        observers: Iterable[Observer] = (),
        metrics: Metrics | None = None,
    ) -> None:
        check_free(address)
        self.address = address
        self._services = tuple(services)
        self._guard = guard or Guard()
        observers = (*observers, *([] if metrics is None else [metrics]))
        self._calls = Calls(workers=workers, limits=limits, name_of=self._guard.name_of, observers=observers)
        self._health = health.aio.HealthServicer()
        self._loading = set(services)
        self.loaded = asyncio.Event()  # all services are ready; calls that arrive earlier wait
        self._handlers = _Handlers(map(self._calls.register, services))
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self._handlers)
        names = (*(service.name for service in services), health.SERVICE_NAME, reflection.SERVICE_NAME)
        described = reflection.aio.ReflectionServicer(names)
        reflection_pb2_grpc.add_ServerReflectionServicer_to_server(described, self._handlers)
        if metrics is not None:
            metrics.watch_calls(self._calls)
            for service in services:
                metrics.watch(service.metrics())
        tokens = self._guard.tokens
        self._interceptors = [] if tokens is None else [Authentication(tokens, self._calls)]
        self._server: grpc.aio.Server = None
        self._retired: dict[grpc.aio.Server, asyncio.Task[None]] = {}
        self._tasks: list[asyncio.Task[None]] = []

    @classmethod
    async def start(cls, address: Address, services: Sequence[Service], **options: Any) -> Server:
        """Listen; replaces port 0 in the address by the actual port."""
        server = cls(address, services, **options)
        await server._set_health()
        await server._listen()
        server._tasks = [
            asyncio.create_task(task) for task in (server._watch_port(), server._watch_loading())
        ]
        return server

    async def stop(self) -> None:
        """Drain, then stop listening; cuts off calls that still run then."""
        await self._health.enter_graceful_shutdown()  # no service serves any longer
        drains = [service.drain() for service in self._services]
        draining = asyncio.gather(self._calls.drain(_FINISH_S, _STOP_S), *drains, return_exceptions=True)
        await _within(_FINISH_S + _STOP_S + _SEND_S, draining)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await asyncio.gather(*(server.stop(_SEND_S) for server in (self._server, *self._retired)))
        self._calls.close()
        # Not in the loop's own threads, for which asyncio waits without limit.
        closing = [asyncio.wrap_future(in_thread(service.close)) for service in self._services]
        await _within(_CLOSE_S, asyncio.gather(*closing, return_exceptions=True))

    async def _listen(self) -> None:
        server = grpc.aio.server(options=_OPTIONS, interceptors=self._interceptors)
        # Not registered methods: stopping frees memory to which gRPC's core still writes for each of them.
        server.add_generic_rpc_handlers(self._handlers)
        port = self._guard.listen(server, self.address)
        self.address = Address(self.address.host, port)
        await server.start()
        self._server = server

    async def _watch_loading(self) -> None:
        while self._loading:
            await asyncio.sleep(_POLL_S)
            await self._set_health()
        self.loaded.set()
        _log.info("ready.")

    async def _set_health(self) -> None:
        """Set the health of each service, and of the server once all services are ready."""
        self._loading -= {service for service in self._loading if service.is_ready()}
        serves = {service.name: service not in self._loading for service in self._services}
        for name, is_serving in (serves | {"": not self._loading}).items():
            await self._health.set(name, _Health.SERVING if is_serving else _Health.NOT_SERVING)

    async def _watch_port(self) -> None:
        """Let a new server take over the port from one that has stopped listening.

        A request whose path is not UTF-8 makes ``grpc.aio`` stop listening for good; open calls
        continue. Anyone who reaches the port can send such a request.
        """
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
                return await self._listen()
            except InvalidInputError:  # the port is still busy
                await asyncio.sleep(_WATCH_S)


async def _within(limit_s: float, ending: asyncio.Future[list[BaseException | None]]) -> None:
    """Wait up to ``limit_s`` for ``ending``; only logs errors."""
    try:
        ended = await asyncio.wait_for(ending, limit_s)
    except TimeoutError:
        _log.warning("a service did not stop within %g s.", limit_s)
        return
    for error in ended:
        if error is not None:
            _log.error("a service failed to stop.", exc_info=error)


def serve(
    address: str,
    services: Callable[[], Sequence[Service]],
    *,
    security: Security | None = None,
    observability: Observability | None = None,
    workers: int | None = None,
    limits: AdmissionLimits | None = None,
) -> NoReturn:
    """Serve until SIGTERM or SIGINT, then drain and end the process within 5 s.

    Skips the interpreter's shutdown, which takes seconds and waits for every thread. A second
    signal ends the process at once.

    Args:
      address: ``HOST:PORT``; port 0 picks a free port. Printed on stderr once the server listens.
      services: creates the services, after all other arguments are checked.
      workers: searches that run at once, by default one per core of this process.

    Raises:
      InvalidInputError: an address is malformed, busy, or needs TLS or ``insecure``, or a file of
        ``security`` cannot be used.
    """
    security, observability = security or Security(), observability or Observability()
    place = parse_address(address)
    security.check_address(place)
    with observability.open(security) as (observers, metrics):
        guard = security.load()
        check_free(place)
        sys.setswitchinterval(_SWITCH_INTERVAL_S)
        made = services()
        try:
            starting = Server.start(
                place,
                made,
                guard=guard,
                workers=workers or num_cores(),
                limits=limits,
                observers=observers,
                metrics=metrics,
            )
            asyncio.run(_serve(starting))
        except BaseException:
            for service in made:
                service.close()
            raise
    _exit(0)


async def _serve(starting: Coroutine[Any, Any, Server]) -> None:
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()

    def on_signal(number: int) -> None:
        if stopping.is_set():  # a second signal
            _exit(128 + number)
        stopping.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, on_signal, number)
    server = await starting
    settling = asyncio.create_task(_settle(server))
    print(f"listening on {server.address}", file=sys.stderr, flush=True)
    await stopping.wait()
    settling.cancel()
    await server.stop()


async def _settle(server: Server) -> None:
    await server.loaded.wait()
    # Loaded modules are never garbage; collecting over them would block all calls for 0.1 s.
    gc.freeze()
    while True:
        await asyncio.sleep(_GIVE_BACK_S)
        await asyncio.to_thread(give_back)


def _exit(code: int) -> NoReturn:
    for child in multiprocessing.active_children():
        child.terminate()
    sys.stderr.flush()
    os._exit(code)
