"""The joint problem's bound against every placement, order and legal fusion of tiny graphs."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from go_opt.env import CostTables, cost_tables, evaluate_batch, loop_roles
from go_opt.env.copies.stages import stages_of_sizes
from go_opt.model.builder import GraphBuilder
from go_opt.model.graph import Graph
from go_opt.solver.certify.bounds import throughput_bound
from go_opt.solver.certify.joint_floors import joint_floor_s, joint_refinement_problem
from go_opt.solver.certify.refinement import Refinement
from tests.replicated import forwarding_s
from tests.solver.brute_force import all_fusions, all_orders, on_one_chip_each, plenty_of_memory
from tests.solver.placement_oracle import monotone_placements, stagings
from tests.strategies import examples, random_graph, small_mcm, toy_graph


def least_interval_s(graph: Graph, tables: CostTables) -> float:
    """Everything open: placements along the ring, orders, fusions."""
    placements = np.array(list(monotone_placements(graph, tables.num_chips)), dtype=np.int32)
    least_s = np.inf
    for order in all_orders(graph):
        for group in all_fusions(graph, order):
            rows = on_one_chip_each(placements, group)
            metrics = evaluate_batch(
                tables, rows, np.tile(order, (len(rows), 1)), np.tile(group, (len(rows), 1))
            )
            least_s = min(least_s, float(metrics.interval_s.min()))
    return least_s


@pytest.mark.parametrize("overlap", [True, False])
def test_no_joint_plan_beats_the_bound(overlap: bool) -> None:
    for seed in range(examples(60)):
        rng = np.random.default_rng([seed, overlap, 7])
        graph = random_graph(rng, int(rng.integers(1, 6)), max_elements=int(rng.choice([50, 5000])))
        target = small_mcm(
            int(rng.integers(1, 4)), overlap=overlap, link_bytes_per_s=float(rng.choice([1e8, 1e9]))
        )
        tables = plenty_of_memory(cost_tables(graph, target))
        roles = loop_roles(graph)
        problem = joint_refinement_problem(graph, tables, roles)
        refinement = Refinement(problem)
        refinement.run(10_000)
        assert refinement.is_optimal
        optimum_s = least_interval_s(graph, tables)
        assert refinement.lower_bound_s <= optimum_s * (1 + 1e-9), seed
        assert refinement.reason


def test_floors_by_hand() -> None:
    """On ``toy_graph`` every op has 500 elements but logits; see its table for flops and bytes.

    embed is alone: 3.4 us. dense, relu, mix, add have one trip count: flops are
    8 + 5 + 2 + 5 = 20 us; bytes cannot be more. The matrix ops carry the overheads, 1 us each.
    """
    graph = toy_graph()
    tables, roles = cost_tables(graph, small_mcm(2)), loop_roles(graph)
    seconds = joint_floor_s(tables, roles) * 1e6
    assert seconds == pytest.approx([3.4, 9.0, 5.0, 3.0, 5.0, 14.0])


def test_matrix_ops_never_share_a_read() -> None:
    """Two matrix ops and an addition read a weight of 4000 bytes: 4 us for each of the matrix ops.

    Each writes 200 bytes that the addition may take from its kernel; the addition's 200 bytes
    are an output, 0.2 us. An overhead of 1 us for each matrix op.
    """
    b = GraphBuilder("shared")
    b.add_tensor("w", 2000, "bfloat16", "weight")
    for i in range(2):
        b.add_op(
            f"dense{i}", "MatMul", "matrix", flops=1000, dtype="bfloat16",
            reads=[("w", None)], writes=[(f"t{i}", 100, "bfloat16")],
        )  # fmt: skip
    b.add_op(
        "add", "Add", "vector", flops=10, dtype="bfloat16",
        reads=[("t0", None), ("t1", None), ("w", None)], writes=[("y", 100, "bfloat16")],
    )  # fmt: skip
    b.mark_output("y")
    graph = b.build()
    tables, roles = cost_tables(graph, small_mcm(2)), loop_roles(graph)
    assert joint_floor_s(tables, roles) * 1e6 == pytest.approx([5.0, 5.0, 0.2])


def test_no_stages_of_any_fusion_beat_the_bound() -> None:
    """Stages, their sizes, orders and fusions of tiny graphs, evaluated as plans are."""
    for seed in range(examples(30)):
        rng = np.random.default_rng([seed, 19])
        graph = random_graph(rng, int(rng.integers(1, 5)), max_elements=int(rng.choice([50, 5000])))
        target = small_mcm(
            int(rng.integers(1, 4)),
            sram_bytes=int(rng.choice([10_000, 30_000])),
            link_bytes_per_s=float(rng.choice([1e8, 1e9])),
            host_in_bytes_per_s=float(rng.choice([2e8, 5e9])),
        )
        tables, roles = cost_tables(graph, target), loop_roles(graph)
        refinement = Refinement(joint_refinement_problem(graph, tables, roles, replicates=True))
        refinement.run(10_000)
        trivial = throughput_bound(graph, tables, roles, fusion_is_open=True, replication_is_open=True)
        bound_s = max(refinement.lower_bound_s, trivial.seconds)
        rows = [
            (list(stages), stages_of_sizes(np.array(sizes)))
            for stages, sizes in stagings(graph, target.num_chips)
        ]
        placement = np.array([of.first_chip[stages] for stages, of in rows], dtype=np.int32)
        replication = np.array([of.size[stages] for stages, of in rows], dtype=np.int32)
        for order in all_orders(graph):
            for group in all_fusions(graph, order):
                _, leader, kernel = np.unique(group, return_index=True, return_inverse=True)
                whole = (placement == placement[:, leader[kernel]]).all(axis=1)
                shape = (int(whole.sum()), 1)
                plans = placement[whole], np.tile(order, shape), np.tile(group, shape), replication[whole]
                metrics = evaluate_batch(tables, *plans)
                least_s = metrics.interval_s[metrics.fits].min(initial=np.inf)
                least_s = min(least_s, *forwarding_s(tables, *plans))
                assert bound_s <= least_s * (1 + 1e-9), seed


@pytest.mark.parametrize(("pays", "streams_us"), [(True, 30.0), (False, 0.0)])
def test_streaming_takes_time_of_chips_that_pay_for_transfers(pays: bool, streams_us: float) -> None:
    """Two weights of 40 kB on one chip of 50 kB: 30 kB stream at least, in 30 us."""
    b = GraphBuilder("streams")
    b.add_tensor("x", 1, "bfloat16", "input")
    for i in range(2):
        b.add_tensor(f"w{i}", 20_000, "bfloat16", "weight")
        reads = [("x" if i == 0 else "t0", None), (f"w{i}", None)]
        b.add_op(
            f"dense{i}", "MatMul", "matrix", flops=1, dtype="bfloat16", reads=reads,
            writes=[(f"t{i}", 1, "bfloat16")],
        )  # fmt: skip
    b.mark_output("t1")
    graph = b.build()
    target = small_mcm(1, sram_bytes=50_000, host_in_bytes_per_s=1e9, overlap=False)
    target = replace(target, kinds=tuple(replace(kind, pays_transfers=pays) for kind in target.kinds))
    tables, order = cost_tables(graph, target), np.array([[0, 1]], np.int32)
    interval_s = float(evaluate_batch(tables, np.zeros_like(order), order, order).interval_s[0])
    refinement = Refinement(joint_refinement_problem(graph, tables, loop_roles(graph), replicates=True))
    refinement.run(100)
    assert refinement.lower_bound_s <= interval_s * (1 + 1e-9)
    # Both weights are read from SRAM, and what does not fit streams.
    assert refinement.lower_bound_s * 1e6 >= 80.0 + streams_us
