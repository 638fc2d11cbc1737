"""Kernels under constraints: none whose ops constraints force apart, and legal ones still."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings

from go_opt.env import greedy_fusion, loop_roles
from go_opt.env.kernels.fusion import is_one_loop
from go_opt.solver.constraints.plans import constrained_fusion
from go_opt.solver.problem.op_constraints import op_constraints
from go_opt.solver.problem.user_constraints import CutAfter, Forbid, Pin
from tests.strategies import examples, random_graph, seeds, small_mcm, toy_graph

ORDER = np.arange(6, dtype=np.int32)


def fused(*constraints) -> list[int]:
    graph = toy_graph()
    asked = op_constraints(graph, small_mcm(3), constraints)
    return constrained_fusion(asked, ORDER, greedy_fusion(loop_roles(graph), ORDER)).tolist()


def test_by_hand() -> None:
    assert fused() == [0, 1, 1, 2, 2, 3]  # dense and relu, mix and add
    assert fused(Pin("dense", 0), Pin("add", 2)) == [0, 1, 1, 2, 2, 3]
    assert fused(Pin("dense", 0), Pin("relu", 1)) == [0, 1, 2, 3, 3, 4]
    assert fused(Forbid("mix", [0, 1]), Forbid("add", [2])) == [0, 1, 1, 2, 3, 4]
    assert fused(CutAfter("dense")) == [0, 1, 2, 3, 3, 4]
    assert fused(CutAfter(["dense", "relu"])) == [0, 1, 1, 2, 2, 3]
    assert fused(CutAfter("relu")) == [0, 1, 1, 2, 2, 3]


@given(seed=seeds)
@settings(max_examples=examples(40))
def test_parts_are_legal_kernels_that_may_share_a_chip(seed: int) -> None:
    rng = np.random.default_rng(seed)
    graph, target = random_graph(rng, 20), small_mcm(4)
    constraints = [Pin(f"op{op}", int(rng.integers(4))) for op in rng.choice(20, 4, replace=False)]
    constraints += [CutAfter([f"op{op}" for op in rng.choice(20, 3, replace=False)])]
    asked = op_constraints(graph, target, constraints)
    order = np.arange(20, dtype=np.int32)
    whole = greedy_fusion(loop_roles(graph), order)
    split = constrained_fusion(asked, order, whole)
    for kernel in range(split.max() + 1):
        ops = order[split == kernel]
        assert (np.diff(ops) == 1).all()
        assert len(set(whole[ops])) == 1
        assert is_one_loop(loop_roles(graph), ops)
        assert len(ops) == 1 or asked.allowed[ops].all(axis=0).any()
        inside = np.isin(graph.edge_src, ops) & np.isin(graph.edge_dst, ops)
        assert not asked.rise[inside].any()
