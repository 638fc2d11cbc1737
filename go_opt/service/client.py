"""The client of a go-opt service: the doors of this process, answered by another."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final

import grpc

from go_opt.env import Metrics, Target
from go_opt.env.metrics import Fidelity, check_fidelity
from go_opt.errors import InvalidInputError, ServiceError
from go_opt.frontends.graph_like import as_graph
from go_opt.graph import Graph
from go_opt.plan import Plan
from go_opt.proto import optimizer_pb2, optimizer_pb2_grpc
from go_opt.result import Decide, Objective, OptimizeResult, Request, check_seed
from go_opt.service.address import Address, parse_address
from go_opt.service.channel import MESSAGE_OPTIONS
from go_opt.service.convert import (
    metrics_from_proto,
    request_to_proto,
    result_from_proto,
    target_to_proto,
)
from go_opt.service.errors import error_from_call
from go_opt.wire import graph_to_proto, plan_to_proto

if TYPE_CHECKING:
    import networkx as nx

CONNECT_TIMEOUT_S: Final = 4.0


class Client:
    """A connection to a service, to be used in a ``with`` statement or closed.

    Its methods raise what the same call raises in process, and :class:`ServiceError`
    where the service cannot be reached or fails.

    Args:
      address: ``HOST:PORT``.
      timeout_s: the deadline of each call, which also caps its budget; None waits on.
    """

    def __init__(self, address: str, *, timeout_s: float | None = None) -> None:
        if timeout_s is not None and not timeout_s > 0:
            raise InvalidInputError(f"timeout_s must be above zero, not {timeout_s}.", field="timeout_s")
        self._address = parse_address(address)
        self._timeout_s = timeout_s
        self._channel = grpc.insecure_channel(str(self._address), options=_options(self._address))
        self._stub = optimizer_pb2_grpc.OptimizerStub(self._channel)  # type: ignore[no-untyped-call]
        self._connect(CONNECT_TIMEOUT_S if timeout_s is None else min(timeout_s, CONNECT_TIMEOUT_S))

    def optimize(
        self,
        graph: Graph | nx.DiGraph,
        target: str | Path | Target = "mcm-6x6",
        *,
        objective: Objective = "throughput",
        budget_s: float | None = None,
        max_evaluations: int | None = None,
        seed: int = 0,
        decide: Decide = "all",
        relays: bool = True,
        replication: bool = True,
        fidelity: Fidelity = "analytical",
        constraints: Sequence[Any] = (),
        policy: str | Path | None = "default",
    ) -> OptimizeResult:
        """As :func:`go_opt.optimize`; constraints and policies of your own stay in process.

        ``target`` is a name, the path of a file, whose text is sent, or a shipped target.
        """
        if constraints:
            raise InvalidInputError("a service takes no constraints yet.", field="constraints")
        request = Request(objective, budget_s, max_evaluations, seed, decide, relays, replication, fidelity)
        message = request_to_proto(request, policy=policy)
        message.target.CopyFrom(target_to_proto(target))
        message.graph.CopyFrom(graph_to_proto(as_graph(graph)))
        return result_from_proto(self._call(self._stub.Optimize, message))

    def evaluate(
        self,
        graph: Graph,
        target: str | Path | Target,
        plan: Plan,
        *,
        fidelity: Fidelity = "analytical",
        seed: int | None = None,
    ) -> Metrics:
        """As :func:`go_opt.evaluate`."""
        check_fidelity(fidelity)
        check_seed(seed)
        message = optimizer_pb2.EvaluateRequest(
            graph=graph_to_proto(graph),
            target=target_to_proto(target),
            plan=plan_to_proto(plan),
            fidelity=f"FIDELITY_{fidelity.upper()}",
            seed=seed,
        )
        return metrics_from_proto(self._call(self._stub.Evaluate, message).metrics)

    def list_targets(self) -> tuple[str, ...]:
        """Names of the targets that ship with the service."""
        response = self._call(self._stub.ListTargets, optimizer_pb2.ListTargetsRequest())
        return tuple(target.name for target in response.targets)

    def close(self) -> None:
        """Close the connection; calls under way are cancelled."""
        self._channel.close()

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _connect(self, timeout_s: float) -> None:
        ready = grpc.channel_ready_future(self._channel)
        try:
            ready.result(timeout=timeout_s)
        except grpc.FutureTimeoutError:
            ready.cancel()
            self.close()
            raise ServiceError(
                f"no go-opt service answers at {self._address} (waited {timeout_s:g} s)."
            ) from None

    def _call(self, method: Callable[..., Any], message: Any) -> Any:
        try:
            return method(message, timeout=self._timeout_s)
        except grpc.RpcError as error:
            raise error_from_call(error, str(self._address)) from None


def _options(address: Address) -> tuple[tuple[str, int], ...]:
    return (
        *MESSAGE_OPTIONS,
        # A machine that vanishes during a search sends nothing; without pings we wait forever.
        ("grpc.keepalive_time_ms", 30_000),
        ("grpc.keepalive_timeout_ms", 10_000),
        ("grpc.http2.max_pings_without_data", 0),
        # A proxy has no way to this machine's own loopback.
        ("grpc.enable_http_proxy", int(not address.is_loopback)),
        # Connect at once when a service that is being started comes up.
        ("grpc.max_reconnect_backoff_ms", 500),
    )
