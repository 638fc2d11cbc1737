"""Clients of go-opt's services: :class:`Client` of one elsewhere, and what all clients have in common."""

from __future__ import annotations

import math
from collections.abc import Generator, Sequence
from functools import lru_cache
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self, Unpack

import grpc

from go_opt.api.chips import FewestChips
from go_opt.constraint_file import as_constraints
from go_opt.env import Metrics, Target
from go_opt.env.model.metrics import Fidelity, check_fidelity, check_objective
from go_opt.frontends.graph_like import as_graph
from go_opt.frontends.onnx_model import OnnxModel
from go_opt.model.codecs.wire import graph_to_proto, plan_to_proto
from go_opt.model.graph import Graph
from go_opt.model.plan import Plan
from go_opt.proto import optimizer_pb2
from go_opt.result import Objective, OptimizeResult, check_seed
from go_opt.service.client.connection import Connection
from go_opt.service.client.operation import CALL_TIMEOUT_S, Jobs
from go_opt.service.client.training import TrainingClient
from go_opt.service.messages.convert import (
    explanation_from_proto,
    fewest_chips_from_proto,
    metrics_from_proto,
    onnx_to_proto,
    result_from_proto,
    target_to_proto,
)
from go_opt.service.messages.convert_request import (
    SearchOptions,
    constraints_to_proto,
    read_options,
    request_to_proto,
)
from go_opt.service.transport.credentials import Credentials
from go_opt.service.transport.retry import Retry
from go_opt.solver import Violation
from go_opt.solver.problem.user_constraints import UserConstraint

if TYPE_CHECKING:
    import networkx as nx

    from go_opt.service.client.operation import AnyConnection

_SERVICE: Final = optimizer_pb2.DESCRIPTOR.services_by_name["Optimizer"]
# Beyond a search's own budget: it may have to wait for its turn.
_QUEUE_S: Final = 600.0
# For the fewest chips, by bisection.
_MOST_SEARCHES: Final = 16
# The first simulation after an install compiles for half a minute.
_EVALUATE_TIMEOUT_S: Final = 300.0


class ServiceClient(TrainingClient):
    """The methods of a service, to be used in a ``with`` statement or closed.

    They raise what the same call raises in process. Several threads may share a client.
    """

    def __init__(self, connection: AnyConnection) -> None:
        self._connection = connection
        self._methods = _methods(connection.channel)
        self._jobs = Jobs(connection)

    def optimize(
        self,
        graph: Graph | nx.DiGraph | OnnxModel,
        target: str | Path | Target = "mcm-6x6",
        *,
        request_id: str | None = None,
        **options: Unpack[SearchOptions],
    ) -> OptimizeResult:
        """As :func:`go_opt.optimize`; policy files of your own stay in process.

        Args:
          graph: an :class:`go_opt.OnnxModel` is imported by the service.
          target: a name, the path of a file, whose text is sent, or a shipped target.
          request_id: the name of the call in the service's log; by default a new one.
          options: those of :class:`SearchOptions`.
        """
        request, limit_s = _search(graph, target, options)
        answer = self._connection.call(self._methods["Optimize"], request, timeout_s=limit_s, name=request_id)
        return result_from_proto(answer)

    def optimize_stream(
        self,
        graph: Graph | nx.DiGraph | OnnxModel,
        target: str | Path | Target = "mcm-6x6",
        *,
        request_id: str | None = None,
        **options: Unpack[SearchOptions],
    ) -> Generator[OptimizeResult, None, None]:
        """As :meth:`optimize`, but every better plan as it is found; the last one is the answer.

        The others have no history. The search starts with the first ``next``; closing the
        generator cancels it.
        """
        request, limit_s = _search(graph, target, options)
        updates = self._connection.stream(
            self._methods["OptimizeStream"], request, timeout_s=limit_s, name=request_id
        )
        return _results(updates)

    def fewest_chips(
        self,
        graph: Graph | nx.DiGraph | OnnxModel,
        target: str | Path | Target = "mcm-6x6",
        *,
        rate_per_s: float | None = None,
        request_id: str | None = None,
        **options: Unpack[SearchOptions],
    ) -> FewestChips:
        """As :func:`go_opt.fewest_chips`; the results of what was tried have no history.

        Args:
          rate_per_s: inferences a second; None: ``max_latency_s`` is what is asked.
          options: those of :class:`SearchOptions`; the budget is for each number of chips.
        """
        fewest = optimizer_pb2.FewestChips(rate_per_s=rate_per_s)
        request, limit_s = _search(graph, target, options, fewest)
        answer = self._connection.call(self._methods["Optimize"], request, timeout_s=limit_s, name=request_id)
        return fewest_chips_from_proto(answer)

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
        """As :func:`go_opt.evaluate`."""
        check_fidelity(fidelity)
        check_seed(seed)
        message = optimizer_pb2.EvaluateRequest(fidelity=f"FIDELITY_{fidelity.upper()}", seed=seed)
        answer = self._judged("Evaluate", message, graph, target, plan, constraints, request_id)
        return metrics_from_proto(answer.metrics)

    def verify(
        self,
        graph: Graph,
        target: str | Path | Target,
        plan: Plan,
        constraints: Sequence[UserConstraint] | str | Path = (),
        *,
        request_id: str | None = None,
    ) -> list[Violation]:
        """As :func:`go_opt.verify`."""
        message = optimizer_pb2.VerifyRequest()
        answer = self._judged("Verify", message, graph, target, plan, constraints, request_id)
        return [Violation(found.constraint, found.message) for found in answer.violations]

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
        """As :func:`go_opt.explain`, in the form that ``go-opt explain --json`` prints."""
        check_objective(objective)
        message = optimizer_pb2.ExplainRequest(op=op or "", objective=f"OBJECTIVE_{objective.upper()}")
        answer = self._judged("Explain", message, graph, target, plan, constraints, request_id)
        return explanation_from_proto(answer.explanation)

    def list_targets(self, *, request_id: str | None = None) -> tuple[str, ...]:
        """Names of the targets that ship with the service."""
        answer = self._connection.call(
            self._methods["ListTargets"], b"", timeout_s=CALL_TIMEOUT_S, name=request_id
        )
        return tuple(target.name for target in answer.targets)

    def close(self) -> None:
        """Close the connection; calls under way are cancelled."""
        self._connection.close()

    def _judged(
        self,
        method: str,
        message: Any,
        graph: Graph,
        target: str | Path | Target,
        plan: Plan,
        constraints: Sequence[UserConstraint] | str | Path,
        request_id: str | None,
    ) -> Any:
        """The answer to a request about a plan for the graph; the message has what is of this method."""
        message.target.CopyFrom(target_to_proto(target))
        message.plan.CopyFrom(plan_to_proto(plan))
        message.constraints.extend(constraints_to_proto(as_constraints(constraints)))
        request = _graph_alone(graph) + message.SerializeToString()
        return self._connection.call(
            self._methods[method], request, timeout_s=_EVALUATE_TIMEOUT_S, name=request_id
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class Client(ServiceClient):
    """A connection to a service.

    Its methods raise :class:`ServiceError` or a subclass where the service cannot be reached or
    fails; the notes of every error name the request.

    Args:
      address: ``HOST:PORT``.
      timeout_s: the deadline of each call, retries included; it also caps a search's budget.
        By default 10 min beyond the budget (none for a search that only evaluations limit),
        5 min for an evaluation, 1 min for others.
      credentials: how it proves who it is and knows the service; by default neither.
      retry: how often a call is tried while the service is not there or has no room.
    """

    def __init__(
        self,
        address: str,
        *,
        timeout_s: float | None = None,
        credentials: Credentials | None = None,
        retry: Retry | None = None,
    ) -> None:
        super().__init__(Connection(address, credentials=credentials, retry=retry, timeout_s=timeout_s))


def _methods(channel: grpc.Channel) -> dict[str, Any]:
    """Those of the service by name; they take requests as bytes."""
    methods = {}
    for method in _SERVICE.methods:
        make = channel.unary_stream if method.server_streaming else channel.unary_unary
        answer = getattr(optimizer_pb2, method.output_type.name)
        path = f"/{_SERVICE.full_name}/{method.name}"
        methods[method.name] = make(path, response_deserializer=answer.FromString)
    return methods


@lru_cache(maxsize=2)  # a compiler asks again and again about the same graph
def _graph_alone(graph: Graph) -> bytes:
    """Any request with nothing but its graph, in all of them field 1; the rest is appended."""
    data: bytes = optimizer_pb2.OptimizeRequest(graph=graph_to_proto(graph)).SerializeToString(
        deterministic=True  # a service knows a request again by its bytes
    )
    return data


def _search(
    graph: Graph | nx.DiGraph | OnnxModel,
    target: str | Path | Target,
    options: SearchOptions,
    fewest: optimizer_pb2.FewestChips | None = None,
) -> tuple[bytes, float | None]:
    """What is asked, and how long to wait for the answer."""
    request, policy = read_options(options, None if isinstance(graph, OnnxModel) else as_graph(graph))
    message = request_to_proto(request, policy=policy)
    if fewest is not None:
        message.fewest_chips.CopyFrom(fewest)
    message.target.CopyFrom(target_to_proto(target))
    if isinstance(graph, OnnxModel):
        message.onnx.CopyFrom(onnx_to_proto(graph))
    data = message.SerializeToString(deterministic=True)
    if not isinstance(graph, OnnxModel):
        data = _graph_alone(as_graph(graph)) + data
    limit_s = request.time_limit_s * (1 if fewest is None else _MOST_SEARCHES)
    return data, limit_s + _QUEUE_S if math.isfinite(limit_s) else None


def _results(
    updates: Generator[optimizer_pb2.OptimizeUpdate, None, None],
) -> Generator[OptimizeResult, None, None]:
    try:
        for update in updates:
            yield result_from_proto(getattr(update, update.WhichOneof("update") or "result"))
    finally:
        updates.close()
