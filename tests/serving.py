"""Services of this process, for clients in it."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from go_opt.service.calls.calls import Service
from go_opt.service.calls.security import Security
from go_opt.service.server import Server
from go_opt.service.transport.address import parse_address
from go_opt.service.workers.optimizer import LocalOptimizer, Optimizer, OptimizerService

START_S = 120.0  # far more than a worker needs on a busy machine


def wait_until_ready(optimizer: Optimizer) -> None:
    """Return once calls would not wait for anything to load."""
    end_s = time.monotonic() + START_S
    while not optimizer.is_ready():
        assert time.monotonic() < end_s, "the workers did not start"
        time.sleep(0.02)


@contextmanager
def serve_in_thread(
    services: Sequence[Service] | None = None, *, security: Security | None = None, **options: Any
) -> Iterator[str]:
    """Services on a free port of this machine; gives the address.

    Args:
      services: by default the optimizer of this process.
      options: of :meth:`Server.start`.
    """
    guard = (security or Security()).load()
    made = [OptimizerService(LocalOptimizer())] if services is None else services
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="go-opt service", daemon=True)
    thread.start()
    try:
        starting = Server.start(parse_address("127.0.0.1:0"), made, guard=guard, **options)
        server = asyncio.run_coroutine_threadsafe(starting, loop).result()
        try:
            yield str(server.address)
        finally:
            asyncio.run_coroutine_threadsafe(server.stop(), loop).result()
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()
