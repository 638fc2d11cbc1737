"""Single-threaded sessions of ONNX Runtime, so that processor time is that of the model, and their states."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from go_opt.run.manifest import Manifest, StageState

if TYPE_CHECKING:
    import onnxruntime
    from onnxruntime import OrtValue


BFLOAT16: Final = np.dtype(ml_dtypes.bfloat16)
_ONNX_BFLOAT16: Final = 16  # TensorProto.BFLOAT16


class Session:
    """A loaded model. Arrays may be bfloat16, for which ONNX Runtime has no NumPy type."""

    def __init__(self, loaded: onnxruntime.InferenceSession) -> None:
        self._loaded, self._binding = loaded, loaded.io_binding()
        types = {value.type for value in (*loaded.get_inputs(), *loaded.get_outputs())}
        self._has_bfloat16 = "tensor(bfloat16)" in types

    @property
    def input_names(self) -> tuple[str, ...]:
        """Names of inputs, with those that have a value in the model."""
        values = (*self._loaded.get_inputs(), *self._loaded.get_overridable_initializers())
        return tuple(value.name for value in values)

    @property
    def output_names(self) -> tuple[str, ...]:
        return tuple(value.name for value in self._loaded.get_outputs())

    def run(self, outputs: Sequence[str], inputs: Mapping[str, NDArray]) -> list[NDArray]:
        """The outputs with these names."""
        if self._has_bfloat16:  # 40 microseconds slower
            given = {name: value_of(array) for name, array in inputs.items()}
            return [_array(value) for value in self._loaded.run_with_ort_values(outputs, given)]
        results: list[NDArray] = self._loaded.run(outputs, inputs)
        return results

    def run_in_place(
        self, inputs: Mapping[str, onnxruntime.OrtValue], outputs: Mapping[str, onnxruntime.OrtValue]
    ) -> None:
        """Read and write the memory of the values themselves, without copies."""
        for name, value in inputs.items():
            self._binding.bind_ortvalue_input(name, value)
        for name, value in outputs.items():
            self._binding.bind_ortvalue_output(name, value)
        self._loaded.run_with_iobinding(self._binding)


def session(model: str | Path | bytes, *, is_optimized: bool = True) -> Session:
    """A session on the CPU for a model or the path of one."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    options.log_severity_level = 4
    if not is_optimized:
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    source = model if isinstance(model, bytes) else str(model)
    return Session(onnxruntime.InferenceSession(source, options, providers=["CPUExecutionProvider"]))


def value_of(array: NDArray) -> onnxruntime.OrtValue:
    """The array as a value of ONNX Runtime, in the same memory."""
    from onnxruntime import OrtValue

    if array.dtype != BFLOAT16:
        return OrtValue.ortvalue_from_numpy(array)
    return OrtValue.ortvalue_from_numpy_with_onnx_type(array.view(np.uint16), _ONNX_BFLOAT16)


def _array(value: onnxruntime.OrtValue) -> NDArray:
    if value.element_type() != _ONNX_BFLOAT16:
        array: NDArray = value.numpy()
        return array
    shape = value.shape()
    raw = (ctypes.c_char * (math.prod(shape) * BFLOAT16.itemsize)).from_address(value.data_ptr())
    return np.frombuffer(raw, BFLOAT16).reshape(shape).copy()


# Stages have fixed sizes. The next value of a state that grows is longer than what the stage reads, so it
# becomes the state without its first elements along that dimension: a window over what came last.


class Buffer(NamedTuple):
    """An array, and the value of ONNX Runtime in the same memory."""

    array: NDArray
    value: OrtValue


def last_of(following: NDArray, shape: tuple[int, ...]) -> NDArray:
    """A view of the last elements of a next value, in the shape of its state."""
    ends = (slice(longer - size, None) for size, longer in zip(shape, following.shape, strict=True))
    return following[tuple(ends)]


def first_values(manifest: Manifest, states: Sequence[StageState], model: Path) -> dict[str, NDArray]:
    """The values of states before the first inference; of weights, those that ``model`` has."""
    facts = [manifest.tensor(state.read) for state in states if state.initial == "zeros"]
    values = {fact.name: np.zeros(fact.shape, fact.dtype) for fact in facts}
    if len(facts) == len(states):
        return values
    import onnx_ir as ir  # slow to load, and seldom needed

    weights = {name: one.const_value for name, one in ir.load(model).graph.initializers.items()}
    of_file = {state.read for state in states} - values.keys()
    return values | {
        name: np.array(value.numpy())
        for name, value in weights.items()
        if name in of_file and value is not None
    }


class HeldState:
    """The values of a state, one for each sequence, and the buffers for those to come.

    If one stage touches the state, its next value replaces it at once, and the buffer is used again. If
    several do, which share the process, it is replaced when the sequence's next inference reads it.
    """

    def __init__(self, manifest: Manifest, state: StageState, first: NDArray) -> None:
        self._sequences = manifest.sequences
        self._first, self._next = first, manifest.tensor(state.next)
        self._is_shared = len(state.stages) > 1
        self._values: dict[int, Buffer] = {}
        self._following: dict[int, tuple[int, Buffer]] = {}  # of a sequence: the inference that wrote it
        self._spare: list[Buffer] = []  # of the state's shape
        self._room: list[Buffer] = [] if self._grows else self._spare  # of the next value's shape

    @property
    def _grows(self) -> bool:
        return self._next.shape != self._first.shape

    def before(self, inference: int) -> OrtValue:
        """What an inference reads."""
        sequence = inference % self._sequences
        written, following = self._following.get(sequence, (inference, None))
        if following is not None and written < inference:
            del self._following[sequence]
            self._replace(sequence, following)
        if sequence not in self._values:
            self._values[sequence] = _buffer(self._first)
        return self._values[sequence].value

    def room(self) -> Buffer:
        """A buffer for a next value; it goes to :meth:`after`."""
        return self._room.pop() if self._room else _buffer(np.empty(self._next.shape, self._first.dtype))

    def after(self, inference: int, written: NDArray, room: Buffer | None) -> None:
        """Keep the next value; without ``room``, it lies where others may overwrite it."""
        sequence, following = inference % self._sequences, room
        if room is None or self._grows:
            following = self._spare.pop() if self._spare else _buffer(self._first)
            np.copyto(following.array, last_of(written, self._first.shape))
            if room is not None:
                self._room.append(room)
        assert following is not None
        if self._is_shared:
            self._following[sequence] = inference, following
        else:
            self._replace(sequence, following)

    def _replace(self, sequence: int, value: Buffer) -> None:
        if sequence in self._values:
            self._spare.append(self._values[sequence])
        self._values[sequence] = value


def _buffer(array: NDArray) -> Buffer:
    own = array.copy()
    return Buffer(own, value_of(own))
