"""The manifest of an export: the ops, inputs and outputs of each stage; checked as it is read."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields, is_dataclass, replace
from functools import cached_property
from pathlib import Path
from types import UnionType
from typing import Any, Final, TypeVar, get_args, get_origin, get_type_hints

import numpy as np
from numpy.typing import NDArray

from go_opt.common.files import read_json
from go_opt.common.version import VERSION
from go_opt.env.chip_buffers import ChipBuffers
from go_opt.errors import InvalidInputError, ModelError
from go_opt.model.codecs.fields import shown
from go_opt.model.graph import Graph
from go_opt.model.plan import Plan

FORMAT: Final = "go_opt.v1.Export"
MANIFEST: Final = "manifest.json"
FORMATS: Final = (
    "stages",
    "triton",
    "annotated",
    "openvino",
    "openvino-ir",
)  # of the other files of the export
TORCH_FORMAT: Final = "go_opt.v1.TorchExport"
TORCH_FORMATS: Final = ("split-spec", "device-map", "vllm")
STEP_FORMAT: Final = "go_opt.v1.StepExport"
STEP_FORMATS: Final = ("jax", "torch", "megatron")
_BOUND: Final = {"states": "bound_states"}  # the field of a kind of bindings, if it has another name


@dataclass(frozen=True)
class Tensor:
    """A tensor that enters or leaves a stage or the model."""

    name: str
    dtype: str  # a name of NumPy or ml_dtypes, or "string"
    shape: tuple[int, ...]
    bytes: int  # packed; 0 for strings


@dataclass(frozen=True)
class StageInput:
    """An input of a stage."""

    tensor: str
    source: int | None  # number of the stage it comes from; None: an input of the model


@dataclass(frozen=True)
class StageOutput:
    """An output of a stage."""

    tensor: str
    readers: tuple[int, ...]  # numbers of stages


@dataclass(frozen=True)
class Relay:
    """A tensor that a stage forwards under another name."""

    source: str
    tensor: str


@dataclass(frozen=True)
class Stage:
    """A model that runs on one chip, or on several that run the inferences in turn."""

    stage: int  # its index among the stages
    file: str  # path of its model relative to the manifest's folder; empty if none was written
    chips: tuple[int, ...]
    replication: int  # number of chips
    part: int  # its index among the stages of its chips
    parts: int  # number of stages of its chips
    inputs: tuple[StageInput, ...]
    outputs: tuple[StageOutput, ...]
    kernels: tuple[tuple[str, ...], ...]  # names of ops in execution order
    relays: tuple[Relay, ...]
    nodes_without_op: tuple[str, ...]  # views and constants
    weight_bytes: int
    compute_s: float  # predicted, per inference

    @property
    def ops(self) -> tuple[str, ...]:
        """Names of its ops in execution order."""
        return tuple(op for kernel in self.kernels for op in kernel)


@dataclass(frozen=True)
class ModelOutput:
    """An output of the model, and the output of a stage or of the host's model that carries it."""

    name: str
    tensor: str
    stage: int | None  # None: the host's model


@dataclass(frozen=True)
class StatePart:
    """What a part of a state holds of a state of the model."""

    read: str  # input of the model
    next: str  # output of the model
    cuts: tuple[tuple[int, int, int], ...]  # of every so many elements, those from the second to the third


def elements_in(cuts: Sequence[tuple[int, int, int]], whole: NDArray) -> NDArray:
    """The elements of a tensor that lie in all ``cuts``, in order."""
    place = np.arange(whole.size)
    inside = [(start <= place % period) & (place % period < stop) for period, start, stop in cuts]
    return whole.reshape(-1)[np.logical_and.reduce(inside)]


@dataclass(frozen=True)
class StageState:
    """A tensor that stays on a chip from one inference to the next.

    It is an input and an output of models of stages that share the chip, and neither of the whole.
    """

    read: str  # input of its readers
    next: str  # output of its writer, the value in the next inference; ``read`` if it never changes
    scope: str  # "sequence": each sequence in flight has its own; "model": there is one
    readers: tuple[int, ...]  # numbers of stages
    writer: int | None  # number of a stage; None: it never changes
    bytes: int  # packed, of one sequence
    initial: str  # "zeros", or "file": the value that the input has in the models of its readers
    part: StatePart | None = None  # None: it is a whole state of the model

    @property
    def stages(self) -> set[int]:
        """Numbers of its readers and its writer."""
        return {*self.readers, *(() if self.writer is None else (self.writer,))}


@dataclass(frozen=True)
class HostModel:
    """A model that runs on the host: it joins the parts of outputs of the model that no chip joins."""

    file: str  # as of a stage
    inputs: tuple[StageInput, ...]
    outputs: tuple[str, ...]  # tensors
    nodes: tuple[str, ...]


@dataclass(frozen=True)
class PlannedModel:
    """The exported model and plan: the first fields of every manifest."""

    model: str
    target: str
    dims: Mapping[str, int]
    values: Mapping[str, tuple[float, ...]]  # of inputs that the plan binds; no stage reads these
    trips: Mapping[str, int]
    bound_states: Mapping[str, str]
    precision: str
    graph_fingerprint: str
    target_fingerprint: str
    version: str
    interval_s: float  # predicted
    written: tuple[str, ...]  # every file of the export, relative to its folder; --force deletes these

    @staticmethod
    def fields_of(graph: Graph, plan: Plan, interval_s: float) -> dict[str, Any]:
        """The values of these fields by name, for a plan of ``graph``."""
        return {
            "model": graph.name,
            "target": plan.target,
            **{_BOUND.get(name, name): dict(bound) for name, bound in vars(plan.bindings).items()},
            "precision": plan.precision,
            "graph_fingerprint": plan.graph_fingerprint,
            "target_fingerprint": plan.target_fingerprint,
            "version": VERSION,
            "interval_s": interval_s,
            "written": (),
        }


@dataclass(frozen=True)
class Manifest(PlannedModel):
    """An export. Each stage comes after those it reads from."""

    latency_s: float
    bottleneck: str
    inputs: tuple[str, ...]  # tensors, in the order of the model, without states
    outputs: tuple[ModelOutput, ...]  # without next values of states
    states: tuple[StageState, ...]
    host_states: tuple[StageState, ...]  # that the host keeps, as inputs and outputs of the model
    sequences: int  # in flight: each begins its next inference when its last has ended; 0: no states
    tensors: tuple[Tensor, ...]
    stages: tuple[Stage, ...]
    host: HostModel | None  # None if each output leaves one stage whole
    memory: tuple[ChipBuffers, ...]  # of the first chip of each stage; names are those of the plan's tensors

    def tensor(self, name: str) -> Tensor:
        """The tensor with this name."""
        return self._by_name[name]

    @property
    def collected(self) -> tuple[str, ...]:
        """The tensors that the stages send to the host, each once."""
        sent = [output.tensor for output in self.outputs if output.stage is not None]
        joined = [row.tensor for row in self.host.inputs if row.source is not None] if self.host else []
        return tuple(dict.fromkeys([*sent, *joined]))

    @property
    def whole_states(self) -> tuple[StageState, ...]:
        """All states of the model, by the names of its inputs and outputs."""
        found: dict[str, StageState] = {}
        for state in self.looped:
            whole = (
                state if state.part is None else replace(state, read=state.part.read, next=state.part.next)
            )
            found.setdefault(whole.read, whole)
        return tuple(found.values())

    @property
    def looped(self) -> tuple[StageState, ...]:
        """All states, of stages and of the host."""
        return (*self.states, *self.host_states)

    @cached_property
    def _by_name(self) -> Mapping[str, Tensor]:
        return {tensor.name: tensor for tensor in self.tensors}


@dataclass(frozen=True)
class TorchManifest(PlannedModel):
    """An export of a torch program: files with split points for PyTorch tools."""

    chips: tuple[int, ...]  # first chip of each stage, in the order of the model
    replication: tuple[int, ...]  # number of chips of each stage
    files: Mapping[str, str]  # by format
    intervals_s: Mapping[str, float]  # predicted, of each format
    notes: tuple[str, ...]  # differences from the plan


@dataclass(frozen=True)
class StepManifest:
    """An export of a plan of a training step: files for libraries that train."""

    model: str
    target: str
    target_fingerprint: str
    version: str
    batch: int  # sequences
    parallel: str  # as --parallel takes it
    layers: tuple[tuple[int, int, int], ...]  # of each rank, that recompute nothing, attention, all
    step_s: float  # predicted
    files: Mapping[str, str]  # by format
    notes: tuple[str, ...]  # differences from the plan
    written: tuple[str, ...]


def manifest_text(manifest: Manifest | TorchManifest | StepManifest) -> str:
    """The manifest as JSON."""
    kind = {Manifest: FORMAT, TorchManifest: TORCH_FORMAT, StepManifest: STEP_FORMAT}[type(manifest)]
    return json.dumps({"format": kind, **asdict(manifest)}, ensure_ascii=False, indent=1) + "\n"


def check_formats(formats: Sequence[str], known: Sequence[str]) -> None:
    """Reject unknown formats and an empty list.

    Raises:
      InvalidInputError: the message lists the known formats.
    """
    wrong = [formats] if isinstance(formats, str) else [name for name in formats if name not in known]
    if wrong or not formats:
        listed = ", ".join(known)
        given = repr(wrong[0]) if wrong else "none"
        raise InvalidInputError(f"formats must be some of {listed}, not {given}.", field="formats")


def check_states(manifest: Manifest) -> None:
    """Reject states whose next value cannot become the state.

    Raises:
      ModelError: the message names the state.
    """
    taken: set[str] = set()
    for state in manifest.looped:
        if state.next in taken:
            raise ModelError(f"state {state.read!r}: its next value {state.next!r} is also another state's.")
        taken.add(state.next)
        read, following = manifest.tensor(state.read), manifest.tensor(state.next)
        is_alike = len(read.shape) == len(following.shape) and read.dtype == following.dtype
        pairs = list(zip(read.shape, following.shape, strict=False))
        if not is_alike or any(b < a for a, b in pairs) or sum(a != b for a, b in pairs) > 1:
            raise ModelError(
                f"state {state.read!r} is {read.dtype} of shape {list(read.shape)}, which {state.next!r}, "
                f"{following.dtype} of shape {list(following.shape)}, cannot become: it may be longer along "
                "one dimension."
            )


def load_manifest(directory: str | Path) -> Manifest:
    """The manifest of an export.

    Raises:
      InvalidInputError: it is missing or malformed; the message names the faulty field.
    """
    path = Path(directory) / MANIFEST
    data = read_json(path, "manifest")
    if not isinstance(data, dict) or data.get("format") != FORMAT:
        raise InvalidInputError(f"manifest {str(path)!r}: format must be {FORMAT!r}.", field="format")
    del data["format"]
    try:
        return record_from_json(Manifest, data, "manifest")
    except InvalidInputError as error:
        raise InvalidInputError(f"manifest {str(path)!r}: {error}", field=error.field) from None


_Record = TypeVar("_Record")
_CALLED = {str: "text", int: "a whole number", float: "a number", type(None): "null"}


def record_from_json(kind: type[_Record], value: Any, where: str) -> _Record:
    """A dataclass of type ``kind``, with strings, numbers, tuples, integer mappings or dataclasses as fields.

    Raises:
      InvalidInputError: a field is missing, unknown or of the wrong type; the message names it.
    """
    if not isinstance(value, Mapping):
        raise _wrong(where, "an object", value)
    hints = get_type_hints(kind)
    names = {field.name for field in fields(kind)}  # type: ignore[arg-type]
    for name in sorted(names ^ value.keys()):
        problem = "is missing" if name in names else "is unknown"
        raise InvalidInputError(f"{where}.{name[:40]} {problem}.", field=name[:40])
    return kind(**{name: _decoded(hints[name], value[name], f"{where}.{name}") for name in names})


def _decoded(kind: Any, value: Any, where: str) -> Any:
    if is_dataclass(kind) and isinstance(kind, type):
        return record_from_json(kind, value, where)
    if get_origin(kind) is tuple:
        if not isinstance(value, list):
            raise _wrong(where, "a list", value)
        return tuple(_decoded(get_args(kind)[0], entry, f"{where}[{i}]") for i, entry in enumerate(value))
    if get_origin(kind) is UnionType:
        return None if value is None else _decoded(get_args(kind)[0], value, where)
    if get_origin(kind) is not None:
        if not isinstance(value, Mapping):
            raise _wrong(where, "an object", value)
        return {
            str(key): _decoded(get_args(kind)[1], entry, f"{where}.{key}") for key, entry in value.items()
        }
    if kind is float and type(value) is int:
        return float(value)
    if type(value) is not kind:
        raise _wrong(where, _CALLED[kind], value)
    return value


def _wrong(where: str, wanted: str, value: Any) -> InvalidInputError:
    return InvalidInputError(f"{where} must be {wanted}, not {shown(value)}.", field=where)
