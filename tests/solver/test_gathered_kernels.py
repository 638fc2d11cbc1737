"""Kernels that take in all that may join are legal, and branches side by side share them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from hypothesis import given, settings

from go_opt.env import cost_tables, evaluate_plan, loop_roles
from go_opt.solver import needed_relays, placement_problem, relays_of_arrays, sample, verify
from go_opt.solver.annealing.gathered_kernels import gathered_kernels
from tests.solver.branches import two_branches
from tests.strategies import examples, make_plan, random_graph, random_target, seeds


@settings(max_examples=examples(40))
@given(seed=seeds)
def test_plans_are_valid(seed: int) -> None:
    rng = np.random.default_rng(seed)
    graph = random_graph(rng, int(rng.integers(1, 40)), max_elements=int(rng.choice([4, 5000])))
    target = random_target(rng, topology="chain", num_kinds=1, triangle="adjacent")
    problem = placement_problem(graph, target)
    policy = np.zeros((problem.num_units, problem.num_chips))
    placement = sample(problem, policy, seed=seed, num_samples=1).placement[0].astype(np.int32)
    placement = placement[problem.unit_of_op]
    order, group = gathered_kernels(loop_roles(graph), np.arange(graph.num_ops, dtype=np.int32), placement)
    assert (np.diff(placement[order]) >= 0).all()
    relays = relays_of_arrays(graph, *needed_relays(cost_tables(graph, target), placement, "adjacent"))
    plan = replace(make_plan(graph, target, placement, order=order, fusion_group=group), relays=relays)
    assert {violation.constraint for violation in verify(graph, target, plan)} <= {"memory"}
    evaluate_plan(graph, target, plan)


def test_branches_side_by_side_share_kernels() -> None:
    """Two branches: Relu, Transpose, Relu, and a Softmax of one of them: both first Relus, then the rest."""
    b = two_branches()
    b.add_op(
        "softmax", "Softmax", "vector", flops=100, dtype="float32",
        reads=[("a.2", None)], writes=[("y", 500, "float32")],
    )  # fmt: skip
    for output in ("b.2", "y"):
        b.mark_output(output)
    graph = b.build()
    order, group = gathered_kernels(
        loop_roles(graph), np.arange(graph.num_ops, dtype=np.int32), np.zeros(graph.num_ops, np.int32)
    )
    kernels = [
        {graph.op_names[op] for op in order[group[order] == kernel]} for kernel in range(group.max() + 1)
    ]
    assert kernels == [{"a0", "b0"}, {"a1"}, {"b1"}, {"a2", "b2", "softmax"}]
    assert order[-1] == graph.op_names.index("softmax")
