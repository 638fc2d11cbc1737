"""What is asked of a training service, as messages."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeAlias, get_args

from go_opt.api import ZOO_PREFIX, load
from go_opt.env import Target
from go_opt.env.model.metrics import Fidelity
from go_opt.errors import InvalidInputError
from go_opt.frontends.graph_like import as_graph
from go_opt.model.codecs.wire import graph_to_proto
from go_opt.model.graph import Graph
from go_opt.proto import training_pb2
from go_opt.result import check_seed
from go_opt.service.messages.convert import target_to_proto
from go_opt.service.transport.address import parse_address

if TYPE_CHECKING:
    import networkx as nx

    AnyGraph: TypeAlias = Graph | nx.DiGraph | str | Path

_FIDELITIES: Final = get_args(Fidelity)


def pretrain_request(
    policy: str,
    graphs: Sequence[AnyGraph],
    target: str | Path | Target,
    seed: int,
    environment: str,
    lessons: Sequence[str],
    *,
    samples: int | None,
    generated_share: float | None,
    most_ops: int | None,
    shared: bool,
    request_id: str,
) -> training_pb2.PretrainRequest:
    """The message; graphs of the zoo are named, others are sent."""
    check_seed(seed)
    zoo = [str(graph) for graph in graphs if _is_of_zoo(graph)]
    return training_pb2.PretrainRequest(
        policy=policy,
        request_id=request_id,
        shared=shared,
        zoo_graphs=[name.removeprefix(ZOO_PREFIX) for name in zoo],
        graphs=[graph_to_proto(_loaded(graph)) for graph in graphs if not _is_of_zoo(graph)],
        target=target_to_proto(target),
        samples=samples,
        seed=seed,
        environment=_environment(environment),
        lessons=lessons,
        generated_share=generated_share,
        most_ops=most_ops,
    )


def finetune_request(
    policy: str,
    graph: AnyGraph,
    target: str | Path | Target,
    seed: int,
    environment: str,
    lessons: Sequence[str],
    *,
    from_policy: str | None,
    samples: int | None,
    shared: bool,
    request_id: str,
) -> training_pb2.FinetuneRequest:
    """The message."""
    check_seed(seed)
    return training_pb2.FinetuneRequest(
        policy=policy,
        request_id=request_id,
        shared=shared,
        from_policy=from_policy or "none",
        graph=graph_to_proto(_loaded(graph)),
        target=target_to_proto(target),
        samples=samples,
        seed=seed,
        environment=_environment(environment),
        lessons=lessons,
    )


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


def _loaded(graph: AnyGraph) -> Graph:
    return load(graph) if isinstance(graph, str | Path) else as_graph(graph)
