""":func:`serve` runs any number of services, with health checks and reflection."""

from __future__ import annotations

import asyncio
import gc
import logging
import multiprocessing
import os
import signal
import sys
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final, NoReturn

import grpc
from grpc_health.v1 import health, health_pb2_grpc
from grpc_reflection.v1alpha import reflection, reflection_pb2_grpc

from go_opt.common.cores import num_cores
from go_opt.common.processes import give_back
from go_opt.service.calls.admission import AdmissionLimits
from go_opt.service.calls.call import Observer
from go_opt.service.calls.calls import Calls, Service
from go_opt.service.calls.listener import Listener, ParsedRequests
from go_opt.service.calls.security import Authentication, Guard, Security
from go_opt.service.observability.metrics import Metrics
from go_opt.service.observability.watching import Readiness, Watching
from go_opt.service.transport.address import Address, check_free, parse_address

# Together a little less than the 5 s in which a drain must end.
_FINISH_S: Final = 2.4  # running calls continue
_STOP_S: Final = 1.0  # searches answer with their best plan
_SEND_S: Final = 0.3  # answers are sent
_CLOSE_S: Final = 0.4  # services end their processes
_GIVE_BACK_S: Final = 10.0  # between two returns of free memory to the system
# A thread yields to the event loop after this time; Python's default is 5 ms.
_SWITCH_INTERVAL_S: Final = 0.0005
_log = logging.getLogger(__name__)


class _Handlers(list[grpc.GenericRpcHandler]):
    """Stands in for a server, to collect the handlers that generated code adds."""

    def add_generic_rpc_handlers(self, handlers: Iterable[grpc.GenericRpcHandler]) -> None:
        self.extend(map(ParsedRequests, handlers))

    def add_registered_method_handlers(self, name: str, handlers: object) -> None:
        """Does nothing: the generic handlers include these methods."""


class Server:
    """Running services; created by :meth:`start` in a running event loop."""

    def __init__(
        self,
        listener: Listener,
        readiness: Readiness,
        calls: Calls,
        services: Sequence[Service],
    ) -> None:
        self._listener = listener
        self._readiness = readiness
        self._calls = calls
        self._services = tuple(services)

    @property
    def address(self) -> Address:
        return self._listener.address

    @classmethod
    async def start(
        cls,
        address: Address,
        services: Sequence[Service],
        *,
        guard: Guard | None = None,
        workers: int = 1,
        limits: AdmissionLimits | None = None,
        observers: Iterable[Observer] = (),
        metrics: Metrics | None = None,
    ) -> Server:
        """Listen at ``address``; port 0 picks a free port."""
        guard = guard or Guard()
        check_free(address)
        watching = (*observers, *([] if metrics is None else [metrics]))
        calls = Calls(workers=workers, limits=limits, name_of=guard.name_of, observers=watching)
        names = [service.name for service in services]
        health_checks = health.aio.HealthServicer()
        readiness = Readiness(health_checks, services)
        await readiness.tell()
        handlers = _Handlers(map(calls.register, services))
        health_pb2_grpc.add_HealthServicer_to_server(health_checks, handlers)
        described = reflection.aio.ReflectionServicer((*names, health.SERVICE_NAME, reflection.SERVICE_NAME))
        reflection_pb2_grpc.add_ServerReflectionServicer_to_server(described, handlers)
        if metrics is not None:
            metrics.watch_lanes(calls.lanes)
            for service in services:
                metrics.watch(service.metrics())
        interceptors = [] if guard.tokens is None else [Authentication(guard.tokens, calls)]
        listener = Listener(address, guard, handlers, interceptors)
        await listener.start()
        readiness.watch()
        return cls(listener, readiness, calls, services)

    async def ready(self) -> None:
        """Wait until all services are ready."""
        await self._readiness.reached.wait()

    async def stop(self) -> None:
        """Drain, then stop listening; cuts off calls that still run then."""
        await self._readiness.drain()
        drains = [service.drain() for service in self._services]
        draining = asyncio.gather(self._calls.drain(_FINISH_S, _STOP_S), *drains, return_exceptions=True)
        await _within(_FINISH_S + _STOP_S + _SEND_S, draining)
        await self._listener.stop(_SEND_S)
        self._calls.close()
        # Not in the loop's own threads, for which asyncio waits without limit.
        pool = ThreadPoolExecutor(len(self._services), thread_name_prefix="go-opt-close")
        loop = asyncio.get_running_loop()
        closing = [loop.run_in_executor(pool, service.close) for service in self._services]
        pool.shutdown(wait=False)
        await _within(_CLOSE_S, asyncio.gather(*closing, return_exceptions=True))


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
    watching: Watching | None = None,
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
    security, watching = security or Security(), watching or Watching()
    place = parse_address(address)
    security.check_address(place)
    with watching.open(security) as (observers, metrics):
        guard = security.load()
        check_free(place)
        sys.setswitchinterval(_SWITCH_INTERVAL_S)
        made = services()
        try:
            asyncio.run(
                _serve(
                    place,
                    made,
                    guard=guard,
                    workers=workers or num_cores(),
                    limits=limits,
                    observers=observers,
                    metrics=metrics,
                )
            )
        except BaseException:
            for service in made:
                service.close()
            raise
    _exit(0)


async def _serve(
    address: Address, services: Sequence[Service], *, metrics: Metrics | None, **options: Any
) -> None:
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()

    def on_signal(number: int) -> None:
        if stopping.is_set():  # a second signal
            _exit(128 + number)
        stopping.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, on_signal, number)
    server = await Server.start(address, services, metrics=metrics, **options)
    settling = asyncio.create_task(_settle(server))
    print(f"listening on {server.address}", file=sys.stderr, flush=True)
    if metrics is not None:
        _log.info("metrics on %s.", metrics.address)
    await stopping.wait()
    settling.cancel()
    await server.stop()


async def _settle(server: Server) -> None:
    await server.ready()
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
