"""An export as a model repository of NVIDIA Triton: a model for each stage, and an ensemble of them."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from go_opt.errors import ModelError
from go_opt.run.manifest import Manifest

_TYPES: Final = {
    "bool": "BOOL", "uint8": "UINT8", "uint16": "UINT16", "uint32": "UINT32", "uint64": "UINT64",
    "int8": "INT8", "int16": "INT16", "int32": "INT32", "int64": "INT64", "float16": "FP16",
    "float32": "FP32", "float64": "FP64", "bfloat16": "BF16", "string": "STRING",
}  # fmt: skip


class _Enum(str):
    """A value that protobuf's text format writes without quotes."""


def ensemble_name(model: str) -> str:
    """The repository name of the ensemble."""
    return re.sub(r"[^A-Za-z0-9_.-]", "_", model)


def step_name(model: str, stage: int | None) -> str:
    """The repository name of a stage, or of the host's model."""
    return f"{ensemble_name(model)}_{'host' if stage is None else f'stage_{stage}'}"


def model_path(model: str, stage: int | None) -> str:
    """The path of the model of a stage, or of the host, in the repository."""
    return f"{step_name(model, stage)}/1/model.onnx"


class _Step(NamedTuple):
    """A model of the ensemble."""

    name: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    instances: Mapping[str, Any]


def write_configs(manifest: Manifest, repository: Path) -> None:
    """Write the configurations of the stages, whose models exist already, and of the ensemble.

    Raises:
      ModelError: Triton does not support such an ensemble; the message gives the reason.
    """
    steps = list(_steps(manifest))
    for config in (*(_step_config(manifest, step) for step in steps), _ensemble_config(manifest, steps)):
        folder = repository / config["name"]
        (folder / "1").mkdir(parents=True, exist_ok=True)
        (folder / "config.pbtxt").write_text("\n".join(_lines(config)) + "\n", "utf-8")


def _steps(manifest: Manifest) -> Iterator[_Step]:
    model, host = manifest.model, manifest.host
    for stage in manifest.stages:
        # The client keeps the states: it sends them, and reads their next values.
        states = [state.read for state in manifest.states if stage.stage in state.readers]
        following = [state.next for state in manifest.states if stage.stage == state.writer]
        read = (*(row.tensor for row in stage.inputs), *states)
        written = tuple(dict.fromkeys([*(row.tensor for row in stage.outputs), *following]))
        if not read:
            problem = "reads no tensor, which Triton asks of a step of an ensemble"
            raise ModelError(f"stage {stage.stage} {problem}.")
        yield _Step(step_name(model, stage.stage), read, written, {"count": stage.replication})
    if host is not None:
        read = tuple(row.tensor for row in host.inputs)
        yield _Step(step_name(model, None), read, host.outputs, {"kind": _Enum("KIND_CPU")})


def _step_config(manifest: Manifest, step: _Step) -> dict[str, Any]:
    return {
        "name": step.name,
        "platform": "onnxruntime_onnx",
        "max_batch_size": 0,
        "input": [_tensor(manifest, tensor, tensor) for tensor in step.inputs],
        "output": [_tensor(manifest, tensor, tensor) for tensor in step.outputs],
        "instance_group": [step.instances],
    }


def _ensemble_config(manifest: Manifest, steps: Sequence[_Step]) -> dict[str, Any]:
    read = {tensor for step in steps for tensor in step.inputs}
    states = manifest.states
    given = [tensor for tensor in (*manifest.inputs, *(state.read for state in states)) if tensor in read]
    both = next((output.name for output in manifest.outputs if output.name in given), None)
    if both is not None:
        raise ModelError(f"tensor {both!r} is an input and an output, which no ensemble of Triton can have.")
    # Ensemble outputs have the names of the model's outputs.
    name_of = {output.tensor: output.name for output in manifest.outputs}
    return {
        "name": ensemble_name(manifest.model),
        "platform": "ensemble",
        "max_batch_size": 0,
        "input": [_tensor(manifest, tensor, tensor) for tensor in given],
        "output": [
            *(_tensor(manifest, output.name, output.tensor) for output in manifest.outputs),
            *(_tensor(manifest, state.next, state.next) for state in states if state.writer is not None),
        ],
        "ensemble_scheduling": {
            "step": [
                {
                    "model_name": step.name,
                    "model_version": -1,
                    "input_map": [_entry(tensor, name_of) for tensor in step.inputs],
                    "output_map": [_entry(tensor, name_of) for tensor in step.outputs],
                }
                for step in steps
            ]
        },
    }


def _entry(tensor: str, name_of: Mapping[str, str]) -> dict[str, str]:
    return {"key": tensor, "value": name_of.get(tensor, tensor)}


def _tensor(manifest: Manifest, name: str, tensor: str) -> dict[str, Any]:
    fact = manifest.tensor(tensor)
    if fact.dtype not in _TYPES:
        raise ModelError(f"tensor {tensor!r} is of type {fact.dtype}, which Triton does not have.")
    if 0 in fact.shape:
        raise ModelError(f"tensor {tensor!r} has no elements, which Triton does not allow.")
    # Triton gives a scalar one dimension.
    return {"name": name, "data_type": _Enum(f"TYPE_{_TYPES[fact.dtype]}"), "dims": list(fact.shape) or [1]}


def _lines(fields: Mapping[str, Any], indent: str = "") -> Iterator[str]:
    """A message in protobuf's text format."""
    for name, value in fields.items():
        for entry in value if isinstance(value, list) else [value]:
            if isinstance(entry, Mapping):
                yield f"{indent}{name} {{"
                yield from _lines(entry, indent + "  ")
                yield f"{indent}}}"
            else:
                yield f"{indent}{name}: {entry if isinstance(entry, _Enum | int) else json.dumps(entry)}"
