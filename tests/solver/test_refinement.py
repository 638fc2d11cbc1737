"""Refinement against brute force: the bound is never above the optimum, and both meet."""

from __future__ import annotations

import numpy as np
import pytest

from go_opt.env import cost_tables, evaluate_batch
from go_opt.model.builder import GraphBuilder
from go_opt.model.graph import Graph
from go_opt.solver.certify.build import refinement_problem
from go_opt.solver.certify.refinement import Refinement
from go_opt.solver.problem.forwarding_mode import ForwardingMode
from go_opt.solver.problem.problem import placement_problem
from go_opt.solver.verify.rule_check import NONE, broken_rules
from tests.solver.brute_force import evaluate_placements, plenty_of_memory
from tests.solver.cp_sat_oracle import cp_sat_optimum_s
from tests.solver.placement_oracle import interval_s, least_interval_s, monotone_placements, tiny_graph
from tests.strategies import examples, random_graph, small_mcm

FORWARDING_MODES: tuple[ForwardingMode, ...] = ("free", "relayed", "adjacent")


@pytest.mark.parametrize("overlap", [True, False])
@pytest.mark.parametrize("forwarding", FORWARDING_MODES)
def test_bound_and_plan_meet_at_the_optimum(forwarding: ForwardingMode, overlap: bool) -> None:
    for seed in range(examples(150)):
        rng = np.random.default_rng([seed, overlap])
        graph = tiny_graph(rng, int(rng.integers(1, 9)))
        target = small_mcm(
            int(rng.integers(1, 5)),
            overlap=overlap,
            link_bytes_per_s=float(rng.choice([3e7, 1e8, 1e9])),
            host_in_bytes_per_s=float(rng.choice([5e7, 1e9])),
        )
        tables = cost_tables(graph, target)
        optimum_s = least_interval_s(graph, tables, forwarding)
        refinement = Refinement(refinement_problem(graph, tables, forwarding=forwarding))
        while not refinement.run(3):
            assert refinement.lower_bound_s <= optimum_s * (1 + 1e-9), seed
            assert refinement.upper_s >= optimum_s * (1 - 1e-9), seed
        assert refinement.lower_bound_s <= optimum_s * (1 + 1e-9), seed
        assert refinement.upper_s == pytest.approx(optimum_s, rel=1e-6), seed
        assert refinement.placement is not None
        chips = tuple(refinement.placement.tolist())
        assert interval_s(graph, tables, chips, forwarding) == pytest.approx(refinement.upper_s), seed


def chain_with_residuals(rng: np.random.Generator, num_ops: int) -> Graph:
    """Each op reads the one before; some also read an earlier one, which keeps both on two chips."""
    b = GraphBuilder("chain")
    for op in range(num_ops):
        earlier = {op - 1, op - int(rng.integers(1, 5))} if rng.random() < 0.5 else {op - 1}
        reads = [(f"t{i}", None) for i in sorted(earlier) if i >= 0]
        seconds = {"chip": float(rng.integers(1, 30)) * 1e-6}
        b.add_op(f"op{op}", "Sort", "vector", flops=0, dtype="bfloat16", reads=reads,
                 writes=[(f"t{op}", 10, "bfloat16")], measured_s=seconds)  # fmt: skip
    b.mark_output(f"t{num_ops - 1}")
    return b.build()


@pytest.mark.parametrize("no_skip", ["off", "prefix"])
def test_the_strict_bound_holds_for_the_longest_path_form(no_skip: str) -> None:
    raised = 0
    for seed in range(examples(60)):
        rng = np.random.default_rng([seed, 9])
        graph = chain_with_residuals(rng, int(rng.integers(3, 8)))
        target = small_mcm(int(rng.integers(2, 5)), no_skip=no_skip, link_bytes_per_s=1e9, sram_bytes=2**40)
        tables, default = cost_tables(graph, target), np.arange(graph.num_ops, dtype=np.int32)
        every = np.array(list(monotone_placements(graph, target.num_chips)), np.int32)
        every = every[broken_rules(placement_problem(graph, target), every) == NONE]
        optimum_s = evaluate_placements(tables, every, default, default).interval_s.min()
        bounds_s = []
        for forwarding in ("free", "adjacent"):
            problem = refinement_problem(graph, tables, forwarding=forwarding, tight=True, sure_only=True)
            refinement = Refinement(problem)
            refinement.run(500)
            bounds_s.append(refinement.lower_bound_s)
        assert bounds_s[1] <= optimum_s * (1 + 1e-9), seed
        raised += bounds_s[1] > bounds_s[0] * 1.001
    assert raised > examples(60) // 20


def test_kernels_of_several_ops_and_what_was_reached_before() -> None:
    """A fusion group is one unit; a placement given from outside is costed and kept if it is best."""
    for seed in range(examples(40)):
        rng = np.random.default_rng([seed, 5])
        graph = tiny_graph(rng, 7)
        tables = cost_tables(graph, small_mcm(3))
        group = np.sort(rng.integers(0, 4, graph.num_ops)).astype(np.int32)
        problem = refinement_problem(graph, tables, group, forwarding="free")
        free = Refinement(problem)
        free.run(10_000)
        assert free.is_optimal
        assert free.placement is not None
        placement = free.placement[problem.unit_of_op]
        order = np.arange(graph.num_ops, dtype=np.int32)
        metrics = evaluate_batch(plenty_of_memory(tables), placement[None], order[None], group[None])
        assert metrics.interval_s[0] == pytest.approx(free.upper_s), seed
        again = Refinement(problem)
        again.consider(free.placement)
        assert again.upper_s == pytest.approx(free.upper_s)


@pytest.mark.parametrize("forwarding", FORWARDING_MODES)
def test_plans_keep_the_rules_and_the_answer_repeats(forwarding: ForwardingMode) -> None:
    target = small_mcm(6, link_bytes_per_s=1e9, sram_bytes=2**40)
    graph = random_graph(np.random.default_rng(3), 60)
    problem = refinement_problem(graph, cost_tables(graph, target), forwarding=forwarding)
    first, second = Refinement(problem), Refinement(problem)
    for _ in range(5):
        first.run(20)
    second.run(first.expansions)
    assert first.placement is not None
    assert second.placement is not None
    assert (first.lower_bound_s, first.upper_s) == (second.lower_bound_s, second.upper_s)
    assert (first.placement == second.placement).all()
    span = first.placement[graph.edge_dst] - first.placement[graph.edge_src]
    assert (span >= 0).all()
    assert forwarding != "adjacent" or (span <= 1).all()
    assert first.reason


@pytest.mark.parametrize("overlap", [True, False])
def test_against_an_integer_program(overlap: bool) -> None:
    """CP-SAT on a graph of 24 ops: it proves the same optimum."""
    graph = random_graph(np.random.default_rng(8), 24)
    tables = plenty_of_memory(cost_tables(graph, small_mcm(4, overlap=overlap, link_bytes_per_s=1e9)))
    refinement = Refinement(refinement_problem(graph, tables, forwarding="free"))
    refinement.run(100_000)
    assert refinement.is_optimal
    assert refinement.upper_s == pytest.approx(cp_sat_optimum_s(graph, tables), rel=1e-6)
