"""A client whose services run in this process."""

from __future__ import annotations

import asyncio
import queue
import tempfile
import threading
from collections.abc import Generator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from google.protobuf.message import Message

from go_opt.errors import ServiceError
from go_opt.service.calls.calls import Call, Method, Service, in_thread
from go_opt.service.client.client import ServiceClient
from go_opt.service.client.connection import METHODS, bytes_of
from go_opt.service.jobs.job_process import LocalRunner
from go_opt.service.jobs.manager import JobManager
from go_opt.service.jobs.services import OperationsService, TrainingService
from go_opt.service.jobs.store import DataDirectory
from go_opt.service.workers.optimizer import LocalOptimizer, OptimizerService


class LocalClient(ServiceClient):
    """Has the methods, answers and errors of :class:`go_opt.Client`, without a remote service.

    Use it in a ``with`` statement, or close it. Training jobs run in their own processes.

    Args:
      folder: stores jobs and their policies, for one client at a time. The next client resumes
        interrupted jobs. By default a temporary folder, which is deleted on close.
    """

    def __init__(self, *, folder: str | Path | None = None) -> None:
        super().__init__(LocalConnection(folder))


class LocalConnection:
    """Calls services of this process: streams and polls in a new thread, others in the calling thread.

    The first call that concerns jobs opens their folder and resumes interrupted jobs.
    """

    def __init__(self, folder: str | Path | None) -> None:
        self._closing = ExitStack()
        if folder is None:
            folder = self._closing.enter_context(tempfile.TemporaryDirectory(prefix="go-opt-"))
        self._folder = folder
        self._lock = threading.Lock()
        self._is_closed = False
        self._manager: JobManager | None = None
        self._optimizer = OptimizerService(
            LocalOptimizer(), find_policy=lambda name, owner: self._jobs().find_policy(name, owner)
        )

    def call(self, method: str, request: bytes | Message, **options: object) -> Any:
        served, data = self._method(method), bytes_of(request)
        answer = served.work(data, Call(method))
        # Not in this thread, which may already run an event loop.
        return in_thread(lambda: asyncio.run(answer)).result() if served.kind == "poll" else answer

    def stream(self, method: str, request: bytes, **options: object) -> Generator[Any, None, None]:
        """As :meth:`call`; work starts with the first ``next`` and stops on close."""
        sent: queue.SimpleQueue[Any] = queue.SimpleQueue()
        call = Call(method)
        answer = in_thread(lambda: self._method(method).work(request, call, sent.put))
        answer.add_done_callback(lambda _: sent.put(None))
        try:
            while (message := sent.get()) is not None:
                yield message
            yield answer.result()
        finally:
            call.stop.set()
            answer.exception()  # waits until the work has ended

    def close(self) -> None:
        """Interrupt running jobs."""
        with self._lock:
            self._is_closed = True
            self._closing.close()

    def _method(self, name: str) -> Method:
        return self._service(METHODS[name].containing_service.full_name).methods()[name]

    def _service(self, name: str) -> Service:
        if name == OptimizerService.name:
            return self._optimizer
        jobs = self._jobs()
        # The caller is also the operator, so jobs may call any environment.
        training = TrainingService(jobs, environments=None)
        return training if name == TrainingService.name else OperationsService(jobs)

    def _jobs(self) -> JobManager:
        with self._lock:
            if self._is_closed:
                raise ServiceError("the client is closed.")
            if self._manager is None:
                self._manager = JobManager(DataDirectory(self._folder), LocalRunner())
                self._closing.callback(self._manager.close)
            return self._manager
