"""Refinement with memory against brute force: no plan that fits beats the bound, and both meet."""

from __future__ import annotations

import numpy as np
import pytest

from go_opt.common.arrays import IntArray
from go_opt.env import CostTables, cost_tables, evaluate_batch, loop_roles
from go_opt.model.builder import GraphBuilder
from go_opt.solver.certify.build import refinement_problem
from go_opt.solver.certify.joint_floors import joint_refinement_problem
from go_opt.solver.certify.refinement import Refinement
from tests.solver.brute_force import all_fusions, all_orders, on_one_chip_each, plenty_of_memory
from tests.solver.placement_oracle import monotone_placements, tiny_graph
from tests.strategies import examples, random_graph, small_mcm


def tightened(rng: np.random.Generator, tables: CostTables, placements: IntArray) -> tuple[CostTables, float]:
    """Memory that some of ``placements`` need; and the least interval with memory for all."""
    default = np.tile(np.arange(tables.num_ops, dtype=np.int32), (len(placements), 1))
    metrics = evaluate_batch(plenty_of_memory(tables), placements, default, default)
    needed = (metrics.peak_bytes + metrics.weight_bytes * (rng.random() < 0.7)).max(axis=1)
    sram_bytes = int(np.quantile(needed, rng.random() ** 2)) + int(rng.integers(-3, 4))
    slow = rng.choice([1.0, 20.0])
    tight = tables._replace(
        sram_bytes=np.full(tables.num_chips, max(sram_bytes, 1)),
        host_in_s_per_byte=tables.host_in_s_per_byte * slow,
    )
    slower = plenty_of_memory(tight)
    return tight, float(evaluate_batch(slower, placements, default, default).interval_s.min())


@pytest.mark.parametrize("overlap", [True, False])
def test_bound_and_plan_meet_at_the_optimum_that_fits(overlap: bool) -> None:
    """One kernel per op in the default order: every placement, evaluated as plans are."""
    met = reachable = tight = 0
    for seed in range(examples(120)):
        rng = np.random.default_rng([seed, overlap, 23])
        if rng.random() < 0.5:
            graph = random_graph(rng, int(rng.integers(1, 7)))
        else:
            graph = tiny_graph(rng, int(rng.integers(1, 8)), num_weights=4)
        target = small_mcm(
            int(rng.integers(1, 5)),
            overlap=overlap,
            link_bytes_per_s=float(rng.choice([3e7, 1e8, 1e9])),
            host_in_bytes_per_s=float(rng.choice([2e8, 5e9])),
        )
        tables = cost_tables(graph, target)
        placements = np.array(list(monotone_placements(graph, target.num_chips)), dtype=np.int32)
        default = np.tile(np.arange(graph.num_ops, dtype=np.int32), (len(placements), 1))
        tables, least_s = tightened(rng, tables, placements)
        metrics = evaluate_batch(tables, placements, default, default)
        optimum_s = metrics.interval_s[metrics.fits].min(initial=np.inf)
        refinement = Refinement(refinement_problem(graph, tables, forwarding="free", tight=True))
        while not refinement.run(5) and refinement.expansions < 3000:
            assert refinement.lower_bound_s <= optimum_s * (1 + 1e-9), seed
        assert refinement.lower_bound_s <= optimum_s * (1 + 1e-9), seed
        assert refinement.reason
        met += optimum_s < np.inf and refinement.lower_bound_s == pytest.approx(optimum_s, rel=2e-6)
        reachable += optimum_s < np.inf
        tight += optimum_s < np.inf and optimum_s > least_s * (1 + 1e-6)
    assert met > 0.9 * reachable
    assert tight > examples(120) // 6


@pytest.mark.parametrize("overlap", [True, False])
def test_no_joint_plan_that_fits_beats_the_bound(overlap: bool) -> None:
    """Every placement, order and legal fusion of tiny graphs; chips are stages of one."""
    for seed in range(examples(40)):
        rng = np.random.default_rng([seed, overlap, 29])
        graph = random_graph(rng, int(rng.integers(1, 6)), max_elements=int(rng.choice([50, 5000])))
        target = small_mcm(
            int(rng.integers(1, 4)),
            overlap=overlap,
            link_bytes_per_s=float(rng.choice([1e8, 1e9])),
            host_in_bytes_per_s=float(rng.choice([2e8, 5e9])),
        )
        tables, roles = cost_tables(graph, target), loop_roles(graph)
        placements = np.array(list(monotone_placements(graph, target.num_chips)), dtype=np.int32)
        tables, _ = tightened(rng, tables, placements)
        by_chips = Refinement(joint_refinement_problem(graph, tables, roles))
        by_stages = Refinement(joint_refinement_problem(graph, tables, roles, replicates=True))
        by_chips.run(3000)
        by_stages.run(3000)
        for order in all_orders(graph):
            for group in all_fusions(graph, order):
                rows = on_one_chip_each(placements, group)
                shape = (len(rows), 1)
                metrics = evaluate_batch(tables, rows, np.tile(order, shape), np.tile(group, shape))
                least_s = metrics.interval_s[metrics.fits].min(initial=np.inf)
                assert by_chips.lower_bound_s <= least_s * (1 + 1e-9), seed
                assert by_stages.lower_bound_s <= least_s * (1 + 1e-9), seed


def test_weights_and_buffers_by_hand() -> None:
    """Two ops of 10 us, each with a weight of 600 bytes, on two chips of 1000: 200 bytes cross.

    Together they hold 1200 and 200 alive: 400 stream, 8 us of the host's link at 50 bytes an us.
    On a chip each, 600 and a double buffer of 400: just enough, and nothing streams. With a
    byte less of memory a byte of each streams.
    """
    b = GraphBuilder("two")
    for i in range(2):
        b.add_tensor(f"w{i}", 600, "int8", "weight")
        b.add_op(
            f"op{i}", "Gather", "data_movement", flops=0, dtype="int8",
            reads=[(f"w{i}", None)] + ([("t0", None)] if i else []),
            writes=[(f"t{i}", 100, "bfloat16")], measured_s={"chip": 10e-6},
        )  # fmt: skip
    graph = b.build()
    found = []
    for sram_bytes in (1000, 999):
        tables = cost_tables(graph, small_mcm(2, sram_bytes=sram_bytes, host_in_bytes_per_s=5e7))
        refinement = Refinement(refinement_problem(graph, tables, forwarding="free", tight=True))
        assert refinement.run(1000)
        assert refinement.is_optimal
        found.append(refinement.lower_bound_s * 1e6)
    assert found == pytest.approx([10.0, 10.0])


def test_a_skip_is_alive_across_what_it_skips() -> None:
    """Four ops of 200 bytes each; the last reads the first's beside the third's, and makes an output.

    While the third runs, the first's bytes wait: 3 x 200, and 400 of the output's double buffer.
    """
    b = GraphBuilder("skip")
    for i, reads in enumerate([[], ["t0"], ["t1"], ["t0", "t2"]]):
        b.add_op(
            f"op{i}", "Gather", "data_movement", flops=0, dtype="int8",
            reads=[(name, None) for name in reads],
            writes=[(f"t{i}", 100, "bfloat16")], measured_s={"chip": 10e-6},
        )  # fmt: skip
    b.mark_output("t3")
    graph = b.build()
    placement = np.zeros((1, 4), np.int32)
    order = np.arange(4, dtype=np.int32)[None]
    for sram_bytes in (1000, 999):
        tables = cost_tables(graph, small_mcm(1, sram_bytes=sram_bytes))
        problem = joint_refinement_problem(graph, tables, loop_roles(graph))
        assert problem.tight is not None
        held = problem.tight
        assert [held.across_ptr[2], held.across_ptr[3], held.across_reader[0]] == [0, 1, 3]
        fits = bool(evaluate_batch(tables, placement, order, order).fits[0])
        assert fits == (sram_bytes == 1000)
        refinement = Refinement(problem)
        refinement.run(100)
        assert refinement.is_over
        assert np.isfinite(refinement.upper_s) == fits
