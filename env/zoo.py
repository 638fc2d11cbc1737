"""The zoo: graphs of real models that ship with go-opt, loaded by name.

Only the structure ships, no weights. :mod:`go_opt.env.zoo_build` makes the files.
"""

from __future__ import annotations

import lzma
import tomllib
from dataclasses import dataclass, replace
from difflib import get_close_matches
from functools import cache
from importlib.resources import files
from typing import Final, Literal

from go_opt.errors import ModelError
from go_opt.graph import Graph, Precision

Split = Literal["train", "validation", "test"]
SPLITS: Final[tuple[Split, ...]] = ("train", "validation", "test")
INDEX_NAME: Final = "index.toml"
_FOLDER: Final = "go_opt.env.zoo_data"


@dataclass(frozen=True)
class ZooEntry:
    """One graph of the zoo, as the index describes it."""

    name: str
    family: str  # models of one family are in one split
    split: Split
    ops: int
    edges: int
    flops: float  # of one inference, 2 per multiply-add
    weight_bytes: int  # in the model's own types
    source: str  # the library the model is from, its version, the model and its input
    fingerprint: str  # of the graph as stored, with precision "native"


@cache
def zoo_entries() -> tuple[ZooEntry, ...]:
    """The graphs of the zoo, by name."""
    index = tomllib.loads((files(_FOLDER) / INDEX_NAME).read_text("utf-8"))
    return tuple(ZooEntry(name=name, **fields) for name, fields in sorted(index.items()))


def load_zoo(name: str, precision: Precision = "native") -> Graph:
    """The zoo's graph of that name; raises :class:`ModelError` where there is none."""
    _check_known(name)
    # The wire format loads protobuf, which listing the zoo does not need.
    from go_opt.proto import graph_pb2
    from go_opt.wire import graph_from_proto

    data = lzma.decompress((files(_FOLDER) / graph_file_name(name)).read_bytes())
    return replace(graph_from_proto(graph_pb2.Graph.FromString(data)), precision=precision)


def graph_file_name(name: str) -> str:
    """The file, beside the index, that holds the graph ``name``."""
    return f"{name}.pb.xz"


def _check_known(name: str) -> None:
    known = [entry.name for entry in zoo_entries()]
    if name in known:
        return
    near = get_close_matches(name, known, n=3)
    hint = f"did you mean {' or '.join(map(repr, near))}" if near else "`go-opt zoo list` names them all"
    raise ModelError(f"the zoo has no graph {name!r}; {hint}.", field="model")
