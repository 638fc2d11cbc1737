"""An export as a model repository of NVIDIA Triton: a model for each stage, and an ensemble of them."""

from __future__ import annotations

import json
import re
import tempfile
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import onnx_ir as ir

from go_opt.errors import ModelError
from go_opt.run.cut.source import Reads, bodies
from go_opt.run.cut.stages import write_model
from go_opt.run.manifest import Manifest, Stage, StageState

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


CONFIGURATION: Final = "go_opt"
_IR_VERSION: Final = 11  # the first with device configurations
_FIRST_WITH_CONSTANT_WEIGHTS: Final = 4


def annotate(model: ir.Model, manifest: Manifest) -> None:
    """Write stage, chips and kernel of each node into ``model``, which has a node for each op."""
    configuration = ir.ModelConfiguration(
        CONFIGURATION, len(manifest.stages), tuple(f"chip {_chips(stage)}" for stage in manifest.stages)
    )
    model.device_configurations = (configuration,)
    if model.ir_version < _FIRST_WITH_CONSTANT_WEIGHTS:
        # Old versions list weights as inputs too; in later versions, such weights could be overridden.
        model.graph.inputs[:] = [value for value in model.graph.inputs if not value.is_initializer()]
    model.ir_version = max(model.ir_version, _IR_VERSION)
    kernels = {op: i for stage in manifest.stages for i, kernel in enumerate(stage.kernels) for op in kernel}
    for node, number in _stage_of_nodes(model, manifest).items():
        if number is None:
            continue
        notes = {
            "layer_ann": f"stage-{number}",
            "go_opt.stage": str(number),
            "go_opt.chips": _chips(manifest.stages[number]),
        }
        if node.name in kernels:
            notes["go_opt.kernel"] = str(kernels[node.name])
        inner = [other for body in bodies(node) for other in body.all_nodes()]
        for each in (node, *inner):
            each.set_pipeline_stage(configuration, number)
            each.metadata_props.update(notes)


def openvino_affinities(model: ir.Model, manifest: Manifest) -> dict[str, str]:
    """The device of each op, by the friendly names that OpenVINO derives; of what the host joins, the CPU."""
    affinities: dict[str, str] = {}
    for node, number in _stage_of_nodes(model, manifest).items():
        device = "CPU" if number is None else f"GPU.{manifest.stages[number].chips[0]}"
        outputs = [str(output.name) for output in node.outputs if output.name]
        # OpenVINO names an unnamed node by its last output, and a node that it splits by name and output.
        names = [*outputs, *(f"{node.name}_{output}" for output in outputs if len(outputs) > 1)]
        affinities = dict.fromkeys(names, device) | affinities | {str(node.name): device}
    return affinities


def _stage_of_nodes(model: ir.Model, manifest: Manifest) -> dict[ir.Node, int | None]:
    """The stage of each node: a view has that of its source's op, a constant that of its first reader.

    None for what the host joins.
    """
    own = {op: stage.stage for stage in manifest.stages for op in stage.ops}
    of_host = set(manifest.host.nodes) if manifest.host else set()
    reads = Reads(model.graph, own)
    stages: dict[ir.Node, int | None] = {}
    first_reader: dict[ir.Value, int] = {}
    for node in reversed(model.graph):
        bases = reads.bases_of(node.outputs)
        if node.name in of_host and bases:
            stages[node] = None
            continue
        if node.name in own:
            number = own[node.name]
        else:
            writers = [base.producer() for base in bases]
            of_ops = [own[str(writer.name)] for writer in writers if writer is not None]
            of_readers = [first_reader[output] for output in node.outputs if output in first_reader]
            number = max(of_ops) if of_ops else min(of_readers, default=0)
        stages[node] = number
        for value in reads.of_node(node):
            first_reader[value] = min(first_reader.get(value, number), number)
    return stages


def _chips(stage: Stage) -> str:
    first, last = stage.chips[0], stage.chips[-1]
    return f"{first}" if first == last else f"{first}-{last}"


def write_stateful(model: ir.Model, manifest: Manifest, stage: int | None, path: Path) -> None:
    """Write the model of a stage (None: the host's) as OpenVINO's ``.xml`` and ``.bin``.

    Its states become variables, but those that begin with a value of the file or that models of other stages
    touch too: these remain inputs and outputs.

    Raises:
      ModelError: OpenVINO cannot read the model.
    """
    import openvino

    model = model.clone()
    for state in manifest.looped:
        model.graph.initializers.pop(state.read, None)  # OpenVINO takes an input with a value for a constant
    sent = [] if stage is None else [output.tensor for output in manifest.stages[stage].outputs]
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "stage.onnx"
        write_model(model, file)
        try:
            made = openvino.Core().read_model(file)
        except RuntimeError as error:
            reason = " ".join(str(error).split())
            raise ModelError(f"OpenVINO cannot read the model of {path.stem}: {reason}") from None
        _make_stateful(made, (state for state in manifest.states if _stays(state, stage)), sent)
        openvino.save_model(made, path, compress_to_fp16=False)


def _stays(state: StageState, stage: int | None) -> bool:
    """Whether the state is a variable of the stage's model."""
    # A variable with a value to begin with is read as a constant by products of the CPU plugin (2026.4.1).
    is_own = stage in state.readers and (state.writer is None or state.stages == {stage})
    return is_own and state.initial == "zeros"


def _make_stateful(made: Any, states: Iterable[StageState], sent: Collection[str]) -> None:
    """Replace the input and the output of each state by a variable, which takes its last elements.

    Args:
      sent: outputs that other stages read; they stay.
    """
    from openvino import opset13
    from openvino.passes import MakeStateful, Manager

    inputs = {value.get_any_name(): value.get_node() for value in made.inputs}
    outputs = {name: value.get_node() for value in made.outputs for name in value.get_names()}
    pairs = []
    for state in states:
        read = inputs[state.read]
        value = read.output(0) if state.writer is None else outputs[state.next].input_value(0)
        sizes = zip(read.get_output_shape(0), value.get_shape(), strict=True)
        for axis, (size, longer) in enumerate(sizes):
            if longer > size:
                value = opset13.slice(value, [longer - size], [longer], [1], [axis]).output(0)
        result = opset13.result(value, name=state.next)
        made.add_results([result])
        if state.writer is not None and state.next not in sent:
            made.remove_result(outputs[state.next])
        pairs.append((read, result))
    passes = Manager()
    passes.register_pass(MakeStateful(pairs))
    passes.run_passes(made)
