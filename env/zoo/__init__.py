"""The zoo: graphs of real models that ship with go-opt, loaded by name.

Only the structure ships, no weights. :mod:`tests.zoo_recipes.build` makes the files.
"""

from __future__ import annotations

import lzma
import tomllib
from dataclasses import dataclass, replace
from functools import cache
from importlib.resources import files
from typing import Final, Literal

from go_opt.common.suggestion import suggestion
from go_opt.errors import ModelError
from go_opt.model.graph import Graph, Precision

Split = Literal["train", "validation", "test"]
SPLITS: Final[tuple[Split, ...]] = ("train", "validation", "test")
INDEX_NAME: Final = "index.toml"
_FOLDER: Final = "go_opt.env.zoo.data"


@dataclass(frozen=True)
class ZooEntry:
    """One graph of the zoo, as the index describes it."""

    name: str
    family: str  # models of one family are in one split
    split: Split
    target: str  # the default target, or "gpu-8" if some op fits no chip of the default
    ops: int
    edges: int
    flops: float  # of one inference, 2 per multiply-add
    weight_bytes: int  # in the model's own types
    state_bytes: int  # likewise: of one sequence, or of the model
    source: str  # the model's library with its version, the model and its input
    fingerprint: str  # of the graph as stored, with precision "native"


@dataclass(frozen=True)
class Family:
    """Models of one architecture, which are in one split."""

    name: str
    split: Split
    reason: str  # why it is in that split


@cache
def zoo_entries() -> tuple[ZooEntry, ...]:
    """The graphs of the zoo, by name."""
    return tuple(ZooEntry(name=name, **fields) for name, fields in sorted(_table(INDEX_NAME).items()))


@cache
def zoo_families() -> dict[str, Family]:
    """The families of the zoo, by name."""
    return {name: Family(name=name, **fields) for name, fields in sorted(_table("families.toml").items())}


def shipped_bytes() -> int:
    """Bytes of all shipped graphs on disk."""
    folder = files(_FOLDER)
    return sum(len((folder / graph_file_name(entry.name)).read_bytes()) for entry in zoo_entries())


def zoo_entry(name: str) -> ZooEntry:
    """The entry of that name; raises :class:`ModelError` if there is none."""
    entries = {entry.name: entry for entry in zoo_entries()}
    if name in entries:
        return entries[name]
    hint = suggestion(name, entries, otherwise="; `go-opt zoo list` names them all.")
    raise ModelError(f"the zoo has no graph {name!r}{hint}", field="model")


def load_zoo(name: str, precision: Precision = "native") -> Graph:
    """The zoo's graph of that name; raises :class:`ModelError` if there is none."""
    zoo_entry(name)
    # The wire format loads protobuf, which listing the zoo does not need.
    from go_opt.model.codecs.wire import graph_from_proto
    from go_opt.proto import graph_pb2

    data = lzma.decompress((files(_FOLDER) / graph_file_name(name)).read_bytes())
    return replace(graph_from_proto(graph_pb2.Graph.FromString(data)), precision=precision)


def graph_file_name(name: str) -> str:
    """The name of the file with the graph ``name``, in the folder of the index."""
    return f"{name}.pb.xz"


def _table(file_name: str) -> dict[str, dict]:
    return tomllib.loads((files(_FOLDER) / file_name).read_text("utf-8"))
