"""The whole model annotated with the stage of each node, and OpenVINO's map of devices."""

from __future__ import annotations

from typing import Final

import onnx_ir as ir

from go_opt.run.cut.reads import Reads
from go_opt.run.cut.source import bodies
from go_opt.run.manifest import Manifest, Stage

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
