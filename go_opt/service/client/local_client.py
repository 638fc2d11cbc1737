"""A client whose services run in this process."""

from __future__ import annotations

import asyncio
import queue
import tempfile
import threading
from collections.abc import Callable, Generator
from concurrent.futures import Future
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from go_opt.errors import ServiceError
from go_opt.service.calls.calls import Call, Service
from go_opt.service.client.client import ServiceClient
from go_opt.service.jobs.data_directory import DataDirectory
from go_opt.service.jobs.manager import JobManager
from go_opt.service.jobs.runners.local_runner import LocalRunner
from go_opt.service.services.operations_service import OperationsService
from go_opt.service.services.optimizer_service import OptimizerService
from go_opt.service.services.training_service import TrainingService
from go_opt.service.workers.optimizer import LocalOptimizer


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

    Also acts as the ``grpc.Channel`` of the stubs. The first call that concerns jobs opens their
    folder and resumes interrupted jobs.
    """

    def __init__(self, folder: str | Path | None) -> None:
        self.channel = self
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

    def unary_unary(
        self, path: str, request_serializer: Callable[[Any], bytes] = bytes, **_: object
    ) -> Callable[[Any], Any]:
        """The method at a path; stubs call this on their channel."""

        def call(message: Any) -> Any:
            method, data = self._method(path), request_serializer(message)
            answer = method.work(data, Call(path, "", "", None))
            # Not in this thread, which may already run an event loop.
            return _in_thread(lambda: asyncio.run(answer)).result() if method.kind == "poll" else answer

        return call

    def unary_stream(self, path: str, **_: object) -> Callable[[bytes], Generator[Any, None, None]]:
        """As :meth:`unary_unary`; work starts with the first ``next`` and stops on close."""

        def stream(data: bytes) -> Generator[Any, None, None]:
            emitted: queue.SimpleQueue[Any] = queue.SimpleQueue()
            call = Call(path, "", "", None)
            answer = _in_thread(lambda: self._method(path).work(data, call, emitted.put))
            answer.add_done_callback(lambda _: emitted.put(None))
            try:
                while (message := emitted.get()) is not None:
                    yield message
                yield answer.result()
            finally:
                call.stop.set()
                answer.exception()  # waits until the work has ended

        return stream

    def call(self, method: Callable[[Any], Any], message: Any, **options: object) -> Any:
        return method(message)

    def stream(
        self, method: Callable[[Any], Generator[Any, None, None]], message: Any, **options: object
    ) -> Generator[Any, None, None]:
        return method(message)

    def close(self) -> None:
        """Interrupt running jobs."""
        with self._lock:
            self._is_closed = True
            self._closing.close()

    def _method(self, path: str) -> Any:
        _, service, method = path.split("/")
        return self._service(service).methods()[method]

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


def _in_thread(work: Callable[[], Any]) -> Future[Any]:
    """Runs ``work`` in a daemon thread, which does not delay the exit of the process."""
    outcome: Future[Any] = Future()

    def run() -> None:
        try:
            outcome.set_result(work())
        except BaseException as error:  # the reader of the future raises it
            outcome.set_exception(error)

    threading.Thread(target=run, name="go-opt call", daemon=True).start()
    return outcome
