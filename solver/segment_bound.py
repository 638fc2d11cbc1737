"""A bound that is easy to read: the cheapest segment that contains one op.

Whatever chip runs op v runs a segment ``J - I`` of two down-sets with v in J and not in I. Its
work and its traffic cannot be less than

    min over I <= J of  a * work(J - I) + b * cut(I) / rate + c * cut(J) / rate,

a minimum cut on two copies of the graph: u in J but not in I is an arc of u's work from its
copy in J to its copy in I, and ``I <= J`` an infinite arc back. Where transfers do not overlap
compute a = b = c = 1; where they do, a chip takes at least any mean of the three, and the
largest over a few means is taken.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from go_opt.csr import row_pointers
from go_opt.solver.bounds import Bound
from go_opt.solver.min_cut import FREE, INFINITE, INSIDE, OUTSIDE, flow_network, min_cut
from go_opt.solver.refinement_problem import RefinementProblem, UnitGraph

MEANS: Final = ((0.5, 0.25, 0.25), (0.5, 0.5, 0.0), (0.5, 0.0, 0.5), (0.34, 0.33, 0.33), (0.8, 0.1, 0.1))
MOST_OPS: Final = 8
LARGEST: Final = 2**40  # capacities are scaled to this, so that all of them together fit


def segment_bound(problem: RefinementProblem) -> Bound:
    """The dearest of the cheapest segments around the units that take longest or move most.

    Not with replication open: then several chips share a segment.
    """
    units = problem.units
    assert not units.replicates
    work_s = problem.unit_s + problem.own_s
    link_s = (units.tensor_bytes * problem.link_s_per_byte).astype(np.float64)
    num_units = units.num_units
    moved_s = np.bincount(units.tensor_producer, weights=link_s, minlength=num_units)
    moved_s += np.bincount(
        units.reader, weights=np.repeat(link_s, np.diff(units.reader_ptr)), minlength=num_units
    )
    candidates = np.argsort(-(work_s + moved_s), kind="stable")[:MOST_OPS]
    bounds = []
    for a, b, c in MEANS if units.overlap else ((1.0, 1.0, 1.0),):
        double, scale = _two_copies(units, a * work_s, b * link_s, c * link_s)
        network = flow_network(double)
        for unit in candidates:
            side = _around(units, int(unit))
            free = np.flatnonzero(side == FREE).astype(np.int32)
            seconds = min_cut(double, network, side, free, len(free), INFINITE) * scale
            bounds.append(Bound(seconds, _reason(problem, int(unit), seconds)))
    return max(bounds, key=lambda bound: bound.seconds)


def _reason(problem: RefinementProblem, unit: int, seconds: float) -> str:
    return (
        f"op {problem.name_of(unit)!r} and the work and traffic that come with it, wherever it is, "
        f"take a chip {seconds * 1e6:.4g} us"
    )


def _two_copies(
    units: UnitGraph,
    work_s: NDArray[np.float64],
    before_s: NDArray[np.float64],
    after_s: NDArray[np.float64],
) -> tuple[UnitGraph, float]:
    """Copy I as units 0 … U - 1, copy J behind it; capacities in whole scales of the seconds."""
    num_units = units.num_units
    all_s = np.concatenate([before_s, after_s, work_s])
    scale = max(float(all_s.max()), 1e-30) / LARGEST
    every = np.arange(num_units, dtype=np.int32)
    # In J but not in I: a "tensor" of u's work, made in J and read in I.
    made = np.concatenate([units.tensor_producer, units.tensor_producer + num_units, every + num_units])
    readers = np.split(units.reader, units.reader_ptr[1:-1]) if len(units.tensor_producer) else []
    read_by = [*readers, *(row + num_units for row in readers), *every[:, None]]
    by_producer = np.argsort(made, kind="stable")
    producer = made[by_producer]
    counts = np.array([len(read_by[k]) for k in by_producer])
    reader = np.concatenate([read_by[k] for k in by_producer])
    reader_ptr = np.concatenate([[0], np.cumsum(counts)])
    source = np.repeat(producer, counts)
    edges = np.unique(np.stack([source, reader], axis=1), axis=0).astype(np.int32)
    backward = edges[np.argsort(edges[:, 1], kind="stable")]
    tensor_of_read = np.repeat(np.arange(len(producer), dtype=np.int32), counts)
    size = 2 * num_units
    return units._replace(
        unit_ticks=np.zeros(size, np.int64),
        successor_ptr=row_pointers(edges[:, 0], size),
        successor=np.ascontiguousarray(edges[:, 1]),
        predecessor_ptr=row_pointers(backward[:, 1], size),
        predecessor=np.ascontiguousarray(backward[:, 0]),
        produced_ptr=row_pointers(producer, size),
        read_ptr=row_pointers(reader, size),
        read=tensor_of_read[np.argsort(reader, kind="stable")],
        tensor_producer=producer.astype(np.int32),
        tensor_bytes=np.floor(all_s[by_producer] / scale).astype(np.int64),
        reader_ptr=reader_ptr.astype(np.int64),
        reader=reader.astype(np.int32),
    ), scale


def _around(units: UnitGraph, unit: int) -> NDArray[np.int8]:
    """[2 U] ``unit`` with its ancestors in J; with its descendants out of I."""
    num_units = units.num_units
    side = np.full(2 * num_units, FREE, np.int8)
    for ptr, neighbour, first, value in (
        (units.predecessor_ptr, units.predecessor, num_units, INSIDE),
        (units.successor_ptr, units.successor, 0, OUTSIDE),
    ):
        stack = [unit]
        side[first + unit] = value
        while stack:
            at = stack.pop()
            for other in neighbour[ptr[at] : ptr[at + 1]]:
                if side[first + other] == FREE:
                    side[first + other] = value
                    stack.append(int(other))
    return side
