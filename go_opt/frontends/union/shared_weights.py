"""Weights that two graphs of one network have in common, such as that of a prompt and that of a step.

Names differ, as exporters number what they transpose or fold. So weights of ONNX files are matched by their
content: the same elements in any order, which a transposed weight has too. Graphs without values of weights
are matched by the order of what reads weights: the same type of op, elements and type of numbers, in the
same succession.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Mapping
from difflib import SequenceMatcher
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from go_opt.model.graph import WEIGHT, Graph

Contents = Mapping[str, Hashable]  # by name of a weight
_BITS: Final = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}


def matched_by_order(first: Graph, second: Graph) -> dict[int, int]:
    """The weights of ``second`` that are those of ``first`` where these are read in the same succession."""
    ours, others = _read_weights(first), _read_weights(second)
    kinds = [[_kind(graph, k) for k in row] for graph, row in ((first, ours), (second, others))]
    blocks = SequenceMatcher(None, kinds[0], kinds[1], autojunk=False).get_matching_blocks()
    return {others[b.b + i]: ours[b.a + i] for b in blocks for i in range(b.size)}


def matched_by_content(first: Graph, second: Graph, ours: Contents, others: Contents) -> dict[int, int]:
    """The weights of ``second`` that have the elements of one of ``first``; of several alike, in turn."""
    found: dict[Hashable, list[int]] = defaultdict(list)
    for k in _read_weights(first):
        if first.tensor_names[k] in ours:
            found[ours[first.tensor_names[k]]].append(k)
    matched = {}
    for k in _read_weights(second):
        alike = found.get(others.get(second.tensor_names[k]))
        if alike:
            matched[k] = alike.pop(0) if len(alike) > 1 else alike[0]
    return matched


def contents_of(path: Path) -> Contents:
    """What the initializers of an ONNX file hold, whatever the order of their elements."""
    from onnx import load, numpy_helper

    tensors = load(path).graph.initializer
    arrays = {tensor.name: numpy_helper.to_array(tensor, str(path.parent)) for tensor in tensors}
    return {name: content(array) for name, array in arrays.items() if array.dtype.itemsize in _BITS}


def content(array: NDArray[Any]) -> Hashable:
    """Equal for arrays of one type with the same elements, in any order; else equal by a chance of 2^-128."""
    bits = np.ascontiguousarray(array).reshape(-1).view(_BITS[array.dtype.itemsize]).astype(np.uint64)
    sums = []
    for seed in (0x9E3779B97F4A7C15, 0xD1B54A32D192ED03):  # splitmix64 of each element, added up
        mixed = (bits + np.uint64(1)) * np.uint64(seed)
        for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
            mixed = (mixed ^ (mixed >> np.uint64(shift))) * np.uint64(factor)
        sums.append(int((mixed ^ (mixed >> np.uint64(31))).sum(dtype=np.uint64)))
    return array.dtype.str, array.size, *sums


def _read_weights(graph: Graph) -> list[int]:
    """Weights by the first op that reads them, then by number."""
    readers = {int(k): graph.readers_of(int(k)) for k in np.flatnonzero(graph.tensor_kind == WEIGHT)}
    return sorted((k for k, ops in readers.items() if ops), key=lambda k: (min(readers[k]), k))


def _kind(graph: Graph, weight: int) -> tuple[str, int, int]:
    reader = graph.op_types[min(graph.readers_of(weight))]
    return reader, int(graph.tensor_elements[weight]), int(graph.tensor_dtype[weight])
