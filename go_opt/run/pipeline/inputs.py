"""Inputs for a model: from a file, or random, with integers below the number of rows they index."""

from __future__ import annotations

import io
import math
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np
import onnx
from numpy.typing import NDArray

from go_opt.common.files import write_bytes_atomically
from go_opt.common.outputs import DATASET_MARK
from go_opt.errors import InvalidInputError
from go_opt.run.manifest import Manifest, Tensor
from go_opt.run.pipeline.sessions import BFLOAT16

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
