"""An environment behind a go-opt service: a cost model on another machine, or any hardware."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import count
from typing import Final, Literal, TypeVar, get_args

import grpc
import numpy as np

from go_opt.agents.training.problems.environment import Evaluations
from go_opt.env import Target
from go_opt.env.evaluation import Plans
from go_opt.env.model.metrics import Objective, check_choice, check_objective, objective_s
from go_opt.errors import (
    EnvironmentFailedError,
    GoOptError,
    InvalidInputError,
    NotFoundError,
    ServiceError,
)
from go_opt.model.codecs.wire import graph_to_proto, plan_to_proto
from go_opt.model.graph import Graph
from go_opt.model.plan import Plan
from go_opt.proto import environment_pb2, environment_pb2_grpc, plan_pb2
from go_opt.service.messages.convert import target_to_proto
from go_opt.service.messages.errors import error_from_call
from go_opt.service.transport.address import parse_address
from go_opt.service.transport.credentials import Credentials, channel, is_ready
from go_opt.service.transport.retry import Failure, Retry, with_retries

ServedFidelity = Literal["analytical", "simulated", "hardware"]
DECIDED: Final = ("placement", "order", "fusion_group")
CONNECT_TIMEOUT_S: Final = 4.0
_CLOSE_TIMEOUT_S: Final = 2.0
_MAX_BATCH_NUMBERS: Final = 4_000_000  # of all plans in a message: about 16 MiB
_NUMBERS_PER_OP: Final = 5
_T = TypeVar("_T")
_Write = Callable[["PlanWriter", environment_pb2.EvaluateBatchRequest, slice], None]


class PlanWriter:
    """Writes the messages of plans that differ from ``example`` only in their decisions."""

    def __init__(self, example: Plan) -> None:
        message = plan_to_proto(example)
        for name in DECIDED:
            message.ClearField(name)
        self._rest = message.SerializeToString()
        self._example = example

    def write(self, request: environment_pb2.EvaluateBatchRequest, plans: Sequence[Plans]) -> None:
        """Add the plans of these placements, orders and fusion groups ([B, N] each) to a request."""
        for row in zip(*(np.asarray(array).tolist() for array in plans), strict=True):
            message = request.plans.add()
            message.MergeFromString(self._rest)
            for name, values in zip(DECIDED, row, strict=True):
                getattr(message, name).extend(values)

    def write_whole(self, request: environment_pb2.EvaluateBatchRequest, plans: Sequence[Plan]) -> None:
        """Add whole plans, with the fingerprints of the example."""
        example = self._example
        fingerprints = {name: getattr(example, name) for name in ("graph_fingerprint", "target_fingerprint")}
        request.plans.extend(plan_to_proto(replace(plan, **fingerprints)) for plan in plans)


@dataclass(frozen=True)
class RemoteEnvironment:
    """An environment at ``address`` (``HOST:PORT``).

    If the service becomes unavailable, calls are retried as ``retry`` says, and earlier answers are
    kept. The service may restart meanwhile, because a lost session is opened again.

    Args:
      fidelity: the requested fidelity; ``hardware`` means measured plans.
      timeout_s: the timeout for opening a session and for each message of plans.
      objective: whether to request intervals or makespans.
    """

    address: str
    fidelity: ServedFidelity = "hardware"
    credentials: Credentials = field(default_factory=Credentials)
    timeout_s: float = 600.0
    retry: Retry = field(default_factory=Retry)
    objective: Objective = "throughput"

    def __post_init__(self) -> None:
        parse_address(self.address)
        check_choice("fidelity", self.fidelity, get_args(ServedFidelity))
        check_objective(self.objective)
        if not self.timeout_s > 0:
            raise InvalidInputError(f"timeout_s is {self.timeout_s}, must be above zero.", field="timeout_s")

    def connect(self) -> RemoteEnvironment:
        """Waits until a service answers at the address, and returns this environment.

        Raises:
          ServiceError: nothing answers within a few seconds.
        """
        with channel(parse_address(self.address), self.credentials) as opened:
            if not is_ready(opened, CONNECT_TIMEOUT_S):
                raise ServiceError(
                    f"no environment answers at {self.address} (waited {CONNECT_TIMEOUT_S:g} s)."
                )
        return self

    def open(self, graph: Graph, target: Target) -> RemoteSession:
        """Upload ``graph`` and ``target``.

        Raises:
          EnvironmentFailedError: the service cannot be reached or refuses them.
        """
        return RemoteSession(self, graph, target)


@dataclass(frozen=True)
class _Opened:
    """The state of an open session at the service."""

    session_id: str
    max_batch_plans: int
    reference_s: float
    writer: PlanWriter


class RemoteSession:
    """A session for a graph on a target; several threads may use it, each with its own stream."""

    def __init__(self, environment: RemoteEnvironment, graph: Graph, target: Target) -> None:
        self._environment = environment
        self._graph = graph
        self._target = target
        self._batches = count(1)
        self._lock = threading.Lock()
        self._opened: _Opened | None = None
        self._channel = channel(parse_address(environment.address), environment.credentials)
        self._metadata = environment.credentials.metadata
        self._stub = environment_pb2_grpc.EnvironmentStub(self._channel)  # type: ignore[no-untyped-call]
        try:
            self._retried(self._open)
        except BaseException:
            self._channel.close()
            raise

    def evaluate(self, placement: Plans, order: Plans, fusion_group: Plans) -> Evaluations:
        """Evaluate the plans ([B, N] each), in their order.

        Raises:
          EnvironmentFailedError: the service failed, or was unavailable for too long.
        """
        plans = (placement, order, fusion_group)
        return self._evaluated(
            len(placement), lambda writer, request, rows: writer.write(request, [x[rows] for x in plans])
        )

    def evaluate_plans(self, plans: Sequence[Plan]) -> Evaluations:
        """Evaluate plans that may have replicated stages and relays, in their order.

        Raises:
          EnvironmentFailedError: the service failed, or was unavailable for too long.
        """
        return self._evaluated(
            len(plans), lambda writer, request, rows: writer.write_whole(request, plans[rows])
        )

    def _evaluated(self, num_plans: int, write: _Write) -> Evaluations:
        reached_s = np.full(num_plans, np.inf)
        valid = np.zeros(num_plans, dtype=np.bool_)
        chip_s = np.full((num_plans, self._target.num_chips), np.nan)
        done = 0
        while done < num_plans:
            metrics = self._retried(partial(self._ask, range(done, num_plans), write))
            stop = done + len(metrics)
            reached_s[done:stop] = [objective_s(each, self._environment.objective) for each in metrics]
            valid[done:stop] = [each.valid for each in metrics]
            for row, each in zip(chip_s[done:stop], metrics, strict=True):
                if len(each.compute_s) == len(row):  # else the chips were not measured
                    row[:] = each.compute_s
            done = stop
        return Evaluations(reached_s, valid, chip_s)

    def close(self) -> None:
        """Close the session; it expires at the service if that cannot be reached."""
        with self._lock:
            opened, self._opened = self._opened, None
        with suppress(grpc.RpcError):
            if opened is not None:
                request = environment_pb2.CloseSessionRequest(session_id=opened.session_id)
                self._stub.CloseSession(request, timeout=_CLOSE_TIMEOUT_S, metadata=self._metadata)
        self._channel.close()

    def _retried(self, attempt: Callable[[], _T]) -> _T:
        try:
            return with_retries(lambda left_s: attempt(), self._environment.retry, None)
        except GoOptError as error:
            raise EnvironmentFailedError(
                f"the environment at {self._environment.address} failed: {error}"
            ) from error

    def _ask(self, plans: range, write: _Write) -> list[plan_pb2.Metrics]:
        """The metrics of the plans, or of the first plans that were answered before a failure."""
        opened = self._open()
        most = _MAX_BATCH_NUMBERS // (_NUMBERS_PER_OP * self._graph.num_ops)
        size = max(1, min(opened.max_batch_plans, most))
        parts = [range(start, min(start + size, plans.stop)) for start in plans[::size]]
        batches = dict(zip(self._batches, parts, strict=False))
        answered: list[plan_pb2.Metrics] = []

        def requests() -> Iterator[environment_pb2.EvaluateBatchRequest]:
            for number, rows in batches.items():
                request = environment_pb2.EvaluateBatchRequest(session_id=opened.session_id, batch_id=number)
                write(opened.writer, request, slice(rows.start, rows.stop))
                yield request

        call = self._stub.Evaluate(
            requests(),
            timeout=self._environment.timeout_s * len(batches),
            metadata=self._metadata,
        )
        try:
            for number, rows in batches.items():
                answered += _checked(next(call, None), number, len(rows), opened)
            next(call, None)  # read to the end, so that the service sees a complete call
        except grpc.RpcError as error:
            if not answered:
                raise self._failure(error, opened) from error
        finally:
            call.cancel()
        return answered

    def _open(self) -> _Opened:
        """The open session; opens it first if necessary."""
        with self._lock:
            if self._opened is None:
                try:
                    self._opened = self._create()
                except grpc.RpcError as error:
                    raise self._failure(error, None) from error
            return self._opened

    def _create(self) -> _Opened:
        graph, environment = self._graph, self._environment
        request = environment_pb2.CreateSessionRequest(
            graph=graph_to_proto(graph),
            target=target_to_proto(self._target, as_text=True),
            fidelity=f"FIDELITY_{environment.fidelity.upper()}",
            objective=f"OBJECTIVE_{environment.objective.upper()}",
        )
        response = self._stub.CreateSession(request, timeout=environment.timeout_s, metadata=self._metadata)
        if tuple(response.op_names) != graph.op_names or response.max_batch_plans < 1:
            raise EnvironmentFailedError("it holds another graph than it was sent.")
        reference_s = response.reference_interval_s
        if environment.objective == "latency":
            reference_s = response.reference_makespan_s
            if not reference_s:  # an older service without this field answers intervals
                raise EnvironmentFailedError("it is of a version that serves no objective latency.")
        ops = np.arange(graph.num_ops, dtype=np.int32)
        example = Plan.create(
            graph,
            self._target.source,
            response.target_fingerprint,
            placement=0 * ops,
            order=ops,
            fusion_group=ops,
            provenance="session",
        )
        return _Opened(
            response.session_id,
            response.max_batch_plans,
            reference_s,
            PlanWriter(replace(example, graph_fingerprint=response.graph_fingerprint)),
        )

    def _failure(self, error: grpc.RpcError, opened: _Opened | None) -> Failure:
        """The failure of a call; a lost session counts as an unavailable service, so it is retried."""
        code, cause = error.code(), error_from_call(error, self._environment.address)
        if opened is not None and isinstance(cause, NotFoundError):
            with self._lock:
                if self._opened is opened:  # no other thread has reopened it
                    self._opened = None
            code = grpc.StatusCode.UNAVAILABLE
        return Failure(code, cause)


def _checked(
    response: environment_pb2.EvaluateBatchResponse | None, number: int, num_plans: int, opened: _Opened
) -> Sequence[plan_pb2.Metrics]:
    """Checks an answer and returns its metrics.

    Raises:
      EnvironmentFailedError: it does not answer batch ``number`` with ``num_plans`` plans.
    """
    if response is None:
        raise EnvironmentFailedError(f"it ended the stream before batch {number}.")
    if response.batch_id != number:
        raise EnvironmentFailedError(f"it answered batch {response.batch_id} in place of {number}.")
    if not len(response.metrics) == len(response.rewards) == num_plans:
        raise EnvironmentFailedError(
            f"it answered {len(response.metrics)} metrics and {len(response.rewards)} rewards "
            f"to the {num_plans} plans of batch {number}."
        )
    for i, (metrics, reward) in enumerate(zip(response.metrics, response.rewards, strict=True)):
        if metrics.valid and math.isfinite(opened.reference_s) and not math.isfinite(reward):
            raise EnvironmentFailedError(f"the reward of plan {i} of batch {number} is {reward}.")
    answered: Sequence[plan_pb2.Metrics] = response.metrics
    return answered
