"""Serves ``go_opt.v1.Optimizer`` with health and reflection: :func:`serve`."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from go_opt.errors import InvalidInputError
from go_opt.service.address import DEFAULT_ADDRESS, Address, check_free, parse_address
from go_opt.service.channel import MESSAGE_OPTIONS
from go_opt.service.optimizer import LocalOptimizer, Optimizer
from go_opt.service.servicer import SERVICE_NAME, OptimizerServicer

# Together the 5 s that orchestrators are promised, with a little to spare.
_FINISH_S: Final = 3.0  # calls under way go on
_STOP_S: Final = 1.0  # searches answer the best they have
_CLOSE_S: Final = 0.5  # answers leave
_OPTIONS: Final = (
    *MESSAGE_OPTIONS,
    # With it on, a second service on a busy port would share its calls and not fail.
    ("grpc.so_reuseport", 0),
    # Clients ping while they wait for a search; by default that looks like an attack.
    ("grpc.http2.min_ping_interval_without_data_ms", 10_000),
    ("grpc.http2.max_ping_strikes", 0),
)


class Server:
    """A service that listens; made by :meth:`start` in a running event loop."""

    def __init__(self, server: grpc.aio.Server, servicer: OptimizerServicer, address: Address) -> None:
        self._server = server
        self._servicer = servicer
        self._health = health.aio.HealthServicer()
        self.address = address

    @classmethod
    async def start(cls, address: Address, optimizer: Optimizer, *, workers: int) -> Server:
        """Listen at ``address``; port 0 takes a free one."""
        check_free(address)
        grpc_server = grpc.aio.server(options=_OPTIONS)
        servicer = OptimizerServicer(optimizer, workers=workers)
        grpc_server.add_generic_rpc_handlers((servicer.handlers(),))
        try:
            port = grpc_server.add_insecure_port(str(address))
        except RuntimeError:
            raise InvalidInputError(f"cannot listen on {address}.", field="address") from None
        server = cls(grpc_server, servicer, Address(address.host, port))
        await server._announce()
        await grpc_server.start()
        return server

    async def _announce(self) -> None:
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self._server)
        for name in ("", SERVICE_NAME):
            await self._health.set(name, health_pb2.HealthCheckResponse.SERVING)
        names = (SERVICE_NAME, health.SERVICE_NAME, reflection.SERVICE_NAME)
        reflection.enable_server_reflection(names, self._server)

    async def stop(self) -> bool:
        """Drain, then stop listening; False where a search still runs and is cut off."""
        await self._health.enter_graceful_shutdown()
        await self._servicer.drain(_FINISH_S, _STOP_S)
        await self._server.stop(_CLOSE_S)
        return self._servicer.close()


def serve(
    address: str = DEFAULT_ADDRESS,
    insecure: bool = False,
    *,
    optimizer: Optimizer | None = None,
    workers: int | None = None,
) -> None:
    """Serve until SIGTERM or SIGINT, then drain within 5 s and return.

    Args:
      address: ``HOST:PORT``; port 0 takes a free one. Printed on stderr once it listens.
      insecure: allow an address that other machines reach; calls are not encrypted and
        anyone who reaches the port may call.
      workers: searches that run at once, by default one per CPU.

    Raises:
      InvalidInputError: the address is malformed, busy, or needs ``insecure``.
    """
    place = parse_address(address)
    if not (insecure or place.is_loopback):
        raise InvalidInputError(
            f"{address} can be reached from other machines and the service has no encryption; "
            "give --insecure (insecure=True) to serve there all the same.",
            field="insecure",
        )
    finished = asyncio.run(_serve(place, optimizer or LocalOptimizer(), workers or os.cpu_count() or 1))
    if not finished:
        # The interpreter would wait for the search's thread, beyond the time promised.
        logging.shutdown()
        sys.stderr.flush()
        os._exit(0)


@contextmanager
def serve_in_thread(optimizer: Optimizer | None = None, *, workers: int = 1) -> Iterator[str]:
    """A service on a free port of this machine, for tests and notebooks; gives its address."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="go-opt service", daemon=True)
    thread.start()
    place = parse_address("127.0.0.1:0")
    starting = Server.start(place, optimizer or LocalOptimizer(), workers=workers)
    server = asyncio.run_coroutine_threadsafe(starting, loop).result()
    try:
        yield str(server.address)
    finally:
        asyncio.run_coroutine_threadsafe(server.stop(), loop).result()
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


async def _serve(address: Address, optimizer: Optimizer, workers: int) -> bool:
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopping.set)
    server = await Server.start(address, optimizer, workers=workers)
    print(f"listening on {server.address}", file=sys.stderr, flush=True)
    await stopping.wait()
    return await server.stop()
