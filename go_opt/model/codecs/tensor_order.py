"""Puts the tensors of a graph in a given order, which the fingerprint depends on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from go_opt.model.graph import Graph


def with_tensor_order(graph: Graph, names: Sequence[str]) -> Graph:
    """The same graph with its tensors in the order of ``names``; others follow in theirs."""
    rank = {name: i for i, name in enumerate(names)}
    order = sorted(range(graph.num_tensors), key=lambda k: rank.get(graph.tensor_names[k], len(rank)))
    if order == list(range(graph.num_tensors)):
        return graph
    starts, ends = graph.reader_ptr[:-1], graph.reader_ptr[1:]
    reads = np.concatenate([np.arange(starts[k], ends[k]) for k in order]).astype(np.int64)
    return replace(
        graph,
        tensor_names=tuple(graph.tensor_names[k] for k in order),
        tensor_elements=_frozen(graph.tensor_elements[order]),
        tensor_dtype=_frozen(graph.tensor_dtype[order]),
        tensor_kind=_frozen(graph.tensor_kind[order]),
        tensor_producer=_frozen(graph.tensor_producer[order]),
        tensor_is_output=_frozen(graph.tensor_is_output[order]),
        reader_ptr=_frozen(np.concatenate([[0], np.cumsum((ends - starts)[order])]).astype(np.int64)),
        reader_op=_frozen(graph.reader_op[reads]),
        reader_elements=_frozen(graph.reader_elements[reads]),
    )


def _frozen(array: NDArray[Any]) -> NDArray[Any]:
    array.flags.writeable = False
    return array
