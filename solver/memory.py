"""Why nothing fits: the op with the largest demand, and the limit it meets."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from go_opt.env import Target, cost_tables
from go_opt.graph import NO_PRODUCER, WEIGHT, Graph


def op_activation_bytes(graph: Graph, target: Target) -> NDArray[np.int64]:
    """[N] activations an op reads and writes: what a chip must hold while it runs, at least."""
    tables = cost_tables(graph, target)
    demand = np.zeros(graph.num_ops, dtype=np.int64)
    is_activation = tables.tensor_kind[tables.reader_tensor] != WEIGHT
    read = tables.reader_tensor[is_activation]
    np.add.at(demand, tables.reader_op[is_activation], tables.tensor_bytes[read])
    produced = (tables.tensor_producer != NO_PRODUCER) & (
        (np.diff(tables.reader_ptr) > 0) | tables.tensor_is_output
    )
    np.add.at(demand, tables.tensor_producer[produced], tables.tensor_bytes[produced])
    return demand


def infeasible_reason(graph: Graph, target: Target) -> str:
    """One sentence on why no plan was found, naming op, demand and limit."""
    demand = op_activation_bytes(graph, target)
    limit = int(target.chip_sram_bytes.max())
    op = int(np.argmax(demand))
    name, needed = graph.op_names[op], int(demand[op])
    runs_nowhere = _op_without_kind(graph, target)
    if runs_nowhere is not None:
        return f"op {graph.op_names[runs_nowhere]!r} is excluded from every chip kind of {target.name}."
    if needed > limit:
        return (
            f"op {name!r} fits no chip of {target.name}: its activations need {needed} bytes, "
            f"the limit is {limit} bytes."
        )
    return (
        f"no valid plan was found on {target.name}: activations do not fit; the largest op {name!r} "
        f"needs {needed} bytes of {limit} bytes, before what its neighbours keep alive."
    )


def _op_without_kind(graph: Graph, target: Target) -> int | None:
    nowhere = np.flatnonzero(~cost_tables(graph, target).can_run.any(axis=0))
    return int(nowhere[0]) if len(nowhere) else None
