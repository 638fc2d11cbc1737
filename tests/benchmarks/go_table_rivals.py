"""Rivals of the portfolio for the makespan: placements by rule, partition and list scheduling.

Those that decide placements alone are given the best of both fusions and of two schedules:
the default order, and list scheduling by upward rank.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable
from importlib import import_module
from typing import Any, Final

import numpy as np

from go_opt.common.arrays import FloatArray, IntArray, LongArray, row_pointers
from go_opt.env import depth, height, list_schedule
from go_opt.solver import earliest_finish_placement
from go_opt.solver.orders.orders import largest_by_kernel
from tests.benchmarks.go_table_kernels import Best, Kernels, earliest_finish

# METIS: parts may weigh so many thousandths more than the mean, and so many of the devices are used.
IMBALANCES: Final = (30, 200, 1000)
SHARES: Final = (1.0, 0.5)
_MOST_WEIGHT: Final = 10**9  # of all vertices or edges together: METIS may count in 32 bits

Search = Callable[[list[Kernels], Best, int, Callable[[], float]], None]
"""Adds plans to the best one: of the kernels of both fusions, by a seed, while seconds are left."""


def one_device(fusions: list[Kernels], best: Best, seed: int, left_s: Callable[[], float]) -> None:
    """All on one device."""
    for kernels in fusions:
        best.add_scheduled(kernels, np.zeros(kernels.num_kernels, np.int32), "one device")


def by_hand(placements: Iterable[IntArray]) -> Search:
    """Placements [N] of ops; a kernel goes where most of its ops are."""

    def search(fusions: list[Kernels], best: Best, seed: int, left_s: Callable[[], float]) -> None:
        for kernels, placement in itertools.product(fusions, list(placements)):
            best.add_scheduled(kernels, whole_kernels(kernels, placement), "human")

    return search


def whole_kernels(kernels: Kernels, placement: IntArray) -> IntArray:
    """[M] the device of most ops of each kernel, the first of equals."""
    votes = np.zeros((kernels.num_kernels, kernels.num_devices))
    np.add.at(votes, (kernels.kernel_of, placement), 1.0)
    return votes.argmax(axis=1).astype(np.int32)


def metis(fusions: list[Kernels], best: Best, seed: int, left_s: Callable[[], float]) -> None:
    """Balanced partitions with a small cut, by other seeds and imbalances until the time is up.

    Vertices weigh seconds, edges bytes. Karypis and Kumar, "A fast and high quality multilevel scheme
    for partitioning irregular graphs", SIAM J. Sci. Comput. 1998. Kernels stay whole, and no order of
    the parts is asked for: there is nothing else to repair.
    """
    pymetis: Any = import_module("pymetis")  # it comes with an extra
    weighted = [(kernels, *_weighted(kernels)) for kernels in fusions]
    devices = fusions[0].num_devices
    counts = sorted({max(2, round(share * devices)) for share in SHARES}, reverse=True)
    for turn in itertools.count():
        options = pymetis.Options(seed=seed * 100_003 + turn, ufactor=IMBALANCES[turn % len(IMBALANCES)])
        for (kernels, neighbours, edge_weight, vertex_weight), count in itertools.product(weighted, counts):
            if best.plan is not None and left_s() <= 0:
                return
            _, part = pymetis.part_graph(
                min(count, kernels.num_kernels),
                pymetis.CSRAdjacency(*neighbours),
                vweights=vertex_weight,
                eweights=edge_weight,
                options=options,
            )
            best.add_scheduled(kernels, np.asarray(part, np.int32), "metis")


def _weighted(kernels: Kernels) -> tuple[tuple[LongArray, LongArray], LongArray, LongArray]:
    """CSR of the undirected graph, weights of its edges and of its vertices."""
    pairs = np.stack([kernels.source, kernels.reader], axis=1).astype(np.int64)
    both = np.concatenate([pairs, pairs[:, ::-1]])
    by_source = np.argsort(both[:, 0], kind="stable")
    ptr = row_pointers(both[:, 0], kernels.num_kernels)
    edge_weight = np.tile(_whole(kernels.num_bytes), 2)[by_source]
    return (ptr, both[by_source, 1]), edge_weight, _whole(kernels.seconds)


def _whole(weights: FloatArray) -> LongArray:
    """In whole numbers, none below one."""
    return np.maximum(1, (weights / max(weights.sum(), 1e-30) * _MOST_WEIGHT).astype(np.int64))


def heft(fusions: list[Kernels], best: Best, seed: int, left_s: Callable[[], float]) -> None:
    """Earliest finish with insertion, by upward rank with mean transfer times.

    Topcuoglu et al., "Performance-effective and low-complexity task scheduling for heterogeneous
    computing", TPDS 2002.
    """
    for kernels in fusions:
        rank = kernels.upward_rank(kernels.transfer_s)
        best.add(kernels, *earliest_finish(kernels, rank, inserts=True), "heft")


def peft(fusions: list[Kernels], best: Best, seed: int, left_s: Callable[[], float]) -> None:
    """Earliest finish with insertion, by the optimistic cost of what follows.

    Arabnejad and Barbosa, "List scheduling algorithm for heterogeneous systems by an optimistic cost
    table", TPDS 2014. On alike devices the cost of a task is the same on each: that without transfers.
    """
    for kernels in fusions:
        rank = kernels.upward_rank(np.zeros_like(kernels.transfer_s)) - kernels.seconds
        best.add(kernels, *earliest_finish(kernels, rank, inserts=True), "peft")


def critical_path(fusions: list[Kernels], best: Best, seed: int, left_s: Callable[[], float]) -> None:
    """List scheduling: by the longest path of seconds that follows, where it can start first."""
    for kernels in fusions:
        rank = kernels.upward_rank(np.zeros_like(kernels.transfer_s))
        best.add(kernels, *earliest_finish(kernels, rank, inserts=False), "critical path")


def join_all(fusions: list[Kernels], best: Best, seed: int, left_s: Callable[[], float]) -> None:
    """All kernels joined, and earliest finish along the default, the depth and the height order."""
    (kernels,) = (one for one in fusions if one.fusion == "joined")
    graph, kernel_of = kernels.graph, kernels.kernel_of
    default = -np.arange(kernels.num_kernels, dtype=np.float64)
    by_depth, by_height = (
        -largest_by_kernel(kernel_of, depth(graph)),
        largest_by_kernel(kernel_of, height(graph)),
    )
    for priority in (default, by_depth, by_height):
        order = list_schedule(graph, kernel_of, priority)
        placement = earliest_finish_placement(kernels.tables, order, kernel_of)
        device, place = np.empty((2, kernels.num_kernels), np.int32)
        device[kernel_of], place[kernel_of[order]] = placement, np.arange(graph.num_ops)
        best.add(kernels, device, np.argsort(place), "join-all")
