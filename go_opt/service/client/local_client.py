"""A client whose services are objects of this process."""

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
from go_opt.service.calls.call import Call
from go_opt.service.calls.calls import Service
from go_opt.service.client.client import ServiceClient
from go_opt.service.jobs.data_directory import DataDirectory
from go_opt.service.jobs.manager import JobManager
from go_opt.service.jobs.runners.local_runner import LocalRunner
from go_opt.service.services.operations_service import OperationsService
from go_opt.service.services.optimizer_service import OptimizerService
from go_opt.service.services.training_service import TrainingService
from go_opt.service.workers.optimizer import LocalOptimizer


class LocalClient(ServiceClient):
    """The twin of :class:`go_opt.Client`: its methods, answers and errors, without a service.

    To be used in a ``with`` statement or closed. Training jobs run in processes of their own.

    Args:
      folder: keeps the jobs and the policies they made, for one client at a time; a job that
        was cut off goes on with the next. By default a temporary one, which goes with this.
    """

    def __init__(self, *, folder: str | Path | None = None) -> None:
        super().__init__(LocalConnection(folder))


class LocalConnection:
    """Calls of the services of this process, which run in the threads they are called from.

    It has what clients use of a ``grpc.Channel``, too. The folder of the jobs is opened, and what
    was cut off gone on with, at the first call that concerns them.
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
        """The method at a path, as stubs ask a channel for it."""

        def call(message: Any) -> Any:
            method, data = self._method(path), request_serializer(message)
            answer = method.work(data, Call(path, "", "", None))
            # Not in this thread, which may have a loop of its own.
            return _in_thread(lambda: asyncio.run(answer)).result() if method.kind == "poll" else answer

        return call

    def unary_stream(self, path: str, **_: object) -> Callable[[bytes], Generator[Any, None, None]]:
        """As :meth:`unary_unary`; the work begins with the first ``next`` and ends when this is closed."""

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
                answer.exception()  # once it has ended

        return stream

    def call(self, method: Callable[[Any], Any], message: Any, **options: object) -> Any:
        return method(message)

    def stream(
        self, method: Callable[[Any], Generator[Any, None, None]], message: Any, **options: object
    ) -> Generator[Any, None, None]:
        return method(message)

    def close(self) -> None:
        """Cut off the jobs that run."""
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
        # Who asks is who would allow: any environment may be called.
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
    """What work comes to, in a thread that does not hold up the end of the process."""
    outcome: Future[Any] = Future()

    def run() -> None:
        try:
            outcome.set_result(work())
        except BaseException as error:  # for the reader to raise: a thread has nobody to tell
            outcome.set_exception(error)

    threading.Thread(target=run, name="go-opt call", daemon=True).start()
    return outcome
