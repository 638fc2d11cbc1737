"""Why no plan fits in memory: the op with the largest demand, the limit, and what would fit."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

import numpy as np

from go_opt.common.arrays import BoolArray, LongArray
from go_opt.env.cost import CostTables, cost_tables, why_not_on
from go_opt.env.evaluation import evaluate_plan
from go_opt.env.peak_memory import Held, peak_memory
from go_opt.env.target import Target
from go_opt.model.graph import INPUT, NO_PRODUCER, WEIGHT, Graph
from go_opt.model.plan import Plan

_MOST_NAMED: Final = 3  # tensors that a sentence names


def op_activation_bytes(graph: Graph, target: Target) -> LongArray:
    """[N] least bytes of activations on a chip while an op runs as a kernel of its own.

    These are the tensors that it reads and writes; inputs and outputs, which cross the border, count twice.
    """
    tables = cost_tables(graph, target)
    held_bytes = _held_bytes(tables)
    demand = np.zeros(graph.num_ops, dtype=np.int64)
    is_activation = tables.tensor_kind[tables.reader_tensor] != WEIGHT
    read = tables.reader_tensor[is_activation]
    np.add.at(demand, tables.reader_op[is_activation], held_bytes[read])
    produced = (tables.tensor_producer != NO_PRODUCER) & (
        (np.diff(tables.reader_ptr) > 0) | tables.tensor_is_output
    )
    np.add.at(demand, tables.tensor_producer[produced], held_bytes[produced])
    return demand


def op_sram_bytes(tables: CostTables) -> LongArray:
    """[N] the largest memory of the chips that may run each op; 0 without one."""
    largest: LongArray = np.where(tables.can_run[tables.chip_kind], tables.sram_bytes[:, None], 0).max(axis=0)
    return largest


def op_that_runs_nowhere(graph: Graph, target: Target) -> str:
    """One sentence on an op that no chip can run or hold; empty if there is none.

    It names the demand, the limit, the largest tensors and what would fit.
    """
    nowhere = np.flatnonzero(~cost_tables(graph, target).can_run.any(axis=0))
    if len(nowhere):
        op = int(nowhere[0])
        reasons = ", ".join(why_not_on(graph, kind, op) for kind in target.kinds)
        return f"op {graph.op_names[op]!r} is excluded from every chip kind of {target.name}: {reasons}."
    op, needed, limit = largest_demand(graph, target)
    if needed <= limit:
        return ""
    that_runs_it = "" if cost_tables(graph, target).can_run[:, op].all() else " that may run it"
    return (
        f"op {graph.op_names[op]!r} fits no chip of {target.name}{that_runs_it} as a kernel of its own: "
        f"its activations need {needed} bytes ({_named(_held_by(graph, target, op))}), "
        f"the limit is {limit} bytes; {_what_would_fit(graph, target, op, needed, limit)}."
    )


def why_no_plan(graph: Graph, target: Target, rejection: str, closest: Plan | None = None) -> str:
    """One sentence on why no plan was found though each op alone would fit.

    Args:
      rejection: the rule that the first plan that fits breaks; empty if no plan fits.
      closest: of the plans that do not fit, the one with the least excess.
    """
    if rejection:
        return f"no valid plan was found on {target.name}; the first one that fits breaks a rule: {rejection}"
    if closest is None:
        return f"no valid plan was found on {target.name}: no method proposed one."
    peaks = [peak_memory(graph, target, closest, int(chip)) for chip in np.unique(closest.placement)]
    peak = max(peaks, key=lambda peak: peak.peak_bytes - int(target.chip_sram_bytes[peak.chip]))
    limit = int(target.chip_sram_bytes[peak.chip])
    if peak.peak_bytes <= limit:
        why = evaluate_plan(graph, target, closest).reason
        return f"no valid plan was found on {target.name}; the plan that comes closest is {why}."
    at = f" at op {peak.ops[0]!r}" if peak.ops else ""
    return (
        f"no valid plan was found on {target.name}: activations do not fit; the plan that comes closest "
        f"needs {peak.peak_bytes} bytes on chip {peak.chip}{at} ({_named(peak.held)}), the limit is "
        f"{limit} bytes; chips with {max(peak.peak_bytes for peak in peaks)} bytes would hold that plan."
    )


def _held_by(graph: Graph, target: Target, op: int) -> list[Held]:
    """The activations that an op reads and writes as a kernel of its own, most bytes first."""
    tables = cost_tables(graph, target)
    read = [k for k, _ in graph.reads_of(op) if tables.tensor_kind[k] != WEIGHT]
    held_bytes, crosses = _held_bytes(tables), _crosses(tables)
    held = [
        Held(graph.tensor_names[k], int(held_bytes[k]), bool(crosses[k]))
        for k in [*read, *graph.outputs_of(op)]
    ]
    return sorted(held, key=lambda one: -one.held_bytes)


def _named(held: Sequence[Held]) -> str:
    """The largest tensors with their bytes: ``'x' 400 in two buffers, 'y' 100 and 3 more``."""
    named = [
        f"{one.tensor!r} {one.held_bytes}{' in two buffers' if one.crosses else ''}"
        for one in held[:_MOST_NAMED]
    ]
    more = f" and {len(held) - _MOST_NAMED} more" if len(held) > _MOST_NAMED else ""
    return ", ".join(named) + more


def _what_would_fit(graph: Graph, target: Target, op: int, needed: int, limit: int) -> str:
    """Changes with which every op alone would fit; each is computed, not guessed."""
    fits = [f"a chip with {needed} bytes"]
    if graph.precision == "as-is":
        _, native, native_limit = largest_demand(replace(graph, precision="native"), target)
        if native <= native_limit:
            fits.append(f"the native precision ({native} bytes)")
    # Bytes are proportional to tensors: each may keep the share of its size that fits of the sum.
    share = math.floor(100 * limit / needed) / 100
    fits.append(f"tensors of at most {share:g} times these sizes, as of a smaller batch")
    return f"what would fit: {', or '.join(fits)}"


def _crosses(tables: CostTables) -> BoolArray:
    """[K] True for inputs and outputs, which cross the chip's border wherever their ops run."""
    return (tables.tensor_kind == INPUT) | tables.tensor_is_output


def _held_bytes(tables: CostTables) -> LongArray:
    """[K] least bytes of a tensor on the chip of an op that reads or writes it."""
    return tables.stored_bytes * np.where(_crosses(tables), 2, 1)


def largest_demand(graph: Graph, target: Target) -> tuple[int, int, int]:
    """The op whose activations exceed most, or fill most, the largest memory of chips that may run it.

    Returns:
      the op, its demand and that memory, in bytes.
    """
    limit, demand = op_sram_bytes(cost_tables(graph, target)), op_activation_bytes(graph, target)
    op = int(np.argmax(demand - limit))
    return op, int(demand[op]), int(limit[op])
