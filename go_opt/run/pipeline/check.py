"""Compares the outputs of stages with those of the whole model, and finds the first difference."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Final

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import numpy_helper

from go_opt.frontends.onnx.inference.bound import with_values
from go_opt.frontends.onnx.inference.dims import DimTable
from go_opt.frontends.onnx.lowered import model_inputs
from go_opt.run.manifest import Manifest
from go_opt.run.pipeline.sessions import session

MOST_DIFFERENCE: Final = 1e-5  # relative to the largest value of the tensor
MOST_NOISE: Final = 0.05  # more is not taken for rounding
# Stages are optimised apart, so their rounding is a third draw beside those of the whole model.
_NOISE: Final = 3.0


def difference(one: NDArray, other: NDArray) -> float:
    """The largest difference of two tensors relative to the largest value of ``other``."""
    if one.shape != other.shape:
        return float("inf")
    if one.dtype.kind in "iub":
        return 0.0 if np.array_equal(one, other) else float("inf")
    first, second = one.astype(np.float64), other.astype(np.float64)
    same = (first == second) | (np.isnan(first) & np.isnan(second))
    if same.all():
        return 0.0
    if not (np.isfinite(first) & np.isfinite(second))[~same].all():
        return float("inf")
    scale = float(np.abs(second[np.isfinite(second)]).max()) or 1.0
    return float(np.abs(first[~same] - second[~same]).max()) / scale


@dataclass(frozen=True)
class Reference:
    """The outputs of the whole model, by name, for each row of inputs.

    ONNX Runtime computes them twice: optimised like the stages, and as the model is written. How far
    the two are apart is the noise of rounding, which a plan cannot be blamed for.
    """

    optimised: Sequence[Mapping[str, NDArray]]
    written: Sequence[Mapping[str, NDArray]]

    @cached_property
    def noise(self) -> Mapping[str, float]:
        """The largest difference between the two, of each output."""
        rows = list(zip(self.optimised, self.written, strict=True))
        return {name: max(difference(one[name], other[name]) for one, other in rows) for name in rows[0][0]}

    def tolerance(self, name: str, given: float | None) -> float:
        """The difference of an output up to which a plan is right; ``given`` replaces what is learnt."""
        if given is not None:
            return given
        return max(MOST_DIFFERENCE, min(MOST_NOISE, _NOISE * self.noise[name]))

    def difference(self, row: int, name: str, value: NDArray) -> float:
        """How far an output is from the nearer of the two."""
        near = difference(value, self.optimised[row][name])
        return near if near == 0.0 else min(near, difference(value, self.written[row][name]))


def whole_outputs(
    path: Path, manifest: Manifest, inputs: Sequence[Mapping[str, NDArray]], *, is_optimized: bool = False
) -> list[dict[str, NDArray]]:
    """The outputs of the whole model, by name, for each row of inputs."""
    whole = session(path, is_optimized=is_optimized)
    wanted = [output.name for output in manifest.outputs]
    rest = _rest(path, manifest, inputs[0])
    return [dict(zip(wanted, whole.run(wanted, {**rest, **row}), strict=True)) for row in inputs]


def first_difference(
    path: Path, folder: Path, manifest: Manifest, inputs: Mapping[str, NDArray], tolerance: float
) -> str:
    """The likely cause of differing outputs: the first tensor between stages that differs."""
    model = onnx.load(path)
    known = {name for node in model.graph.node for name in node.output}
    cuts = [row.tensor for stage in manifest.stages for row in stage.outputs if row.tensor in known]
    shown = {output.name for output in model.graph.output}
    model.graph.output.extend(onnx.ValueInfoProto(name=name) for name in cuts if name not in shown)
    rest = _rest(path, manifest, inputs)
    whole = session(model.SerializeToString(), is_optimized=False).run(cuts, {**rest, **inputs})
    expected = dict(zip(cuts, whole, strict=True))
    values = dict(inputs)
    for stage in manifest.stages:
        names = [row.tensor for row in stage.outputs]
        given = {row.tensor: values[row.tensor] for row in stage.inputs}
        for name, value in zip(names, session(folder / stage.file).run(names, given), strict=True):
            values[name] = value
            if name in expected and difference(value, expected[name]) > tolerance:
                return f"tensor {name!r} of stage {stage.stage} is the first that differs"
    return "the stages one after the other give the right outputs, so a transfer went wrong"


def _rest(path: Path, manifest: Manifest, inputs: Mapping[str, NDArray]) -> dict[str, NDArray]:
    """The inputs that no stage reads: bound ones, and such as do not affect the outputs."""
    rest = {name: _zeros(manifest, name) for name in manifest.inputs if name not in inputs}
    if not manifest.values:
        return rest
    model = onnx.load(path, load_external_data=False)
    dims = DimTable(manifest.model, manifest.dims, model_inputs(model.graph))
    bound = with_values(model, manifest.values, dims).graph.initializer
    return rest | {one.name: numpy_helper.to_array(one) for one in bound if one.name in manifest.values}


def _zeros(manifest: Manifest, name: str) -> NDArray:
    fact = manifest.tensor(name)
    return np.zeros(fact.shape, fact.dtype)
