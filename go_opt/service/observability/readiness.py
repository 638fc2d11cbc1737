"""What a service's health says: whether it can be sent calls."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import Final

from grpc_health.v1 import health, health_pb2

from go_opt.service.calls.calls import Service

_LOOK_S: Final = 0.05
_Status = health_pb2.HealthCheckResponse
_log = logging.getLogger(__name__)


class Readiness:
    """Tells of each service whether it serves, and of the server once all of them do.

    Calls are taken before that, too, and wait.
    """

    def __init__(self, health_checks: health.aio.HealthServicer, services: Sequence[Service]) -> None:
        self._health = health_checks
        self._services = tuple(services)
        self._loading: set[Service] = set(services)
        self._watching: asyncio.Task[None] | None = None
        self.reached = asyncio.Event()

    async def tell(self) -> None:
        """Look at the services that were not ready, and set the health by what is seen."""
        for service in self._services:
            if service.is_ready():
                self._loading.discard(service)
            await self._set(service.name, service not in self._loading)
        await self._set("", not self._loading)

    def watch(self) -> None:
        """Look again and again until all are ready."""
        self._watching = asyncio.create_task(self._watch())

    async def drain(self) -> None:
        """Nothing serves any more."""
        if self._watching is not None:
            self._watching.cancel()
        await self._health.enter_graceful_shutdown()

    async def _watch(self) -> None:
        while self._loading:
            await asyncio.sleep(_LOOK_S)
            await self.tell()
        self.reached.set()
        _log.info("ready.")

    async def _set(self, name: str, serves: bool) -> None:
        await self._health.set(name, _Status.SERVING if serves else _Status.NOT_SERVING)
