"""The manifest of an export: what each stage runs, takes and gives."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from go_opt.common.files import read_json
from go_opt.errors import InvalidInputError
from go_opt.run.export.records import record_from_json

FORMAT: Final = "go_opt.v1.Export"
MANIFEST: Final = "manifest.json"


@dataclass(frozen=True)
class TensorFact:
    """A tensor that enters or leaves a stage."""

    name: str
    dtype: str  # as NumPy and ml_dtypes name it, or "string"
    shape: tuple[int, ...]
    bytes: int  # packed; 0 for strings


@dataclass(frozen=True)
class StageInput:
    """A tensor that a stage takes."""

    tensor: str
    source: int | None  # number of the stage it comes from; None: an input of the model


@dataclass(frozen=True)
class StageOutput:
    """A tensor that a stage gives."""

    tensor: str
    readers: tuple[int, ...]  # numbers of stages


@dataclass(frozen=True)
class RelayFact:
    """A tensor that a stage hands on under a name of its own."""

    source: str
    tensor: str


@dataclass(frozen=True)
class StageFact:
    """One stage: a model that runs on one chip, or the same on each of several in turn."""

    stage: int
    file: str  # relative to the manifest; empty where no stage models were written
    chips: tuple[int, ...]
    replication: int
    inputs: tuple[StageInput, ...]
    outputs: tuple[StageOutput, ...]
    ops: tuple[str, ...]  # in the order of execution, clones included
    kernels: tuple[tuple[str, ...], ...]
    clones: tuple[str, ...]
    relays: tuple[RelayFact, ...]
    compute_s: float  # predicted, of one inference
    weight_bytes: int


@dataclass(frozen=True)
class ModelOutput:
    """An output of the model, and the tensor that a stage gives for it."""

    name: str
    tensor: str
    stage: int


@dataclass(frozen=True)
class Manifest:
    """An export. Stages stand in an order in which each can run after those it reads from."""

    model: str
    target: str
    dims: Mapping[str, int]
    precision: str
    graph_fingerprint: str
    target_fingerprint: str
    version: str
    interval_s: float  # predicted
    latency_s: float
    bottleneck: str
    inputs: tuple[str, ...]  # tensors, in the order of the model
    outputs: tuple[ModelOutput, ...]
    tensors: tuple[TensorFact, ...]
    stages: tuple[StageFact, ...]


def manifest_text(manifest: Manifest) -> str:
    """The manifest as JSON."""
    return json.dumps({"format": FORMAT, **asdict(manifest)}, ensure_ascii=False, indent=1) + "\n"


def load_manifest(directory: str | Path) -> Manifest:
    """The manifest of an export.

    Raises:
      InvalidInputError: it is missing or malformed; one sentence that names the field at fault.
    """
    path = Path(directory) / MANIFEST
    data = read_json(path, "manifest")
    if not isinstance(data, Mapping) or data.get("format") != FORMAT:
        raise InvalidInputError(f"manifest {str(path)!r}: format must be {FORMAT!r}.", field="format")
    try:
        return record_from_json(Manifest, {name: data[name] for name in data if name != "format"}, "manifest")
    except InvalidInputError as error:
        raise InvalidInputError(f"manifest {str(path)!r}: {error}", field=error.field) from None
