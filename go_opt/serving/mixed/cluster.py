"""Clusters of nodes of several kinds, and the problem of laying a model's layers over them.

The problem is Helix's (Mei et al., ASPLOS 2025): each node holds a range of layers; tokens flow from the
source through nodes whose ranges follow each other to the sink. A node passes at most the tokens per second
that its kind reaches with so many layers, a link those that its rate carries.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Final

import numpy as np

from go_opt.common.arrays import FloatArray, LongArray
from go_opt.common.files import read_text
from go_opt.env.target import fields as toml
from go_opt.errors import TargetError
from go_opt.parallel.configuration import Transformer, parse_transformer

MAX_NODES: Final = 512
ELEMENT_BYTES: Final = 2  # of an activation
_ENDS: Final = ("source", "sink")
_IS_RATES: Final = toml.Field(
    lambda value, path: tuple(
        toml.POSITIVE.read(one, f"{path}[{i}]") for i, one in enumerate(_listed(value, path))
    ),
    {"type": "array", "minItems": 1, "items": toml.POSITIVE.schema},
)
_IS_PAIR: Final = toml.checked(
    "a list of two names",
    lambda value: isinstance(value, list) and len(value) == 2 and all(isinstance(one, str) for one in value),
    {"type": "array", "minItems": 2, "maxItems": 2, "items": toml.TEXT.schema},
)


def _listed(value: Any, path: str) -> list[Any]:
    if not isinstance(value, list) or not value:
        raise toml.must_be(path, "a list of one or more numbers", value)
    return value


@dataclass(frozen=True)
class NodeKind:
    """Nodes that are alike."""

    name: Annotated[str, toml.TEXT("The kind's name, such as A100.")]
    tokens_per_s: Annotated[tuple[float, ...], _IS_RATES("Tokens a second with 1, 2, 3, … layers held.")]
    network_bytes_per_s: Annotated[
        float,
        toml.POSITIVE("Bytes per second of the node's network card (default: no limit).", is_optional=True),
    ] = np.inf


@dataclass(frozen=True)
class _Nodes:
    kind: Annotated[str, toml.TEXT("A kind of [[kinds]].")]
    count: Annotated[int, toml.COUNT("So many nodes (default: 1).", is_optional=True)] = 1
    group: Annotated[str, toml.TEXT("What [[links]] call these nodes.", is_optional=True)] = ""


@dataclass(frozen=True)
class _Link:
    between: Annotated[tuple[str, str], _IS_PAIR("Two groups or nodes, or one and source or sink.")]
    rate_bytes_per_s: Annotated[float, toml.POSITIVE("Bytes per second in each direction.")]


@dataclass(frozen=True, eq=False)
class Cluster:
    """Nodes and the links between them. Axes: ``N`` nodes; node ``N`` is the source, ``N + 1`` the sink."""

    name: str
    kinds: tuple[NodeKind, ...]
    node_names: tuple[str, ...]
    kind_of: LongArray  # [N]
    link_bytes_per_s: FloatArray = field(repr=False)  # [N + 2, N + 2], 0 where there is none
    token_bytes: int
    source: str  # the file
    fingerprint: str

    @property
    def num_nodes(self) -> int:
        return len(self.node_names)


_FIELDS: Final = {
    "name": toml.TEXT("The cluster's name."),
    "token_bytes": toml.COUNT(
        "Bytes of a token from the source or to the sink (default: 4).", is_optional=True
    ),
    "link_bytes_per_s": toml.POSITIVE("Of pairs that no link names (default: no link).", is_optional=True),
    "kinds": toml.rows(toml.table(toml.fields_of(NodeKind), NodeKind)),
    "nodes": toml.rows(toml.table(toml.fields_of(_Nodes), _Nodes)),
    "links": toml.Field(toml.rows(toml.table(toml.fields_of(_Link), _Link)).read, {}, is_optional=True),
}


def is_cluster(target: str) -> bool:
    """Whether a target is the file of a cluster: its TOML has ``[[nodes]]``."""
    if not target.endswith(".toml"):
        return False
    return "nodes" in toml.parse_toml(read_text(target, "target file", TargetError))


def load_cluster(path: str | Path) -> Cluster:
    """The cluster of a TOML file; raises TargetError if it is malformed."""
    text = read_text(path, "target file", TargetError)
    try:
        return parse_cluster(text, str(path))
    except TargetError as error:
        raise TargetError(f"target {str(path)[:200]!r}: {error}", field=error.field) from None


def parse_cluster(text: str, source: str) -> Cluster:
    """The cluster of a TOML text."""
    read = toml.read_table(toml.parse_toml(text), "", _FIELDS)
    kinds: tuple[NodeKind, ...] = read["kinds"]
    number = {kind.name: i for i, kind in enumerate(kinds)}
    if len(number) < len(kinds):
        raise TargetError("kinds: two have the same name.", field="kinds")
    names: list[str] = []
    kind_of: list[int] = []
    members: dict[str, list[int]] = {}
    for i, nodes in enumerate(read["nodes"]):
        if nodes.kind not in number:
            raise TargetError(
                f"nodes[{i}].kind {nodes.kind[:60]!r} is none of kinds.", field=f"nodes[{i}].kind"
            )
        if len(names) + nodes.count > MAX_NODES:
            raise TargetError(f"more than {MAX_NODES} nodes, the limit.", field=f"nodes[{i}].count")
        group = nodes.group or nodes.kind
        for _ in range(nodes.count):
            own = f"{group}-{len(members.setdefault(group, []))}"
            members[group].append(len(names))
            members.setdefault(own, []).append(len(names))
            names.append(own)
            kind_of.append(number[nodes.kind])
    ends = {end: [len(names) + i] for i, end in enumerate(_ENDS)}
    rate = _link_rates(read.get("links", ()), members | ends, len(names), read.get("link_bytes_per_s", 0.0))
    return Cluster(
        read["name"],
        kinds,
        tuple(names),
        np.array(kind_of, np.int64),
        rate,
        read.get("token_bytes", 4),
        source,
        hashlib.sha256(text.encode()).hexdigest(),
    )


def _link_rates(
    links: tuple[_Link, ...], members: dict[str, list[int]], num_nodes: int, otherwise: float
) -> FloatArray:
    rate = np.full((num_nodes + 2, num_nodes + 2), otherwise)
    for i, link in enumerate(links):
        for name in link.between:
            if name not in members:
                path = f"links[{i}].between"
                raise TargetError(f"{path}: {name[:60]!r} is no group or node.", field=path)
        first, second = (members[name] for name in link.between)
        rate[np.ix_(first, second)] = rate[np.ix_(second, first)] = link.rate_bytes_per_s
    np.fill_diagonal(rate, 0.0)
    rate[:, num_nodes] = rate[num_nodes + 1] = 0.0  # nothing enters the source or leaves the sink
    rate[num_nodes, num_nodes + 1] = 0.0
    return rate


@dataclass(frozen=True, eq=False)
class Case:
    """A model on a cluster: what nodes and links pass, in tokens per second."""

    model: Transformer
    cluster: Cluster
    text: str = ""  # of the model

    @staticmethod
    def read(model: str, cluster: str | Path) -> Case:
        """The case of a model such as ``gpt:hidden=768,…`` and the file of a cluster."""
        return Case(parse_transformer(model), load_cluster(cluster), model)

    @property
    def layers(self) -> int:
        return self.model.layers

    @cached_property
    def link_per_s(self) -> FloatArray:
        """``[N + 2, N + 2]``: of activations between nodes, of tokens at the source and the sink."""
        nodes = self.cluster.num_nodes
        size = np.full((nodes + 2, nodes + 2), float(ELEMENT_BYTES * self.model.hidden))
        size[nodes:] = size[:, nodes:] = self.cluster.token_bytes
        return np.ascontiguousarray(self.cluster.link_bytes_per_s / size)

    @cached_property
    def most_held(self) -> LongArray:
        """``[N]``: the most layers that a node holds."""
        most = [len(self.cluster.kinds[kind].tokens_per_s) for kind in self.cluster.kind_of]
        return np.minimum(np.array(most, np.int64), self.layers)

    @cached_property
    def node_per_s(self) -> FloatArray:
        """``[N, most + 1]``: with so many layers held; 0 with none, or more than it can hold."""
        rate = np.zeros((len(self.cluster.kinds), int(self.most_held.max()) + 1))
        for row, kind in zip(rate, self.cluster.kinds, strict=True):
            passed = kind.network_bytes_per_s / (ELEMENT_BYTES * self.model.hidden)
            held = kind.tokens_per_s[: len(row) - 1]
            row[1 : len(held) + 1] = np.minimum(held, passed)
        return rate[self.cluster.kind_of]
