"""Why nothing fits: the op with the largest demand, and the limit it meets."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from go_opt.env.cost import cost_tables
from go_opt.env.target import Target
from go_opt.graph import INPUT, NO_PRODUCER, WEIGHT, Graph


def op_activation_bytes(graph: Graph, target: Target) -> NDArray[np.int64]:
    """[N] activations a chip must hold while an op runs as a kernel of its own, at least.

    Those it reads and writes; inputs and outputs, which cross the chip's border, twice.
    """
    tables = cost_tables(graph, target)
    crosses = (tables.tensor_kind == INPUT) | tables.tensor_is_output
    held_bytes = tables.tensor_bytes * np.where(crosses, 2, 1)
    demand = np.zeros(graph.num_ops, dtype=np.int64)
    is_activation = tables.tensor_kind[tables.reader_tensor] != WEIGHT
    read = tables.reader_tensor[is_activation]
    np.add.at(demand, tables.reader_op[is_activation], held_bytes[read])
    produced = (tables.tensor_producer != NO_PRODUCER) & (
        (np.diff(tables.reader_ptr) > 0) | tables.tensor_is_output
    )
    np.add.at(demand, tables.tensor_producer[produced], held_bytes[produced])
    return demand


def op_that_runs_nowhere(graph: Graph, target: Target) -> str:
    """One sentence on an op that no chip can run or hold, with demand and limit; empty if there is none."""
    nowhere = np.flatnonzero(~cost_tables(graph, target).can_run.any(axis=0))
    if len(nowhere):
        return f"op {graph.op_names[nowhere[0]]!r} is excluded from every chip kind of {target.name}."
    op, needed, limit = _largest_demand(graph, target)
    if needed <= limit:
        return ""
    return (
        f"op {op!r} fits no chip of {target.name} as a kernel of its own: "
        f"its activations need {needed} bytes, the limit is {limit} bytes."
    )


def why_no_plan(graph: Graph, target: Target, rejection: str) -> str:
    """One sentence on why no plan was found though each op alone would fit.

    ``rejection`` is the rule the first plan that fits its memory breaks, if there was one.
    """
    if rejection:
        return f"no valid plan was found on {target.name}; the first one that fits breaks a rule: {rejection}"
    op, needed, limit = _largest_demand(graph, target)
    return (
        f"no valid plan was found on {target.name}: activations do not fit; the largest op {op!r} "
        f"needs {needed} bytes of {limit} bytes, before what its neighbours keep alive."
    )


def _largest_demand(graph: Graph, target: Target) -> tuple[str, int, int]:
    """The op with the most activations, its demand and the largest memory, in bytes."""
    demand = op_activation_bytes(graph, target)
    op = int(np.argmax(demand))
    return graph.op_names[op], int(demand[op]), int(target.chip_sram_bytes.max())
