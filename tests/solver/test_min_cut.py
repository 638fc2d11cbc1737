"""The least traffic of a cut against all down-sets between the forced ones, and once by hand."""

from __future__ import annotations

import itertools

import numpy as np

from go_opt.common.arrays import BoolArray, CodeArray
from go_opt.env import cost_tables
from go_opt.model.builder import GraphBuilder
from go_opt.solver.certify.build import refinement_problem
from go_opt.solver.certify.min_cut import (
    FREE,
    INFINITE,
    INSIDE,
    OUTSIDE,
    Workspace,
    least_work_and_cut,
    min_cut,
    workspace,
)
from go_opt.solver.certify.problem import UnitGraph
from tests.solver.placement_oracle import tiny_graph
from tests.strategies import examples, small_mcm


def crossing_bytes(units: UnitGraph, inside: BoolArray) -> int:
    total = 0
    for k, size in enumerate(units.tensor_bytes):
        readers = units.reader[units.reader_ptr[k] : units.reader_ptr[k + 1]]
        if inside[units.tensor_producer[k]] and not inside[readers].all():
            total += int(size)
    return total


def down_sets(units: UnitGraph) -> list[BoolArray]:
    found = []
    for bits in itertools.product((False, True), repeat=units.num_units):
        inside = np.array(bits, dtype=np.bool_)
        source = np.repeat(np.arange(units.num_units), np.diff(units.successor_ptr))
        if (inside[source] >= inside[units.successor]).all():
            found.append(inside)
    return found


def least_crossing_bytes(units: UnitGraph, side: CodeArray) -> int:
    return int(min_cut(units, *of_sides(units, side), INFINITE))


def of_sides(units: UnitGraph, side: CodeArray) -> tuple[Workspace, int]:
    """Scratch with these sides, and the number of free units."""
    work, free = workspace(units), np.flatnonzero(side == FREE)
    work.side[:], work.free[: len(free)] = side, free
    return work, len(free)


def random_interval(seed: int) -> tuple[UnitGraph, CodeArray, list[BoolArray]]:
    """A tiny graph, what is forced in and out, and all down-sets between."""
    rng = np.random.default_rng([seed, 11])
    graph = tiny_graph(rng, int(rng.integers(1, 9)))
    units = refinement_problem(graph, cost_tables(graph, small_mcm(2)), forwarding="free").units
    sets = down_sets(units)
    lower, upper = sets[int(rng.integers(len(sets)))], sets[int(rng.integers(len(sets)))]
    lower = lower & upper
    side = np.where(lower, INSIDE, np.where(upper, FREE, OUTSIDE)).astype(np.int8)
    return units, side, [s for s in sets if (lower <= s).all() and (s <= upper).all()]


def test_least_of_all_down_sets() -> None:
    for seed in range(examples(100)):
        units, side, between = random_interval(seed)
        least = min(crossing_bytes(units, s) for s in between)
        assert least_crossing_bytes(units, side) == least, seed
        # Stopped early it is a bound still, and as large as was asked for.
        enough = least // 2
        partial = min_cut(units, *of_sides(units, side), enough)
        assert enough <= partial <= least, seed


def test_least_work_and_cut_of_all_down_sets() -> None:
    """Whichever counts more, work or bytes, and also where both together have to be scaled down."""
    for seed in range(examples(100)):
        units, side, between = random_interval(seed)
        free = np.flatnonzero(side == FREE).astype(np.int32)
        for rate in (0.0, 0.7 * units.ticks_per_byte, 20.0 * units.ticks_per_byte, 2.0**50):
            for charged in (INSIDE, OUTSIDE):
                least = min(
                    float(units.unit_ticks[free][s[free] == (charged == INSIDE)].sum())
                    + rate * crossing_bytes(units, s)
                    for s in between
                )
                found = least_work_and_cut(units, *of_sides(units, side), rate, charged)
                assert least * (1 - 1e-9) - 2 * len(side) <= found <= least * (1 + 1e-15), seed


def test_several_readers_cross_once() -> None:
    """``a`` (800 bytes) is read by b and c, which each pass 100 bytes on to d."""
    b = GraphBuilder("diamond")
    for name, reads, elements in (("a", [], 400), ("b", ["a"], 50), ("c", ["a"], 50), ("d", ["b", "c"], 1)):
        b.add_op(
            name, "Relu", "vector", flops=1, dtype="bfloat16", reads=[(f"t{r}", None) for r in reads],
            writes=[(f"t{name}", elements, "bfloat16")],
        )  # fmt: skip
    graph = b.build()
    units = refinement_problem(graph, cost_tables(graph, small_mcm(2)), forwarding="free").units
    for sides, least in (("IFFO", 200), ("IIFO", 200), ("IFOO", 800), ("IOOO", 800), ("FFFO", 0)):
        side = np.array(["FIO".index(letter) for letter in sides], dtype=np.int8)
        assert least_crossing_bytes(units, side) == least
