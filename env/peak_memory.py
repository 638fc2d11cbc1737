"""Which tensors fill a chip's memory where its activations are at their most.

The terms are those of :mod:`go_opt.env.analytical`: what enters or leaves the chip is held
throughout, twice; the rest lives from its producer's to its last reader's kernel.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from go_opt.env.cost import COPY, cost_tables
from go_opt.env.kernels import number_kernels
from go_opt.env.relays import expand_plan
from go_opt.env.target import Target
from go_opt.graph import NO_PRODUCER, WEIGHT, Graph
from go_opt.plan import Plan


@dataclass(frozen=True)
class Held:
    """A tensor in memory."""

    tensor: str
    held_bytes: int  # twice its size where it crosses the chip's border
    crosses: bool


@dataclass(frozen=True)
class PeakMemory:
    """A chip where its activations are at their most."""

    chip: int
    peak_bytes: int
    ops: tuple[str, ...]  # of the kernel that runs then; none where all is held throughout
    held: tuple[Held, ...]  # most bytes first; they add up to ``peak_bytes``


def peak_memory(graph: Graph, target: Target, plan: Plan, chip: int) -> PeakMemory:
    """What chip ``chip`` holds at its peak under ``plan``.

    Relays and clones are the ops that they are in :func:`go_opt.env.relays.expand_plan`.
    """
    graph, plan = expand_plan(graph, target, plan)
    tables = cost_tables(graph, target)
    kernel_of = number_kernels(plan.order, plan.fusion_group)
    size, tensor, reader = tables.tensor_bytes, tables.reader_tensor, tables.reader_op
    made = tables.tensor_producer != NO_PRODUCER
    home = np.where(made, plan.placement[tables.tensor_producer], -1)
    home_kernel = np.where(made, kernel_of[tables.tensor_producer], -1)
    is_activation = tables.tensor_kind != WEIGHT
    is_elsewhere = plan.placement[reader] != home[tensor]
    enters = np.zeros(len(size), dtype=np.bool_)
    enters[tensor[is_elsewhere & (plan.placement[reader] == chip)]] = True
    leaves = tables.tensor_is_output.copy()
    leaves[tensor[is_elsewhere]] = True
    last = np.full(len(size), -1, dtype=np.int64)
    np.maximum.at(last, tensor, kernel_of[reader])
    is_here = is_activation & (home == chip)
    # What a relay writes leaves from the buffer that its source came in.
    crosses = (is_activation & enters) | (is_here & leaves & (tables.tensor_kind != COPY))
    lives = is_here & ~leaves & (last > home_kernel)
    change = np.zeros(int(kernel_of.max()) + 2, dtype=np.int64)
    np.add.at(change, home_kernel[lives], size[lives])
    np.add.at(change, last[lives] + 1, -size[lives])
    alive = np.cumsum(change)
    peak = int(np.argmax(alive))
    at_peak = crosses | (lives & (home_kernel <= peak) & (last >= peak))
    held_bytes = size * np.where(crosses, 2, 1)
    largest = sorted(np.flatnonzero(at_peak & (size > 0)).tolist(), key=lambda k: -held_bytes[k])
    ops = plan.order[kernel_of[plan.order] == peak] if lives.any() else []
    return PeakMemory(
        chip=chip,
        peak_bytes=int(held_bytes[at_peak].sum()),
        ops=tuple(graph.op_names[op] for op in ops),
        held=tuple(Held(graph.tensor_names[k], int(held_bytes[k]), bool(crosses[k])) for k in largest),
    )
