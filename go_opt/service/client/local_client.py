"""The methods of a client without a service: everything is done by this process."""

from __future__ import annotations

import tempfile
import threading
from collections.abc import Generator, Sequence
from concurrent.futures import Future
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from queue import SimpleQueue
from types import TracebackType
from typing import TYPE_CHECKING, Any, Unpack

from google.longrunning import operations_pb2

from go_opt import api
from go_opt.api import chips
from go_opt.api.chip_counts import FewestChips
from go_opt.env import Metrics, Target, target_names
from go_opt.env.model.metrics import Fidelity
from go_opt.errors import ServiceError
from go_opt.frontends.graph_like import as_graph
from go_opt.frontends.onnx_model import OnnxModel
from go_opt.model.graph import Graph
from go_opt.model.plan import Plan
from go_opt.proto import training_pb2
from go_opt.result import POLICY_NAMES, Objective, OptimizeResult, Request
from go_opt.result_json import explanation_to_dict
from go_opt.service.client.training import TrainingClient, all_operations
from go_opt.service.jobs.data_directory import DataDirectory
from go_opt.service.jobs.manager import JobManager
from go_opt.service.jobs.runners.local_runner import LocalRunner
from go_opt.service.messages.convert_request import SearchOptions, read_options
from go_opt.service.services.operations_service import OperationsService
from go_opt.service.services.training_service import TrainingService
from go_opt.solver import Violation
from go_opt.solver.problem.user_constraints import UserConstraint

if TYPE_CHECKING:
    import networkx as nx


class LocalClient(TrainingClient):
    """The twin of :class:`go_opt.Client`: its methods, answers and errors, without a service.

    To be used in a ``with`` statement or closed. Training jobs run in processes of their own.

    Args:
      folder: keeps the jobs and the policies they made, for one client at a time; a job that
        was cut off goes on with the next. By default a temporary one, which goes with this.
    """

    def __init__(self, *, folder: str | Path | None = None) -> None:
        self._closing = ExitStack()
        if folder is None:
            folder = self._closing.enter_context(tempfile.TemporaryDirectory(prefix="go-opt-"))
        self._jobs = self._local_jobs = LocalJobs(folder)
        self._closing.callback(self._local_jobs.close)

    def optimize(
        self,
        graph: Graph | nx.DiGraph | OnnxModel,
        target: str | Path | Target = "mcm-6x6",
        *,
        request_id: str | None = None,
        **options: Unpack[SearchOptions],
    ) -> OptimizeResult:
        """As :meth:`go_opt.Client.optimize`."""
        on_graph = _graph(graph)
        request, policy = read_options(options, on_graph)
        return api.optimize(on_graph, target, policy=self._policy(policy), **request.options)

    def optimize_stream(
        self,
        graph: Graph | nx.DiGraph | OnnxModel,
        target: str | Path | Target = "mcm-6x6",
        *,
        request_id: str | None = None,
        **options: Unpack[SearchOptions],
    ) -> Generator[OptimizeResult, None, None]:
        """As :meth:`go_opt.Client.optimize_stream`."""
        on_graph = _graph(graph)
        request, name = read_options(options, on_graph)
        on = target if isinstance(target, Target) else api.target(target)
        return _improvements(on_graph, on, request, self._policy(name))

    def fewest_chips(
        self,
        graph: Graph | nx.DiGraph | OnnxModel,
        target: str | Path | Target = "mcm-6x6",
        *,
        rate_per_s: float | None = None,
        request_id: str | None = None,
        **options: Unpack[SearchOptions],
    ) -> FewestChips:
        """As :meth:`go_opt.Client.fewest_chips`."""
        on_graph = _graph(graph)
        request, name = read_options(options, on_graph)
        found = chips.fewest_chips(
            on_graph, target, request, rate_per_s=rate_per_s, policy=self._policy(name)
        )
        tried = (replace(one, result=one.result and replace(one.result, history=())) for one in found.tried)
        return replace(found, tried=tuple(tried))

    def evaluate(
        self,
        graph: Graph,
        target: str | Path | Target,
        plan: Plan,
        *,
        fidelity: Fidelity = "analytical",
        seed: int | None = None,
        constraints: Sequence[UserConstraint] | str | Path = (),
        request_id: str | None = None,
    ) -> Metrics:
        """As :meth:`go_opt.Client.evaluate`."""
        return api.evaluate(graph, target, plan, fidelity=fidelity, seed=seed, constraints=constraints)

    def verify(
        self,
        graph: Graph,
        target: str | Path | Target,
        plan: Plan,
        constraints: Sequence[UserConstraint] | str | Path = (),
        *,
        request_id: str | None = None,
    ) -> list[Violation]:
        """As :meth:`go_opt.Client.verify`."""
        return api.verify(graph, target, plan, constraints)

    def explain(
        self,
        graph: Graph,
        target: str | Path | Target,
        plan: Plan,
        op: str | None = None,
        *,
        objective: Objective = "throughput",
        constraints: Sequence[UserConstraint] | str | Path = (),
        request_id: str | None = None,
    ) -> dict[str, Any]:
        """As :meth:`go_opt.Client.explain`."""
        return explanation_to_dict(
            api.explain(graph, target, plan, op, objective=objective, constraints=constraints)
        )

    def list_targets(self, *, request_id: str | None = None) -> tuple[str, ...]:
        """As :meth:`go_opt.Client.list_targets`."""
        return target_names()

    def close(self) -> None:
        """Cut off the jobs that run."""
        self._closing.close()

    def __enter__(self) -> LocalClient:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _policy(self, name: str | None) -> str | Path | None:
        return name if name in (*POLICY_NAMES, None) else self._local_jobs.find_policy(name)


def _graph(graph: Graph | nx.DiGraph | OnnxModel) -> Graph:
    return graph.graph() if isinstance(graph, OnnxModel) else as_graph(graph)


def _improvements(
    graph: Graph, target: Target, request: Request, policy: str | Path | None
) -> Generator[OptimizeResult, None, None]:
    """Search in a thread, from the first ``next`` until the end or until this is closed."""
    found: SimpleQueue[OptimizeResult | None] = SimpleQueue()
    answer: Future[OptimizeResult] = Future()
    stop = threading.Event()

    def search() -> None:
        try:
            result = api.optimize(
                graph,
                target,
                policy=policy,
                on_improvement=lambda improvement: found.put(replace(improvement, history=())),
                should_stop=stop.is_set,
                **request.options,
            )
        except BaseException as error:  # for the reader to raise: a thread has nobody to tell
            answer.set_exception(error)
        else:
            answer.set_result(result)
        found.put(None)

    thread = threading.Thread(target=search, name="go-opt search", daemon=True)
    thread.start()
    try:
        while (improvement := found.get()) is not None:
            yield improvement
        yield answer.result()
    finally:
        stop.set()
        thread.join()


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
        return all_operations(self._operations().list)

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
