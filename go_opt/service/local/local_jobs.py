"""Training jobs without a service: the store and the runner of one, in this process."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path

from google.longrunning import operations_pb2

from go_opt.errors import ServiceError
from go_opt.proto import training_pb2
from go_opt.service.jobs.data_directory import DataDirectory
from go_opt.service.jobs.manager import JobManager
from go_opt.service.jobs.runners.local_runner import LocalRunner
from go_opt.service.services.operations_service import OperationsService
from go_opt.service.services.training_service import TrainingService


class LocalJobs:
    """The jobs of a folder, which is opened, and what was cut off gone on with, at the first call."""

    def __init__(self, folder: str | Path) -> None:
        self._folder = folder
        self._lock = threading.Lock()
        self._manager: JobManager | None = None
        self._is_closed = False

    def pretrain(self, request: training_pb2.PretrainRequest) -> operations_pb2.Operation:
        return self._training(request.environment).pretrain(request)

    def finetune(self, request: training_pb2.FinetuneRequest) -> operations_pb2.Operation:
        return self._training(request.environment).finetune(request)

    def get(self, name: str) -> operations_pb2.Operation:
        return self._operations().get(name)

    def wait(self, name: str, timeout_s: float) -> operations_pb2.Operation:
        return self._operations().wait(name, timeout_s)

    def cancel(self, name: str) -> None:
        self._operations().cancel(name)

    def delete(self, name: str) -> None:
        self._operations().delete(name)

    def list(self) -> Sequence[operations_pb2.Operation]:
        operations, page = list[operations_pb2.Operation](), ""
        while True:
            answer = self._operations().list(operations_pb2.ListOperationsRequest(page_token=page))
            operations += answer.operations
            page = answer.next_page_token
            if not page:
                return operations

    def find_policy(self, name: str) -> Path:
        """The file of the policy that a job made; NotFoundError where there is none."""
        return self._opened().find_policy(name)

    def close(self) -> None:
        """Cut off the jobs that run."""
        with self._lock:
            self._is_closed = True
            if self._manager is not None:
                self._manager.close()

    def _training(self, environment: training_pb2.TrainingEnvironment) -> TrainingService:
        # Who asks is who would allow: any environment may be called.
        return TrainingService(self._opened(), environments=[environment.address])

    def _operations(self) -> OperationsService:
        return OperationsService(self._opened())

    def _opened(self) -> JobManager:
        with self._lock:
            if self._is_closed:
                raise ServiceError("the client is closed.")
            if self._manager is None:
                self._manager = JobManager(DataDirectory(self._folder), LocalRunner())
            return self._manager
