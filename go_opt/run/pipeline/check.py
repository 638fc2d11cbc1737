"""Inputs of a run, from a file or random, and outputs of the whole model, which those of stages must equal.

Random integers are below the number of rows that they index.
"""

from __future__ import annotations

import io
import math
import zipfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Final

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import numpy_helper

from go_opt.common.files import write_bytes_atomically
from go_opt.common.outputs import DATASET_MARK
from go_opt.errors import InvalidInputError
from go_opt.frontends.onnx.inference.dims import DimTable, with_values
from go_opt.frontends.onnx.lowered import model_inputs
from go_opt.frontends.union.graphs import UNION_PREFIX, prefix_of, shares_of
from go_opt.run.manifest import Manifest, StageState, Tensor, elements_in
from go_opt.run.pipeline.sessions import BFLOAT16, Session, first_values, last_of, session

# Ops that keep the values of their first input.
_PASSING: Final = frozenset({"Cast", "Identity", "Reshape", "Squeeze", "Unsqueeze", "Flatten", "Transpose"})
_MAX_ELEMENT_BYTES: Final = 16  # of a file of another type, which has its own message
_MAX_HEADER_BYTES: Final = 2**14
_UNREADABLE: Final = (  # encrypted, packed in an unknown way, damaged, …
    OSError, ValueError, EOFError, MemoryError, RuntimeError, zlib.error, zipfile.BadZipFile,
)  # fmt: skip
_MOST_RANDOM: Final = 2  # integers of unknown use are 0 or 1, valid as flags or as rows of any table


def random_inputs(path: Path, manifest: Manifest, rng: np.random.Generator) -> dict[str, NDArray]:
    """An array for each input that a stage reads: normal, or integers from 0."""
    graph = onnx.load(path, load_external_data=False).graph
    sizes = {one.name: one.shape for one in manifest.tensors}
    sizes |= {one.name: tuple(one.dims) for one in graph.initializer}
    return {name: _random(manifest.tensor(name), _rows(graph, sizes, name), rng) for name in _read(manifest)}


def load_inputs(file: Path, manifest: Manifest) -> dict[str, NDArray]:
    """The arrays of a ``.npz`` file for the inputs that a stage reads, by name.

    Raises:
      InvalidInputError: it cannot be read, or its names, shapes or types do not match the model's inputs.
    """
    given = _arrays(file, manifest)
    for name in _read(manifest):
        if name not in given:
            raise _bad(file, f"input {name!r} of the model is missing")
    for name, array in given.items():
        fact = manifest.tensor(name)
        if array.dtype.name != fact.dtype or array.shape != fact.shape:
            want, got = f"{fact.dtype} of shape {fact.shape}", f"{array.dtype.name} of shape {array.shape}"
            raise _bad(file, f"input {name!r} must be {want}, not {got}")
    return {name: np.asarray(given[name], manifest.tensor(name).dtype) for name in _read(manifest)}


def save_arrays(file: Path, arrays: Mapping[str, NDArray]) -> None:
    """Write arrays by name for ``numpy.load``, atomically; unlike ``savez``, accepts any name."""
    with zipfile.ZipFile(data := io.BytesIO(), "w") as archive:
        archive.comment = DATASET_MARK
        for name, array in arrays.items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as entry:
                np.lib.format.write_array(entry, np.asarray(array))
    write_bytes_atomically(file, data.getvalue())


def _read(manifest: Manifest) -> list[str]:
    """Inputs of the model that a stage reads, but for states of the host."""
    read = {row.tensor for stage in manifest.stages for row in stage.inputs if row.source is None}
    read -= {state.read for state in manifest.host_states}
    return [name for name in manifest.inputs if name in read]


def _arrays(file: Path, manifest: Manifest) -> dict[str, NDArray]:
    """The arrays by name; nothing is unpacked that is no input of the model, or larger than it."""
    try:
        with zipfile.ZipFile(file) as archive:
            sizes = {entry.filename.removesuffix(".npy"): entry.file_size for entry in archive.infolist()}
        problem = _problem(sizes, manifest)
        if not problem:
            with open(file, "rb") as content, np.load(content) as loaded:  # by default nothing is unpickled
                return {name: _typed(array) for name, array in loaded.items()}
    except _UNREADABLE as error:
        reason = error.strerror if isinstance(error, OSError) else "it is no .npz file of arrays"
        problem = f"cannot be read: {reason}"
    raise _bad(file, problem)


def _problem(sizes: Mapping[str, int], manifest: Manifest) -> str:
    """What is wrong with the names or sizes of the arrays; empty if nothing is."""
    for name, size in sorted(sizes.items()):
        if name not in manifest.inputs:
            return f"{name!r} is no input of the model, which has {', '.join(manifest.inputs)}"
        shape = manifest.tensor(name).shape
        if size > math.prod(shape) * _MAX_ELEMENT_BYTES + _MAX_HEADER_BYTES:
            return f"input {name!r} must be of shape {shape}, and is larger"
    return ""


def _typed(array: Any) -> NDArray:
    if not isinstance(array, np.ndarray):
        raise ValueError("bytes of another kind.")
    return array.view(BFLOAT16) if array.dtype == "V2" else array  # bfloat16 is stored by its size only


def _bad(file: Path, problem: str) -> InvalidInputError:
    return InvalidInputError(f"inputs {str(file)!r}: {problem}.", field="inputs")


def _random(fact: Tensor, rows: int, rng: np.random.Generator) -> NDArray:
    dtype = np.dtype(fact.dtype)
    if dtype.kind in "iub":
        return np.asarray(rng.integers(0, rows, fact.shape), dtype)
    return np.asarray(rng.normal(size=fact.shape), dtype)


def _rows(graph: onnx.GraphProto, sizes: dict[str, tuple[int, ...]], tensor: str) -> int:
    """The smallest number of rows among the tables that ``tensor`` indexes."""
    return min(_tables(graph, sizes, tensor), default=_MOST_RANDOM)


def _tables(graph: onnx.GraphProto, sizes: dict[str, tuple[int, ...]], tensor: str) -> Iterator[int]:
    for node in graph.node:
        if node.op_type == "Gather" and node.input[1] == tensor and sizes.get(node.input[0]):
            axis = next((attr.i for attr in node.attribute if attr.name == "axis"), 0)
            yield sizes[node.input[0]][axis]
        elif node.op_type in _PASSING and node.input[0] == tensor:
            yield from _tables(graph, sizes, node.output[0])


Arrays = Mapping[str, NDArray]  # by name

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
    """The outputs of the whole model, by name, for each inference.

    ONNX Runtime computes them twice: optimised like the stages, and as the model is written. How far
    the two are apart is the noise of rounding, which a plan cannot be blamed for.
    """

    optimised: Sequence[Arrays]
    written: Sequence[Arrays]

    @cached_property
    def noise(self) -> Mapping[str, float]:
        """The largest difference between the two, of each output."""
        pairs = zip(self.optimised, self.written, strict=True)
        rows = list({id(one): (one, other) for one, other in pairs}.values())
        return {name: max(difference(one[name], other[name]) for one, other in rows) for name in rows[0][0]}

    def tolerance(self, name: str, given: float | None) -> float:
        """The difference of an output up to which a plan is right; ``given`` replaces what is learnt."""
        if given is not None:
            return given
        return max(MOST_DIFFERENCE, min(MOST_NOISE, _NOISE * self.noise[name]))

    def difference(self, inference: int, name: str, value: NDArray) -> float:
        """How far an output is from the nearer of the two."""
        near = difference(value, self.optimised[inference][name])
        return near if near == 0.0 else min(near, difference(value, self.written[inference][name]))


def whole_outputs(
    path: Path,
    manifest: Manifest,
    inputs: Sequence[Arrays],
    inferences: int,
    *,
    is_optimized: bool = False,
) -> list[Arrays]:
    """The outputs of the whole model, by name, for each inference; sequences have states of their own.

    Sequences that get the same inputs are computed once.
    """
    if manifest.model.startswith(UNION_PREFIX):
        whole: Session | _Apart = _Apart(manifest.model, is_optimized=is_optimized)
    else:
        whole = session(_with_states(path, manifest), is_optimized=is_optimized)
    wanted = [output.name for output in manifest.outputs]
    names = list(dict.fromkeys([*wanted, *(state.next for state in _changing(manifest))]))
    rest, first = _rest(path, manifest, inputs[0]), first_values(manifest, manifest.whole_states, path)
    rows: list[Arrays] = []
    found: dict[tuple[int, int], Arrays] = {}  # by row of inputs that the sequence begins with, and step
    states: dict[int, Arrays] = {}  # by row of inputs that the sequence begins with
    for inference in range(inferences):
        step, sequence = divmod(inference, manifest.sequences or inferences)
        begin = sequence % len(inputs)
        if (begin, step) not in found:
            before = states.get(begin, first)
            given = inputs[inference % len(inputs)]
            values = dict(zip(names, whole.run(names, {**rest, **given, **before}), strict=True))
            states[begin] = next_states(manifest, before, values)
            found[begin, step] = {name: values[name] for name in wanted}
        rows.append(found[begin, step])
    return rows


class _Apart:
    """The models of a union, each in a session of its own file."""

    def __init__(self, union: str, *, is_optimized: bool) -> None:
        models = [(session(path, is_optimized=is_optimized), copies) for copies, path in shares_of(union)]
        self._models = {
            prefix_of(number, copy): model
            for number, (model, copies) in enumerate(models, 1)
            for copy in range(copies)
        }

    def run(self, outputs: Sequence[str], inputs: Arrays) -> list[NDArray]:
        """As of :class:`Session`; names begin with the number of model and copy."""
        found: dict[str, NDArray] = {}
        for prefix, model in self._models.items():
            wanted = [name for name in outputs if name.startswith(prefix)]
            given = {
                name.removeprefix(prefix): one for name, one in inputs.items() if name.startswith(prefix)
            }
            values = model.run([name.removeprefix(prefix) for name in wanted], given)
            found |= zip(wanted, values, strict=True)
        return [found[name] for name in outputs]


def next_states(manifest: Manifest, before: Arrays, values: Arrays) -> Arrays:
    """Those states of ``before`` after an inference that gave ``values``."""
    changed = {
        state.read: last_of(values[state.next], manifest.tensor(state.read).shape).copy()
        for state in _changing(manifest)
        if state.read in before
    }
    return {**before, **changed}


def _changing(manifest: Manifest) -> list[StageState]:
    return [state for state in manifest.whole_states if state.next != state.read]


def _with_states(path: Path, manifest: Manifest) -> Path | bytes:
    """The model; if states are weights, with these as inputs."""
    weights = [state.read for state in manifest.whole_states if state.initial == "file"]
    if not weights:
        return path
    model = onnx.load(path)
    _show_weights(model, weights)
    written: bytes = model.SerializeToString()
    return written


def _show_weights(model: onnx.ModelProto, weights: Sequence[str]) -> None:
    known = {value.name for value in model.graph.input}
    model.graph.input.extend(
        onnx.helper.make_tensor_value_info(one.name, one.data_type, one.dims)
        for one in model.graph.initializer
        if one.name in weights and one.name not in known
    )


def first_difference(
    path: Path, folder: Path, manifest: Manifest, steps: Sequence[Arrays], tolerance: float
) -> str:
    """The likely cause of differing outputs: the first tensor between stages that differs.

    Args:
      steps: the inputs of the inference that differs, after those of the ones before it in its sequence.
    """
    model = onnx.load(path)
    known = {name for node in model.graph.node for name in node.output}
    cuts = [row.tensor for stage in manifest.stages for row in stage.outputs if row.tensor in known]
    following = [state.next for state in _changing(manifest)]
    cuts = list(dict.fromkeys([*cuts, *following]))
    shown = {output.name for output in model.graph.output}
    model.graph.output.extend(onnx.ValueInfoProto(name=name) for name in cuts if name not in shown)
    _show_weights(model, [state.read for state in manifest.whole_states if state.initial == "file"])
    whole = session(model.SerializeToString(), is_optimized=False)
    stages = [session(folder / stage.file) for stage in manifest.stages]
    rest = _rest(path, manifest, steps[0])
    states: Arrays = first_values(manifest, manifest.whole_states, path)
    for inputs in steps:
        expected = dict(zip(cuts, whole.run(cuts, {**rest, **inputs, **states}), strict=True))
        values: dict[str, NDArray] = {**inputs, **states, **_parts(manifest, states)}
        for stage, loaded in zip(manifest.stages, stages, strict=True):
            names = list(loaded.output_names)
            given = {name: values[name] for name in loaded.input_names}
            for name, value in zip(names, loaded.run(names, given), strict=True):
                values[name] = value
                if name in expected and difference(value, expected[name]) > tolerance:
                    return f"tensor {name!r} of stage {stage.stage} is the first that differs"
        states = next_states(manifest, states, values)
    return "the stages one after the other give the right outputs, so a transfer went wrong"


def _parts(manifest: Manifest, states: Arrays) -> Arrays:
    """The parts of states that stages read."""
    return {
        state.read: elements_in(state.part.cuts, states[state.part.read]).reshape(
            manifest.tensor(state.read).shape
        )
        for state in manifest.states
        if state.part is not None
    }


def _rest(path: Path, manifest: Manifest, inputs: Arrays) -> dict[str, NDArray]:
    """The inputs that no stage reads: bound ones, and such as do not affect the outputs."""
    unread = [manifest.tensor(name) for name in manifest.inputs if name not in inputs]
    rest = {fact.name: np.zeros(fact.shape, fact.dtype) for fact in unread}
    if not manifest.values:
        return rest
    model = onnx.load(path, load_external_data=False)
    dims = DimTable(manifest.model, manifest.dims, model_inputs(model.graph))
    bound = with_values(model, manifest.values, dims).graph.initializer
    return rest | {one.name: numpy_helper.to_array(one) for one in bound if one.name in manifest.values}
