"""Everything there is to choose from on tiny instances, by plain enumeration."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import numpy as np

from go_opt.common.arrays import IntArray, LongArray
from go_opt.env import BatchMetrics, CostTables, evaluate_batch, is_one_loop, loop_roles
from go_opt.env.kernels.fusion import LoopRoles
from go_opt.env.kernels.numbering import number_kernels
from go_opt.model.graph import Graph
from go_opt.model.plan import Candidate

PLENTY_BYTES = 2**50


def plenty_of_memory(tables: CostTables) -> CostTables:
    """The same chips with memory for everything, so that nothing streams."""
    return tables._replace(sram_bytes=np.full(tables.num_chips, PLENTY_BYTES, dtype=np.int64))


def evaluate_placements(
    tables: CostTables, placements: IntArray, order: IntArray, group: IntArray
) -> BatchMetrics:
    """``placements`` [B, N], all with one order and one fusion."""
    rows = len(placements)
    return evaluate_batch(tables, placements, np.tile(order, (rows, 1)), np.tile(group, (rows, 1)))


def segments_of(slicing: Candidate) -> tuple[LongArray, LongArray]:
    """Cuts [S + 1] between its kernels, and the chips [S] of each segment."""
    kernel_of = number_kernels(slicing.order, slicing.fusion_group)
    _, first_op = np.unique(kernel_of, return_index=True)
    starts = np.flatnonzero(np.diff(slicing.placement[first_op], prepend=-1))
    replication = np.ones_like(slicing.placement) if slicing.replication is None else slicing.replication
    return np.append(starts, len(first_op)), replication[first_op][starts].astype(np.int64)


def all_slicings(
    graph: Graph,
    tables: CostTables,
    order: IntArray,
    group: IntArray,
    *,
    adjacent: bool,
    max_chips: int,
) -> IntArray:
    """[B, N] placements of all cut sequences: segment d on chip d, on kinds that can run it."""
    kernel_of = number_kernels(order, group)
    num_kernels = int(kernel_of.max()) + 1
    found = []
    for used in range(1, min(max_chips, num_kernels) + 1):
        for inner in itertools.combinations(range(1, num_kernels), used - 1):
            lengths = np.diff([0, *inner, num_kernels])
            placement = np.repeat(np.arange(used), lengths)[kernel_of]
            span = placement[graph.edge_dst] - placement[graph.edge_src]
            if adjacent and (span > 1).any():
                continue
            if tables.can_run[tables.chip_kind[placement], np.arange(graph.num_ops)].all():
                found.append(placement)
    return np.array(found, dtype=np.int32).reshape(-1, graph.num_ops)


def all_placements(graph: Graph, tables: CostTables) -> IntArray:
    """[B, N] every chip for every op, on kinds that can run it."""
    ops = np.arange(graph.num_ops)
    rows = np.array(list(itertools.product(range(tables.num_chips), repeat=graph.num_ops)), dtype=np.int32)
    return rows[tables.can_run[tables.chip_kind[rows], ops].all(axis=1)]


def all_orders(graph: Graph) -> Iterator[IntArray]:
    """Every topological order."""
    edges = list(zip(graph.edge_src, graph.edge_dst, strict=True))
    for order in itertools.permutations(range(graph.num_ops)):
        place = {op: i for i, op in enumerate(order)}
        if all(place[source] < place[reader] for source, reader in edges):
            yield np.array(order, dtype=np.int32)


def all_fusions(graph: Graph, order: IntArray, roles: LoopRoles | None = None) -> Iterator[IntArray]:
    """[N] every legal fusion along ``order``, chips left out; ``roles`` by default without patterns."""
    roles = roles or loop_roles(graph)
    for splits in itertools.product((0, 1), repeat=graph.num_ops - 1):
        along = np.cumsum([0, *splits]).astype(np.int32)
        kernels = [order[along == kernel] for kernel in range(along[-1] + 1)]
        if all(is_one_loop(roles, ops) for ops in kernels):
            group = np.empty_like(along)
            group[order] = along
            yield group


def on_one_chip_each(placements: IntArray, group: IntArray) -> IntArray:
    """The placements that keep the ops of every kernel together."""
    _, leader, kernel = np.unique(group, return_index=True, return_inverse=True)
    return placements[(placements == placements[:, leader[kernel]]).all(axis=1)]
