"""Fields of the messages that ask a service for training."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeAlias, get_args

from go_opt.api import ZOO_PREFIX, load
from go_opt.env import Target
from go_opt.env.model.metrics import Fidelity
from go_opt.errors import InvalidInputError
from go_opt.frontends.graph_like import as_graph
from go_opt.model.codecs.wire import graph_to_proto
from go_opt.model.graph import Graph
from go_opt.proto import graph_pb2, training_pb2
from go_opt.result import check_seed
from go_opt.service.messages.convert import target_to_proto
from go_opt.service.transport.address import parse_address

if TYPE_CHECKING:
    import networkx as nx

    AnyGraph: TypeAlias = Graph | nx.DiGraph | str | Path

_FIDELITIES: Final = get_args(Fidelity)


def of_policy(
    policy: str, target: str | Path | Target, *, environment: str, request_id: str | None, **same: Any
) -> dict[str, Any]:
    """The fields of every request that trains a policy; by default of a new request id.

    Args:
      same: fields that are sent as they are given.
    """
    check_seed(same["seed"])
    return {
        "policy": policy,
        "target": target_to_proto(target),
        "environment": _environment(environment),
        "request_id": request_id or secrets.token_hex(16),
        **same,
    }


def of_graphs(graphs: Sequence[AnyGraph]) -> dict[str, Any]:
    """The fields of graphs; those of the zoo are named, others are sent."""
    zoo = [str(graph) for graph in graphs if _is_of_zoo(graph)]
    return {
        "zoo_graphs": [name.removeprefix(ZOO_PREFIX) for name in zoo],
        "graphs": [graph_message(graph) for graph in graphs if not _is_of_zoo(graph)],
    }


def graph_message(graph: AnyGraph) -> graph_pb2.Graph:
    """The message of a graph, or of what :func:`go_opt.load` makes of a path."""
    return graph_to_proto(load(graph) if isinstance(graph, str | Path) else as_graph(graph))


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
