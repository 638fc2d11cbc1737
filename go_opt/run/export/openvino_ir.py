"""Stages as models of OpenVINO that keep their states."""

from __future__ import annotations

import tempfile
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import Any

import onnx_ir as ir

from go_opt.errors import ModelError
from go_opt.run.cut.stage_model import write_model
from go_opt.run.manifest import Manifest, StageState


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
