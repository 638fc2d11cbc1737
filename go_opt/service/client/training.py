"""Training jobs as clients start and find them, whatever keeps them."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeAlias, TypedDict, Unpack, get_args

from go_opt.api.inputs import ZOO_PREFIX, as_loaded
from go_opt.env import Target
from go_opt.env.model.metrics import Fidelity
from go_opt.errors import InvalidInputError
from go_opt.model.codecs.wire import graph_to_proto
from go_opt.model.graph import Graph
from go_opt.proto import training_pb2
from go_opt.result import check_seed
from go_opt.service.client.operation import Jobs, Operation
from go_opt.service.messages.convert import target_to_proto
from go_opt.service.transport.address import parse_address

if TYPE_CHECKING:
    import networkx as nx

    AnyGraph: TypeAlias = Graph | nx.DiGraph | str | Path

_FIDELITIES: Final = get_args(Fidelity)


class TrainingOptions(TypedDict, total=False):
    """Those of every training."""

    target: str | Path | Target  # "mcm-6x6" by default
    samples: int | None  # as of go_opt.pretrain, and so lessons
    seed: int
    environment: str  # "analytical", "simulated", or the HOST:PORT of one that the service may call
    lessons: Sequence[str]
    # All callers see the job and use the policy, as OWNER/NAME; else those of this token or certificate.
    shared: bool
    request_id: str | None  # the same one again gives the same job; by default a new one


class TrainingClient:
    """The methods of clients that concern training."""

    _jobs: Jobs

    def pretrain(
        self,
        policy: str,
        *,
        graphs: Sequence[AnyGraph] = (),
        generated_share: float | None = None,
        most_ops: int | None = None,
        **options: Unpack[TrainingOptions],
    ) -> Operation:
        """Start to train a policy from the start; it takes part in ``optimize`` as ``policy``.

        Args:
          policy: a new name, of a-z, 0-9, "-", "_" and ".".
          graphs: to learn from: of the zoo by name (``"zoo:resnet50"``), or your own; by
            default the zoo's training split.
          generated_share, most_ops: as :func:`go_opt.pretrain`.
          options: those of :class:`TrainingOptions`.

        Raises:
          AlreadyExistsError: the name, or the request id of another request, is taken.
          InvalidInputError: an argument is out of range.
        """
        request = training_pb2.PretrainRequest(
            **_of_graphs(graphs),
            generated_share=generated_share,
            most_ops=most_ops,
            **_of_policy(policy, options),
        )
        return self._jobs.pretrain(request)

    def finetune(
        self,
        policy: str,
        graph: AnyGraph,
        *,
        from_policy: str | None = "default",
        **options: Unpack[TrainingOptions],
    ) -> Operation:
        """Start to make a policy better on one graph; its result holds the best plan met.

        Args:
          from_policy: ``default``, ``none`` or None for an untrained one, or the name of one
            that the service trained.
          options: those of :class:`TrainingOptions`.

        Raises:
          NotFoundError: there is no policy ``from_policy``.
          AlreadyExistsError: the name, or the request id of another request, is taken.
          InvalidInputError: an argument is out of range.
        """
        request = training_pb2.FinetuneRequest(
            graph=graph_to_proto(as_loaded(graph)),
            from_policy=from_policy or "none",
            **_of_policy(policy, options),
        )
        return self._jobs.finetune(request)

    def list_operations(self) -> tuple[Operation, ...]:
        """Every job of the caller, done ones too, and those that are shared."""
        return tuple(self._jobs.list())

    def operation(self, name: str) -> Operation:
        """The job of this name.

        Raises:
          NotFoundError: there is none.
        """
        return Operation(self._jobs, self._jobs.get(name))


def _of_policy(policy: str, options: TrainingOptions) -> dict[str, Any]:
    """The fields of every request that trains a policy; by default of a new request id."""
    given: dict[str, Any] = {"target": "mcm-6x6", "environment": "analytical", "seed": 0, **options}
    check_seed(given["seed"])
    return given | {
        "policy": policy,
        "target": target_to_proto(given["target"]),
        "environment": _environment(given["environment"]),
        "request_id": given.get("request_id") or secrets.token_hex(16),
    }


def _of_graphs(graphs: Sequence[AnyGraph]) -> dict[str, Any]:
    """The fields of graphs; those of the zoo are named, others are sent."""
    zoo = [str(graph) for graph in graphs if _is_of_zoo(graph)]
    return {
        "zoo_graphs": [name.removeprefix(ZOO_PREFIX) for name in zoo],
        "graphs": [graph_to_proto(as_loaded(graph)) for graph in graphs if not _is_of_zoo(graph)],
    }


def _environment(environment: str) -> training_pb2.TrainingEnvironment:
    if environment in _FIDELITIES:
        return training_pb2.TrainingEnvironment(fidelity=f"FIDELITY_{environment.upper()}")
    try:
        return training_pb2.TrainingEnvironment(address=str(parse_address(environment)))
    except InvalidInputError:
        raise InvalidInputError(
            f"environment must be {', '.join(_FIDELITIES)} or HOST:PORT, not {environment[:100]!r}.",
            field="environment",
        ) from None


def _is_of_zoo(graph: AnyGraph) -> bool:
    return isinstance(graph, str) and graph.startswith(ZOO_PREFIX)
