"""Schedules for the makespan: by hand, and against the environment and all schedules of tiny graphs."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from go_opt.common.arrays import IntArray
from go_opt.env import Target, cost_tables, evaluate_plan, loop_roles
from go_opt.model.builder import GraphBuilder
from go_opt.model.graph import Graph
from go_opt.model.plan import Candidate
from go_opt.solver import (
    ScheduleAnnealing,
    earliest_finish_placement,
    latency_bound,
    list_scheduling,
    upward_ranks,
)
from go_opt.solver.scheduling.bounds import PRECISION
from go_opt.solver.scheduling.list_scheduling import linked_kernels, partition
from go_opt.solver.scheduling.schedule import plan_arrays
from go_opt.solver.verify.verifier import verify
from tests.env.test_makespan import US, in_us, measured_graph
from tests.solver.cp_sat_oracle import cp_sat_makespan_s
from tests.solver.test_bounds import least_makespan_s
from tests.strategies import (
    JIT_IS_ON,
    examples,
    kind_names,
    random_graph,
    random_target,
    seeds,
    small_mcm,
    toy_graph,
)

FREE: dict[str, Any] = {"acyclic": False, "no_skip": "off", "triangle": "off"}
ROUTED = ("ring", "all_to_all")  # from each chip to each
Arrays = tuple[IntArray, IntArray, IntArray]  # placement, order, kernels


def free_case(seed: int, most_ops: int, most_chips: int) -> tuple[Graph, Target]:
    """A graph, and a target without static constraints that holds all of it."""
    rng = np.random.default_rng(seed)
    num_chips = int(rng.integers(1, most_chips + 1))
    target = random_target(
        rng, num_chips=num_chips, topology=ROUTED[int(rng.integers(2))], sram_bytes=10**9, **FREE
    )
    num_ops = int(rng.integers(1, most_ops + 1))
    return random_graph(rng, num_ops, kinds=kind_names(target), max_elements=5000), target


def makespan_s(graph: Graph, target: Target, arrays: Arrays) -> float:
    """Of a plan that the verifier takes, by the environment."""
    placement, order, kernels = arrays
    plan = Candidate("test", placement, order, kernels).plan(graph, target)
    assert verify(graph, target, plan) == []
    metrics = evaluate_plan(graph, target, plan)
    assert metrics.valid
    return metrics.makespan_s


def first_schedule(graph: Graph, target: Target) -> Arrays:
    """Each op a kernel of its own, where it finishes first."""
    order = np.arange(graph.num_ops, dtype=np.int32)
    return earliest_finish_placement(cost_tables(graph, target), order, order), order, order


@settings(max_examples=examples(60))
@given(seed=seeds)
def test_annealed_schedules_are_valid_and_last_as_long_as_told(seed: int) -> None:
    graph, target = free_case(seed, 30, 5)
    start = first_schedule(graph, target)
    annealing = ScheduleAnnealing(
        graph, cost_tables(graph, target), loop_roles(graph), start,
        moves=400, seed=seed, hot=0.05,
    )  # fmt: skip
    assert annealing.best_s == pytest.approx(makespan_s(graph, target, start), rel=1e-9)
    annealing.run(400)
    best = annealing.best
    reached = best.placement, best.order, best.fusion_group
    assert best.expected_s == pytest.approx(makespan_s(graph, target, reached), rel=1e-9)
    assert best.expected_s <= makespan_s(graph, target, start) * (1 + 1e-9)


@settings(max_examples=examples(30))
@given(seed=seeds, sequences=st.integers(1, 6))
def test_sequences_wait_for_the_busiest_chip_too(seed: int, sequences: int) -> None:
    graph, target = free_case(seed, 30, 5)
    start = first_schedule(graph, target)
    annealing = ScheduleAnnealing(
        graph, cost_tables(graph, target), loop_roles(graph), start,
        moves=400, seed=seed, hot=0.05, sequences=sequences,
    )  # fmt: skip
    annealing.run(400)
    best = annealing.best
    reached = best.placement, best.order, best.fusion_group
    busiest_s = evaluate_plan(graph, target, best.plan(graph, target)).compute_s.max()
    least_s = max(busiest_s, makespan_s(graph, target, reached) / sequences)
    assert best.expected_s == pytest.approx(least_s, rel=1e-9)


@settings(max_examples=examples(60))
@given(seed=seeds)
def test_ops_that_share_a_chip_go_on_sharing_it(seed: int) -> None:
    graph, target = free_case(seed, 30, 5)
    tables, order = cost_tables(graph, target), np.arange(graph.num_ops, dtype=np.int32)
    shared = np.random.default_rng(seed).integers(0, 1 + graph.num_ops // 2, graph.num_ops).astype(np.int32)
    assume(all(tables.can_run[:, shared == number].all(axis=1).any() for number in np.unique(shared)))
    for start in (
        (earliest_finish_placement(tables, order, order, shared), order, order),
        list_scheduling(tables, order, order, upward_ranks(tables, order, order, 1.0), shared=shared),
    ):
        annealing = ScheduleAnnealing(
            graph, tables, loop_roles(graph), start, moves=400, seed=seed, hot=0.05, shared=shared
        )
        annealing.run(400)
        best = annealing.best
        for placement in (start[0], best.placement, plan_arrays(annealing._chain.present)[0]):
            assert len(np.unique(np.stack([shared, placement]), axis=1)[0]) == len(np.unique(shared))
        reached = best.placement, best.order, best.fusion_group
        assert best.expected_s == pytest.approx(makespan_s(graph, target, reached), rel=1e-9)


def test_a_chip_is_shared_by_all_that_have_to() -> None:
    """``a`` and ``d`` share a chip, which ``b`` leaves to them."""
    graph = measured_graph({"a": 5.0, "b": 10.0, "c": 10.0, "d": 10.0}, {"b": ("a",), "d": ("c",)})
    target, order = small_mcm(2, topology="all_to_all"), np.arange(4, dtype=np.int32)
    tables, by_name = cost_tables(graph, target), graph.op_index
    shared = order.copy()
    shared[by_name["d"]] = shared[by_name["a"]]
    placement = earliest_finish_placement(tables, order, order, shared)
    assert placement[by_name["a"]] == placement[by_name["d"]]
    annealing = ScheduleAnnealing(
        graph, tables, loop_roles(graph), (placement, order, order), moves=2000, seed=0, shared=shared
    )
    annealing.run(2000)
    best = annealing.best.placement
    assert best[by_name["a"]] == best[by_name["d"]] != best[by_name["b"]]


@settings(max_examples=examples(60))
@given(seed=seeds, slices=st.lists(st.integers(1, 60), min_size=3, max_size=3))
def test_makespans_along_the_sequence_are_those_of_the_environment(seed: int, slices: list[int]) -> None:
    rng = np.random.default_rng(seed)
    target = random_target(
        rng, num_chips=4, topology="all_to_all", sram_bytes=10**9, host_out_bytes_per_s=1e18, **FREE
    )
    graph = random_graph(rng, int(rng.integers(1, 40)), kinds=kind_names(target), max_elements=5000)
    tables, start = cost_tables(graph, target), first_schedule(graph, target)
    annealing = ScheduleAnnealing(graph, tables, loop_roles(graph), start, moves=200, seed=seed, hot=0.05)
    for moves in slices:
        annealing.run(moves)
        chain = annealing._chain
        assert chain.made[1] == pytest.approx(makespan_s(graph, target, plan_arrays(chain.present)), rel=1e-9)


@settings(max_examples=examples(30))
@given(seed=seeds)
def test_annealing_finds_the_best_schedule_of_tiny_graphs(seed: int) -> None:
    graph, target = free_case(seed, 4, 2)
    start = first_schedule(graph, target)
    annealing = ScheduleAnnealing(
        graph, cost_tables(graph, target), loop_roles(graph), start, moves=3000, seed=seed, hot=0.3
    )
    annealing.run(3000)
    assert annealing.best_s == pytest.approx(least_makespan_s(graph, target, fusion_is_open=True), rel=1e-9)


@pytest.mark.skipif(not JIT_IS_ON, reason="minutes where the kernels run interpreted")
@pytest.mark.parametrize("seed", range(6))
def test_annealing_reaches_what_cp_sat_proves(seed: int) -> None:
    rng = np.random.default_rng(seed)
    ops = [f"op {i}" for i in range(12)]
    reads = {
        ops[i]: tuple(rng.choice(ops[max(0, i - 5) : i], min(i, 2), replace=False)) for i in range(1, 12)
    }
    graph = measured_graph(dict(zip(ops, rng.integers(1, 40, 12).tolist(), strict=True)), reads)
    target = small_mcm(3, topology="all_to_all")
    tables = cost_tables(graph, target)
    annealing = ScheduleAnnealing(
        graph, tables, loop_roles(graph), first_schedule(graph, target), moves=30_000, seed=seed, hot=0.3
    )
    annealing.run(30_000)
    least_s, is_proven = cp_sat_makespan_s(graph, tables)
    assert is_proven
    assert annealing.best_s == pytest.approx(least_s, rel=1e-6)


@settings(max_examples=examples(60))
@given(seed=seeds)
def test_listed_schedules_are_valid(seed: int) -> None:
    graph, target = free_case(seed, 30, 5)
    tables, order = cost_tables(graph, target), np.arange(graph.num_ops, dtype=np.int32)
    listed = list_scheduling(tables, order, order, upward_ranks(tables, order, order, 1.0))
    assert makespan_s(graph, target, listed) < np.inf


def test_a_kernel_goes_where_it_finishes_first() -> None:
    # c would start on chip 0 behind a and b at 7 us; on chip 1 it has a's tensor at 3 + 11 = 14 us.
    graph, target = measured_graph({"a": 3, "b": 4, "c": 5}, {"b": ("a",), "c": ("a",)}), small_mcm(2)
    order = np.arange(3, dtype=np.int32)
    placement = earliest_finish_placement(cost_tables(graph, target), order, order)
    assert placement.tolist() == [0, 0, 0]
    # Behind 20 us of b it does not wait.
    graph = measured_graph({"a": 3, "b": 20, "c": 5}, {"b": ("a",), "c": ("a",)})
    assert earliest_finish_placement(cost_tables(graph, target), order, order).tolist() == [0, 0, 1]


def test_a_busy_link_counts() -> None:
    # a, b and c end at 3, 7 and 21 us on chip 0; a's tensor is sent to d on chip 1, so b's leaves at 13 us
    # only, and e would end there at 24 + 5 us. On chip 0 it ends at 26 us.
    graph = measured_graph(
        {"a": 3, "b": 4, "c": 14, "d": 5, "e": 5}, {"b": ("a",), "c": ("b",), "d": ("a",), "e": ("b",)}
    )
    order = np.arange(5, dtype=np.int32)
    placement = earliest_finish_placement(cost_tables(graph, small_mcm(2)), order, order)
    assert placement.tolist() == [0, 0, 0, 1, 0]


RANKS = [(0.0, [12, 9, 5]), (1.0, [34, 20, 5]), (2.0, [56, 31, 5])]


@pytest.mark.parametrize(("weight", "expected_us"), RANKS)
def test_upward_ranks_by_hand(weight: float, expected_us: list[float]) -> None:
    # a -> b -> c in a row: 3, 4 and 5 us, and 11 us for each tensor from chip to chip.
    graph = measured_graph({"a": 3, "b": 4, "c": 5}, {"b": ("a",), "c": ("b",)})
    order = np.arange(3, dtype=np.int32)
    rank = upward_ranks(cost_tables(graph, small_mcm(2)), order, order, weight)
    assert rank.tolist() == [in_us(us) for us in expected_us]


def test_annealing_by_hand() -> None:
    # One chip: 2 + 20 + 20 us. Two: b waits for a's tensor on chip 1 until 2 + 11, both end by 33 us.
    graph = measured_graph({"a": 2, "b": 20, "c": 20}, {"b": ("a",), "c": ("a",)})
    target, order = small_mcm(2, **FREE), np.arange(3, dtype=np.int32)
    start = np.zeros(3, np.int32), order, order
    annealing = ScheduleAnnealing(
        graph, cost_tables(graph, target), loop_roles(graph), start, moves=100, seed=0
    )
    assert annealing.best_s == in_us(42)
    annealing.run(100)
    assert annealing.best_s == in_us(33)


@pytest.mark.parametrize("dependency_us", [0, 5])
def test_a_fork_waits_for_a_transfer_by_hand(dependency_us: int) -> None:
    # On one chip: 2 + 20 + 20 + 2 us. On two, b and c each wait for a transfer of 11 us, before or behind,
    # and for the dependency on it.
    graph = measured_graph({"a": 2, "b": 20, "c": 20, "d": 2}, {"b": ("a",), "c": ("a",), "d": ("b", "c")})
    target = small_mcm(2, dependency_overhead_s=dependency_us * US, **FREE)
    order, least_us = np.arange(4, dtype=np.int32), 35 + dependency_us
    assert makespan_s(graph, target, (np.array([0, 0, 1, 1], np.int32), order, order)) == in_us(least_us)
    tables, roles = cost_tables(graph, target), loop_roles(graph)
    bound = latency_bound(graph, tables, roles, fusion_is_open=True)
    assert least_us * (1 - 2 * PRECISION) < bound.seconds / US <= least_us * (1 + 1e-9)
    # Were all tensors anywhere at once, there would be no wait.
    bound = latency_bound(graph, tables, roles, fusion_is_open=True, counts_transfers=False)
    assert bound.seconds == in_us(24)


@settings(max_examples=examples(60))
@given(seed=seeds)
def test_no_annealed_schedule_beats_the_bound(seed: int) -> None:
    graph, target = free_case(seed, 14, 4)
    tables, roles = cost_tables(graph, target), loop_roles(graph)
    annealing = ScheduleAnnealing(graph, tables, roles, first_schedule(graph, target), moves=2000, seed=seed)
    annealing.run(2000)
    bound = latency_bound(graph, tables, roles, fusion_is_open=True)
    assert bound.seconds <= annealing.best_s * (1 + 1e-9)


@given(seed=st.integers(0, 10))
@settings(max_examples=examples(3))
def test_same_seed_same_schedule(seed: int) -> None:
    graph, target = toy_graph(), small_mcm(3)
    start = np.zeros(6, np.int32), np.arange(6, dtype=np.int32), np.arange(6, dtype=np.int32)
    found = []
    for slices in ((200,), (1, 99, 100)):
        annealing = ScheduleAnnealing(
            graph, cost_tables(graph, target), loop_roles(graph), start, moves=200, seed=seed
        )
        for moves in slices:
            annealing.run(moves)
        found.append((annealing.best_s, annealing.best.placement.tolist(), annealing.best.order.tolist()))
    assert found[0] == found[1]
    assert found[0][0] < 100 * US


def test_partitions_by_hand() -> None:
    """Two chains go to a chip each. Where tensors cost little, each chip has half of every period."""
    chains = measured_graph(
        dict.fromkeys("abcdef", 10.0), {"b": ("a",), "c": ("b",), "e": ("d",), "f": ("e",)}
    )
    linked = linked_kernels(cost_tables(chains, small_mcm(2)), np.arange(6, dtype=np.int32))
    by_name = dict(zip(chains.op_names, range(6), strict=True))
    heads = [linked.head_s[by_name[name]] for name in "abcdef"]
    assert heads == pytest.approx([0.0, 10 * US, 20 * US] * 2)
    chip = partition(linked, 2, 1, 1.0, 200, seed=0)
    first, second = ({int(chip[by_name[name]]) for name in names} for names in ("abc", "def"))
    assert len(first) == len(second) == 1
    assert first != second
    layers = measured_graph(dict.fromkeys("abcd", 10.0), {"c": ("a", "b"), "d": ("a", "b")})
    linked = linked_kernels(cost_tables(layers, small_mcm(2)), np.arange(4, dtype=np.int32))
    chip = partition(linked, 2, 2, 0.01, 200, seed=0)
    by_name = dict(zip(layers.op_names, range(4), strict=True))
    assert chip[by_name["a"]] != chip[by_name["b"]]
    assert chip[by_name["c"]] != chip[by_name["d"]]


def test_kernels_stay_on_given_chips_that_can_run_them() -> None:
    graph = measured_graph(dict.fromkeys("abc", 10.0), {})
    tables, order = cost_tables(graph, small_mcm(3)), np.arange(3, dtype=np.int32)
    chips = np.array([2, 0, 2], np.int32)
    placement, _, _ = list_scheduling(tables, order, order, np.ones(3), chips=chips)
    assert placement.tolist() == [2, 0, 2]


def test_an_input_crosses_to_each_chip() -> None:
    """Unless the target says that it crosses once: two kernels that read it share a chip, or do not."""
    b = GraphBuilder("input")
    b.add_tensor("x", 5_000, "bf16", "input")
    for name in "ab":
        b.add_op(
            name, "X", "vector", flops=0, dtype="bf16", reads=[("x", None)], writes=[(name, 500, "bf16")],
            measured_s={"chip": 15 * US},
        )  # fmt: skip
    graph, order = b.build(), np.arange(2, dtype=np.int32)
    target = small_mcm(2)
    once = replace(target, simulator=replace(target.simulator, host_multicast=True))
    each = replace(target, simulator=replace(target.simulator, host_multicast=False))
    for on, chips, apart_us in ((once, [0, 1], 50 + 15), (each, [0, 0], 50 + 50 + 15)):
        assert list_scheduling(cost_tables(graph, on), order, order, np.ones(2))[0].tolist() == chips
        assert makespan_s(graph, on, (np.array([0, 0], np.int32), order, order)) == in_us(50 + 30)
        assert makespan_s(graph, on, (np.array([0, 1], np.int32), order, order)) == in_us(apart_us)
