"""Where each buffer of a plan lies, and which tensors fill a chip's memory when its activations peak.

The rules are those of :mod:`go_opt.env.model.memory`: a tensor that enters or leaves the chip always
has two buffers; others live from their producer's kernel to their last reader's.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from go_opt.common.arrays import BoolArray, IntArray
from go_opt.env.chip_buffers import Buffer, ChipBuffers
from go_opt.env.copies.relays import expand_plan
from go_opt.env.copies.stages import size_by_chip
from go_opt.env.cost import COPY, CostTables, cost_tables
from go_opt.env.kernels.numbering import number_kernels
from go_opt.env.model.addresses import place_buffers
from go_opt.env.model.memory import Fit, Holdings, fit_chips, holdings
from go_opt.env.model.package import NONE
from go_opt.env.model.traffic import BORDER_BUFFERS
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
