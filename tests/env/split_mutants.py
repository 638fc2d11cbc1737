"""Split graphs with one wrong number, which a recheck must find."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from go_opt.model.graph import Graph


def with_a_wrong_number(rng: np.random.Generator, split: Graph) -> Iterator[tuple[str, Graph]]:
    """For some arrays of a graph, their name, and the graph with one of the numbers 1 larger."""
    changed = {
        "op_flops": split.op_flops > 0,
        "tensor_elements": split.tensor_producer >= 0,
        "reader_elements": split.reader_elements > 0,
    }
    for array, may in changed.items():
        values = getattr(split, array).copy()
        values[rng.choice(np.flatnonzero(may))] += 1
        yield array, replace(split, **{array: values})
