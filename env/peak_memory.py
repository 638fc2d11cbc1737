"""Which tensors fill a chip's memory when its activations peak.

The rules are those of :mod:`go_opt.env.model.memory`: a tensor that enters or leaves the chip always
has two buffers; others live from their producer's kernel to their last reader's.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from go_opt.common.arrays import BoolArray, IntArray
from go_opt.env.copies.relays import expand_plan
from go_opt.env.cost import COPY, CostTables, cost_tables
from go_opt.env.kernels.numbering import number_kernels
from go_opt.env.model.memory import BORDER_BUFFERS, NONE, fit_chips, holdings
from go_opt.env.target import Target
from go_opt.model.graph import NO_PRODUCER, WEIGHT, Graph
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


def peak_memory(graph: Graph, target: Target, plan: Plan, chip: int) -> PeakMemory:
    """The tensors on chip ``chip`` at its peak under ``plan``.

    Relays and clones count as ops, as in :func:`go_opt.env.copies.relays.expand_plan`.
    """
    graph, plan = expand_plan(graph, target, plan)
    tables = cost_tables(graph, target)
    kernel_of = number_kernels(plan.order, plan.fusion_group)
    kernel_chip = np.empty(int(kernel_of.max()) + 1, dtype=np.int32)
    kernel_chip[kernel_of] = plan.placement
    held = holdings(tables, kernel_of, kernel_chip)
    fit = fit_chips(tables, held)
    mine = slice(held.activation_ptr[chip], held.activation_ptr[chip + 1])
    born, dead, size = held.born[mine], held.dead[mine], held.size_bytes[mine]
    lives, ops = np.zeros(0, dtype=np.int64), []
    if len(born):
        alive = [int(size[(born <= m) & (dead >= m)].sum()) for m in born]
        is_placed = fit.address[mine][0] != NONE
        peak = born[int(np.argmax(fit.address[mine] + size if is_placed else alive))]
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
