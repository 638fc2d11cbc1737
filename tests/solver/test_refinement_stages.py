"""Refinement with replicated stages against brute force and the evaluation of real plans."""

from __future__ import annotations

import numpy as np
import pytest

from go_opt.env import CostTables, cost_tables, evaluate_batch, loop_roles
from go_opt.env.copies.stages import stages_of_sizes
from go_opt.env.model.memory import FITS, fit_chips, holdings
from go_opt.model.builder import GraphBuilder
from go_opt.model.graph import INPUT, Graph
from go_opt.solver.certify.bounds import throughput_bound
from go_opt.solver.certify.build import refinement_problem
from go_opt.solver.certify.refinement import Refinement
from go_opt.solver.certify.slices import slice_units
from go_opt.solver.problem.forwarding_mode import ForwardingMode
from go_opt.solver.problem.streamed_bytes import least_host_s
from tests.replicated import forwarding_s
from tests.solver.placement_oracle import interval_s, stagings, tiny_graph
from tests.strategies import examples, random_graph, small_mcm

FORWARDING_MODES: tuple[ForwardingMode, ...] = ("free", "relayed", "adjacent")


def three_ops(weights: tuple[int, int, int], touched: int | None = None) -> Graph:
    """A chain of ops of 10, 58 and 20 us, each with a weight of its own; 100 bytes between them."""
    b = GraphBuilder("three")
    b.add_tensor("x", 10, "bfloat16", "input")
    for i, (size, seconds) in enumerate(zip(weights, (10, 58, 20), strict=True)):
        b.add_tensor(f"w{i}", size, "int8", "weight")
        b.add_op(
            f"op{i}", "Gather", "data_movement", flops=0, dtype="int8",
            reads=[(f"t{i}" if i else "x", None), (f"w{i}", touched)],
            writes=[(f"t{i + 1}", 50, "bfloat16")], measured_s={"chip": seconds * 1e-6},
        )  # fmt: skip
    return b.build()


def refined(graph: Graph, tables: CostTables, forwarding: ForwardingMode = "free") -> Refinement:
    refinement = Refinement(refinement_problem(graph, tables, forwarding=forwarding, replicates=True))
    refinement.run(100_000)
    return refinement


def test_stages_by_hand() -> None:
    """On 9 chips of 1000 bytes: one stage where all weights fit; else each op by itself.

    88 us on 9 chips are 9.78 us each. Alone, the ops take 10, 58/6 and 20/2 us on 1, 6, 2.
    Beside weights a stage holds twice the input's 20 bytes, and the 200 bytes that op 1 reads
    and writes. The host brings 200 bytes in 1 us: within 9.78 us 1936 of weights. A slow host brings 70, and
    chips forward 10 over each of eight slow links: within 10 us 1500 bytes, where a stage of two ops of 8000
    bytes each has 7840 to stream.
    """
    target = small_mcm(9, sram_bytes=1000)
    everything = three_ops((300, 300, 160))
    one = refined(everything, cost_tables(everything, target))
    assert one.is_optimal
    assert one.upper_s == pytest.approx(88e-6 / 9)
    assert one.replication is not None
    assert one.replication.tolist() == [9, 9, 9]

    graph = three_ops((800, 800, 800))
    heavy = three_ops((8000, 8000, 8000))
    slow = small_mcm(9, sram_bytes=8400, host_in_bytes_per_s=7e7, link_bytes_per_s=1e7)
    three = refined(heavy, cost_tables(heavy, slow))
    assert three.is_optimal
    assert three.upper_s == pytest.approx(10e-6)
    assert three.placement is not None
    assert three.replication is not None
    assert three.placement.tolist() == [0, 1, 7]
    assert three.replication.tolist() == [1, 6, 2]
    assert "chips has an interval of" in three.reason
    # 1640 bytes stream in 8.2 us: one stage again.
    assert refined(graph, cost_tables(graph, target)).upper_s == pytest.approx(88e-6 / 9)


def test_summed_streams_and_borders_by_hand() -> None:
    """Two chips, 100 bytes an us over links, nothing overlaps; weights of 800 bytes in 1000.

    All on both chips: 44 us, the half of 20 bytes in, which is 0.05 us, and 1640 bytes
    streamed at 200 an us each inference, of which a chip takes every other: 4.1 us.
    Op 0 and 1 on one chip alone are longer than that.
    """
    graph = three_ops((800, 800, 800))
    tables = cost_tables(graph, small_mcm(2, sram_bytes=1000, overlap=False))
    assert refined(graph, tables).upper_s == pytest.approx((44 + 0.05 + 4.1) * 1e-6)


def streamed_bytes(tables: CostTables, stages: tuple[int, ...]) -> list[float]:
    """What each stage streams if one chip runs each; infinite where activations do not fit."""
    kernel_of, one = np.arange(tables.num_ops, dtype=np.int32), np.ones(tables.num_chips, np.int64)
    fit = fit_chips(tables, holdings(tables, kernel_of, np.array(stages, np.int32), one))
    streamed = fit.stream_bytes[: max(stages) + 1].tolist()
    return streamed if fit.outcome == FITS else [np.inf] * len(streamed)


def least_interval_s(graph: Graph, tables: CostTables, forwarding: ForwardingMode) -> float:
    """The optimum with memory, but for the buffers of relays, by enumeration; overlapped."""
    inputs = int(tables.tensor_bytes[tables.tensor_kind == INPUT].sum())
    least_s = np.inf
    for stages, sizes in stagings(graph, tables.num_chips):
        host_s = least_host_s(tables, forwards=True)
        for size, stage_bytes in zip(sizes, streamed_bytes(tables, stages), strict=True):
            bytes_per_s = 1.0 / tables.host_in_s_per_byte
            bytes_per_s += (size - 1) / tables.link_s_per_byte[0] if size > 1 else 0.0
            needed_bytes = inputs + stage_bytes if stage_bytes else 0
            host_s = max(host_s, needed_bytes / bytes_per_s)
        least_s = min(least_s, max(host_s, interval_s(graph, tables, stages, forwarding, sizes)))
    return least_s


@pytest.mark.parametrize("forwarding", FORWARDING_MODES)
def test_bound_and_plan_meet_at_the_optimum(forwarding: ForwardingMode) -> None:
    found = 0
    for seed in range(examples(60)):
        rng = np.random.default_rng([seed, 3])
        graph = tiny_graph(rng, int(rng.integers(1, 7)), num_weights=4)
        target = small_mcm(
            int(rng.integers(1, 5)),
            link_bytes_per_s=float(rng.choice([3e7, 1e8, 1e9])),
            host_in_bytes_per_s=float(rng.choice([5e7, 2e8])),
            sram_bytes=int(rng.choice([1500, 3000, 6000])),
        )
        tables = cost_tables(graph, target)
        optimum_s = least_interval_s(graph, tables, forwarding)
        found += optimum_s < np.inf
        refinement = Refinement(refinement_problem(graph, tables, forwarding=forwarding, replicates=True))
        while not refinement.run(3):
            assert refinement.lower_bound_s <= optimum_s * (1 + 1e-9), seed
            assert refinement.upper_s >= optimum_s * (1 - 1e-9), seed
        assert refinement.is_optimal or optimum_s == np.inf, seed
        assert refinement.lower_bound_s <= optimum_s * (1 + 1e-9), seed
        assert refinement.upper_s == pytest.approx(optimum_s, rel=1e-6), seed
    assert found > examples(60) // 2


@pytest.mark.parametrize("overlap", [True, False])
def test_no_plan_beats_the_bound(overlap: bool) -> None:
    """Every placement, every size, evaluated as plans are: weights kept or streamed, activations."""
    for seed in range(examples(60)):
        rng = np.random.default_rng([seed, overlap, 9])
        graph = random_graph(rng, int(rng.integers(1, 6)))
        target = small_mcm(
            int(rng.integers(1, 5)),
            overlap=overlap,
            link_bytes_per_s=float(rng.choice([1e8, 1e9])),
            host_in_bytes_per_s=float(rng.choice([2e8, 5e9])),
            sram_bytes=int(rng.choice([10_000, 30_000, 100_000])),
        )
        tables = cost_tables(graph, target)
        rows = [
            (stages, stages_of_sizes(np.array(sizes))) for stages, sizes in stagings(graph, target.num_chips)
        ]
        placement = np.array([of.first_chip[list(stages)] for stages, of in rows], dtype=np.int32)
        replication = np.array([of.size[list(stages)] for stages, of in rows], dtype=np.int32)
        default = np.tile(np.arange(graph.num_ops, dtype=np.int32), (len(rows), 1))
        metrics = evaluate_batch(tables, placement, default, default, replication)
        optimum_s = metrics.interval_s[metrics.fits].min(initial=np.inf)
        if overlap:
            optimum_s = min(optimum_s, *forwarding_s(tables, placement, default, default, replication))
        refinement = refined(graph, tables)
        assert refinement.is_over, seed
        assert refinement.is_optimal or not overlap, seed
        assert refinement.lower_bound_s <= optimum_s * (1 + 1e-9), seed
        roles = loop_roles(graph)
        trivial = throughput_bound(graph, tables, roles, fusion_is_open=False, replication_is_open=True)
        assert trivial.seconds <= optimum_s * (1 + 1e-9), seed


@pytest.mark.parametrize(("sram_bytes", "share"), [(3000, 0.9), (100_000, 1.0)])
def test_slices_are_the_cheapest_of_their_order(sram_bytes: int, share: float) -> None:
    """Against every cut sequence of the default order, overlapped; what is alive across units is left out."""
    cheapest = 0
    for seed in range(examples(40)):
        rng = np.random.default_rng([seed, 17])
        graph = tiny_graph(rng, int(rng.integers(2, 8)), num_weights=4)
        target = small_mcm(4, sram_bytes=sram_bytes, link_bytes_per_s=1e8, host_in_bytes_per_s=1e8)
        problem = refinement_problem(graph, cost_tables(graph, target), forwarding="free", replicates=True)
        refinement = Refinement(problem)
        order = np.arange(problem.units.num_units, dtype=np.int32)
        least_s = np.inf
        for cut in range(2 ** (len(order) - 1)):
            starts = [bool(cut >> i & 1) for i in range(len(order) - 1)]
            refinement.upper_s = np.inf
            refinement.consider(np.cumsum([False, *starts]).astype(np.int32))
            least_s = min(least_s, refinement.upper_s)
        most_ticks = int(4 * least_s / problem.tick_s)
        sliced = slice_units(problem.units, order, 0, most_ticks)
        assert sliced is not None
        refinement.upper_s = np.inf
        refinement.consider(sliced)
        cheapest += refinement.upper_s <= least_s + 2.0**-11 * most_ticks * problem.tick_s
    assert cheapest >= share * examples(40)
