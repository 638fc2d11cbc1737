"""Which tensors fill the memory of chips: of a plan at its peak, where each buffer lies, and why none fits.

The rules are those of :mod:`go_opt.env.model.memory`: a tensor that enters or leaves the chip always
has two buffers; others live from the kernel of their producer to that of their last reader.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from go_opt.common.arrays import BoolArray, IntArray, LongArray
from go_opt.env.chip_buffers import Buffer, ChipBuffers
from go_opt.env.copies.relays import expand_plan
from go_opt.env.copies.stages import size_by_chip
from go_opt.env.cost.tables import COPY, CostTables, cost_tables, why_not_on
from go_opt.env.evaluation import evaluate_plan
from go_opt.env.kernels.numbering import number_kernels
from go_opt.env.model.makespan import NONE
from go_opt.env.model.memory import Fit, Holdings, fit_chips, holdings, place_buffers
from go_opt.env.model.traffic import BORDER_BUFFERS
from go_opt.env.target import Target
from go_opt.model.graph import INPUT, NO_PRODUCER, WEIGHT, Graph
from go_opt.model.plan import Plan


@dataclass(frozen=True)
class Held:
    """A tensor in memory."""

    tensor: str
    held_bytes: int  # twice its size where it crosses the chip's border
    crosses: bool


@dataclass(frozen=True)
class PeakMemory:
    """The activations of a chip at their peak."""

    chip: int
    peak_bytes: int
    ops: tuple[str, ...]  # of the kernel that runs then; empty if all tensors cross the border
    held: tuple[Held, ...]  # most bytes first
    holes_bytes: int  # free bytes between buffers; included in ``peak_bytes``


# A plan with relays as ops, the kernels [N] of its ops, and what its chips hold.
_Placed = tuple[Graph, Plan, CostTables, IntArray, Holdings, Fit]


def plan_buffers(graph: Graph, target: Target, plan: Plan) -> tuple[ChipBuffers, ...]:
    """The buffers of each stage of ``plan``, by first chip.

    Activations get addresses also where everything would fit side by side. Where the target only counts
    bytes, they may end above the chip's memory although the plan is valid.
    """
    placed = _placed(graph, target, plan)
    return tuple(_chip_buffers(placed, int(chip)) for chip in np.unique(placed[1].placement))


def peak_memory(graph: Graph, target: Target, plan: Plan, chip: int) -> PeakMemory:
    """The tensors on chip ``chip`` at its peak under ``plan``.

    Relays count as ops, as in :func:`go_opt.env.copies.relays.expand_plan`.
    """
    graph, plan, tables, kernel_of, held, fit = _placed(graph, target, plan)
    mine = slice(held.activation_ptr[chip], held.activation_ptr[chip + 1])
    born, dead, size = held.born[mine], held.dead[mine], held.size_bytes[mine]
    lives, ops = np.zeros(0, dtype=np.int64), []
    if len(born):
        alive = [int(size[(born <= m) & (dead >= m)].sum()) for m in born]
        is_placed = held.address[mine][0] != NONE
        peak = born[int(np.argmax(held.address[mine] + size if is_placed else alive))]
        lives = held.activation[mine][(born <= peak) & (dead >= peak)]
        ops = plan.order[kernel_of[plan.order] == peak]
    crosses = _crossing(tables, plan.placement, chip)
    held_bytes = {int(k): int(tables.stored_bytes[k]) for k in lives}
    held_bytes |= {int(k): BORDER_BUFFERS * int(tables.stored_bytes[k]) for k in np.flatnonzero(crosses)}
    largest = sorted((k for k in held_bytes if held_bytes[k] > 0), key=lambda k: (-held_bytes[k], k))
    peak_bytes = int(fit.peak_bytes[chip])
    return PeakMemory(
        chip=chip,
        peak_bytes=peak_bytes,
        ops=tuple(graph.op_names[op] for op in ops),
        held=tuple(Held(graph.tensor_names[k], held_bytes[k], bool(crosses[k])) for k in largest),
        holes_bytes=peak_bytes - sum(held_bytes.values()),
    )


def _placed(graph: Graph, target: Target, plan: Plan) -> _Placed:
    graph, plan = expand_plan(graph, target, plan)
    tables = cost_tables(graph, target)
    kernel_of = number_kernels(plan.order, plan.fusion_group)
    kernel_chip = np.empty(int(kernel_of.max()) + 1, dtype=np.int32)
    kernel_chip[kernel_of] = plan.placement
    size = size_by_chip(plan.placement, plan.replication, target.num_chips)
    held = holdings(tables, kernel_of, kernel_chip, size.astype(np.int64))
    return graph, plan, tables, kernel_of, held, fit_chips(tables, held)


def _chip_buffers(placed: _Placed, chip: int) -> ChipBuffers:
    graph, plan, tables, kernel_of, held, fit = placed
    mine = slice(held.activation_ptr[chip], held.activation_ptr[chip + 1])
    weights = slice(held.weight_ptr[chip], held.weight_ptr[chip + 1])
    streams = fit.is_streamed[weights]
    in_part = fit.streamed_bytes[weights] < held.weight_touched[weights]
    kept = held.weight_bytes[weights] - fit.streamed_bytes[weights]
    here = zip(held.weight[weights][~streams | in_part], kept[~streams | in_part], strict=True)
    stays = [(graph.tensor_names[k], int(size)) for k, size in here]
    crossing = np.flatnonzero(_crossing(tables, plan.placement, chip))
    stays += [(graph.tensor_names[k], BORDER_BUFFERS * int(tables.stored_bytes[k])) for k in crossing]
    buffers, end = [], 0
    for name, size_bytes in stays:
        buffers.append(Buffer(name, end, size_bytes, "", ""))
        end += size_bytes
    born, dead, size = held.born[mine], held.dead[mine], held.size_bytes[mine]
    address = np.empty(len(size), dtype=np.int64)
    height = place_buffers(size, born, dead, address)
    start = np.searchsorted(kernel_of[plan.order], np.arange(int(kernel_of.max()) + 2))  # of kernels
    for i in np.argsort(address, kind="stable"):
        name = graph.tensor_names[held.activation[mine][i]]
        ends = plan.order[start[born[i]]], plan.order[start[dead[i] + 1] - 1]
        buffers.append(
            Buffer(name, end + int(address[i]), int(size[i]), *(graph.op_names[op] for op in ends))
        )
    # Last, since it need not be whole pages.
    stream_bytes = int(tables.stream_buffer_bytes[chip]) if streams.any() else 0
    buffers.append(Buffer("", end + int(height), stream_bytes, "", ""))
    return ChipBuffers(
        chip=chip,
        sram_bytes=int(tables.sram_bytes[chip]),
        end=end + int(height) + stream_bytes,
        least_end=end + int(held.alive_bytes[chip]) + stream_bytes,
        buffers=tuple(buffer for buffer in buffers if buffer.size_bytes),
    )


def _crossing(tables: CostTables, placement: IntArray, chip: int) -> BoolArray:
    """[K] activations that enter or leave a chip."""
    tensor, reader = tables.reader_tensor, tables.reader_op
    home = np.where(tables.tensor_producer != NO_PRODUCER, placement[tables.tensor_producer], -1)
    is_elsewhere = placement[reader] != home[tensor]
    enters = np.zeros(len(home), dtype=np.bool_)
    enters[tensor[is_elsewhere & (placement[reader] == chip)]] = True
    leaves = tables.tensor_is_output.copy()
    leaves[tensor[is_elsewhere]] = True
    # The output of a relay leaves from the buffer in which its source arrived.
    leaves &= (home == chip) & (tables.tensor_kind != COPY)
    return (enters | leaves) & (tables.tensor_kind != WEIGHT)


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
