"""Assembles the services of ``go-opt serve``."""

from __future__ import annotations

import threading
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from go_opt.common.processes import num_cores
from go_opt.errors import InvalidInputError
from go_opt.search.compiling.warm_up import warm_up
from go_opt.service.calls.calls import Service
from go_opt.service.environment.environment_service import EnvironmentService
from go_opt.service.jobs.job_process import LocalRunner
from go_opt.service.jobs.manager import JobLimits, JobManager
from go_opt.service.jobs.services import OperationsService, TrainingService
from go_opt.service.jobs.store import DataDirectory
from go_opt.service.transport.address import parse_address
from go_opt.service.workers.optimizer import OptimizerService, no_policies
from go_opt.service.workers.process_optimizer import ProcessOptimizer

RunnerName = Literal["local", "ray"]


@dataclass(frozen=True)
class Assembly:
    """The services of one server and their resources.

    Args:
      workers: worker processes for searches; by default one per core of this process.
      data_dir: stores training jobs, their policies and remembered plans; None: no training.
      jobs: training jobs that run at once; 0: the service accepts no jobs.
      runner: where jobs run: in processes on this machine, or on a Ray cluster.
      environments: ``HOST:PORT`` of the environments that jobs may use.
      remember: whether searches begin with the caller's nearest plan.
    """

    workers: int | None = None
    data_dir: Path | None = None
    jobs: int | None = None
    runner: RunnerName = "local"
    environments: Collection[str] = ()
    remember: bool = False

    def __post_init__(self) -> None:
        if self.workers is not None and self.workers < 1:
            raise InvalidInputError(f"--workers is {self.workers}, must be 1 or more.", field="workers")
        if self.jobs is not None and self.jobs < 0:
            raise InvalidInputError(f"--jobs is {self.jobs}, must be 0 or more.", field="jobs")
        if self.jobs and self.data_dir is None:
            raise InvalidInputError("--jobs needs --data-dir, which keeps them.", field="jobs")
        if self.remember and self.data_dir is None:
            raise InvalidInputError("--remember needs --data-dir, which keeps the plans.", field="remember")
        for address in self.environments:
            parse_address(address, field="allow_environment")

    @property
    def slots(self) -> int:
        """The number of concurrent searches."""
        return self.workers or num_cores()

    def services(self) -> Sequence[Service]:
        """Starts all services; the caller must close each of them."""
        manager, plans = None, None
        if self.data_dir is not None:
            limits = JobLimits(running=1 if self.jobs is None else self.jobs)
            manager = JobManager(DataDirectory(self.data_dir), self.job_runner(), limits)
            plans = self.data_dir / "plans" if self.remember else None
        find_policy = no_policies if manager is None else manager.find_policy
        return (
            OptimizerService(ProcessOptimizer(self.slots), find_policy=find_policy, plans=plans),
            _Environment(),
            TrainingService(None if self.jobs == 0 else manager, environments=self.environments),
            OperationsService(manager),
        )

    def job_runner(self) -> LocalRunner:
        if self.runner == "local":
            return LocalRunner()
        from go_opt.service.jobs.ray_runner import RayRunner

        return RayRunner()


class _Environment(EnvironmentService):
    """Loads the compiled cost model in the background, before the first call needs it."""

    def __init__(self) -> None:
        super().__init__()
        self._loading = threading.Thread(target=warm_up, name="go-opt-kernels", daemon=True)
        self._loading.start()

    def is_ready(self) -> bool:
        return not self._loading.is_alive()
