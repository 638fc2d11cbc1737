"""Inputs for a model: from a file, or random, with integers below the number of rows they index."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

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
_MOST_RANDOM: Final = 2  # integers of unknown use are 0 or 1, valid as flags or as rows of any table


def random_inputs(path: Path, manifest: Manifest, rng: np.random.Generator) -> dict[str, NDArray]:
    """An array for each input that a stage reads: normal, or integers from 0."""
    model = onnx.load(path, load_external_data=False)
    return {name: _random(manifest.tensor(name), _rows(model.graph, name), rng) for name in _read(manifest)}


def load_inputs(file: Path, manifest: Manifest) -> dict[str, NDArray]:
    """The arrays of a ``.npz`` file for the inputs that a stage reads, by name.

    Raises:
      InvalidInputError: it cannot be read, or its names, shapes or types do not match the model's inputs.
    """
    given = _arrays(file)
    unknown = sorted(given.keys() - set(manifest.inputs))
    if unknown:
        raise _bad(file, f"{unknown[0]!r} is no input of the model, which has {', '.join(manifest.inputs)}")
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
    """Inputs of the model that a stage reads."""
    read = {row.tensor for stage in manifest.stages for row in stage.inputs if row.source is None}
    return [name for name in manifest.inputs if name in read]


def _arrays(file: Path) -> dict[str, NDArray]:
    try:
        with open(file, "rb") as content:
            loaded = np.load(content)  # by default nothing is unpickled
            if not isinstance(loaded, np.lib.npyio.NpzFile):
                raise ValueError("one array, without a name.")
            with loaded:
                # For bfloat16, such a file stores only the element size.
                return {
                    name: array.view(BFLOAT16) if array.dtype == "V2" else array
                    for name, array in loaded.items()
                }
    except (OSError, ValueError, EOFError, zipfile.BadZipFile) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is no .npz file of arrays"
        raise _bad(file, f"cannot be read: {reason}") from None


def _bad(file: Path, problem: str) -> InvalidInputError:
    return InvalidInputError(f"inputs {str(file)!r}: {problem}.", field="inputs")


def _random(fact: Tensor, rows: int, rng: np.random.Generator) -> NDArray:
    dtype = np.dtype(fact.dtype)
    if dtype.kind in "iub":
        return np.asarray(rng.integers(0, rows, fact.shape), dtype)
    return np.asarray(rng.normal(size=fact.shape), dtype)


def _rows(graph: onnx.GraphProto, tensor: str) -> int:
    """The smallest number of rows among the tables that ``tensor`` indexes."""
    sizes = {one.name: tuple(one.dims) for one in graph.initializer}
    return min(_tables(graph, sizes, tensor), default=_MOST_RANDOM)


def _tables(graph: onnx.GraphProto, sizes: dict[str, tuple[int, ...]], tensor: str) -> Iterator[int]:
    for node in graph.node:
        if node.op_type == "Gather" and node.input[1] == tensor and sizes.get(node.input[0]):
            axis = next((attr.i for attr in node.attribute if attr.name == "axis"), 0)
            yield sizes[node.input[0]][axis]
        elif node.op_type in _PASSING and node.input[0] == tensor:
            yield from _tables(graph, sizes, node.output[0])
