"""The states that a process keeps from one inference of a sequence to the next.

Stages have fixed sizes. The next value of a state that grows is longer than what the stage reads, so it
becomes the state without its first elements along that dimension: a window over what came last.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from go_opt.run.manifest import Manifest, StageState
from go_opt.run.pipeline.sessions import value_of

if TYPE_CHECKING:
    from onnxruntime import OrtValue


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
