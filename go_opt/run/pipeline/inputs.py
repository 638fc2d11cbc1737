"""Random inputs for a model: integers where they index stay below the number of rows."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final

import numpy as np
import onnx
from numpy.typing import NDArray

from go_opt.run.manifest import Manifest, Tensor

# What leaves the values of its first input as they are.
_PASSING: Final = frozenset({"Cast", "Identity", "Reshape", "Squeeze", "Unsqueeze", "Flatten", "Transpose"})
_MOST_RANDOM: Final = 2  # integers of which nothing is known are 0 or 1: flags, or rows of any table


def random_inputs(path: Path, manifest: Manifest, rng: np.random.Generator) -> dict[str, NDArray]:
    """An array for each input that a stage reads: normal, or integers from 0."""
    read = {row.tensor for stage in manifest.stages for row in stage.inputs if row.source is None}
    model = onnx.load(path, load_external_data=False)
    return {
        name: _random(manifest.tensor(name), _rows(model.graph, name), rng)
        for name in manifest.inputs
        if name in read
    }


def _random(fact: Tensor, rows: int, rng: np.random.Generator) -> NDArray:
    dtype = np.dtype(fact.dtype)
    if dtype.kind in "iub":
        return np.asarray(rng.integers(0, rows, fact.shape), dtype)
    return np.asarray(rng.normal(size=fact.shape), dtype)


def _rows(graph: onnx.GraphProto, tensor: str) -> int:
    """The least number of rows that the values of ``tensor`` choose from."""
    sizes = {one.name: tuple(one.dims) for one in graph.initializer}
    return min(_tables(graph, sizes, tensor), default=_MOST_RANDOM)


def _tables(graph: onnx.GraphProto, sizes: dict[str, tuple[int, ...]], tensor: str) -> Iterator[int]:
    for node in graph.node:
        if node.op_type == "Gather" and node.input[1] == tensor and sizes.get(node.input[0]):
            axis = next((attr.i for attr in node.attribute if attr.name == "axis"), 0)
            yield sizes[node.input[0]][axis]
        elif node.op_type in _PASSING and node.input[0] == tensor:
            yield from _tables(graph, sizes, node.output[0])
