"""The compiler's greedy heuristic: by hand on chains, valid everywhere else."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings

from go_opt.env import cost_tables, greedy_fusion, loop_roles
from go_opt.model.builder import GraphBuilder
from go_opt.model.graph import Graph
from go_opt.model.plan import Candidate
from go_opt.solver import greedy_slicing, slice_order
from go_opt.solver.verify.verifier import verify
from tests.solver.brute_force import segments_of
from tests.strategies import examples, random_graph, random_order, random_target, seeds, small_mcm, toy_graph


def chain(seconds: Sequence[float]) -> Graph:
    """Ops of measured seconds in a row; the tensors between them are empty."""
    b = GraphBuilder("chain")
    for i, measured in enumerate(seconds):
        reads = [(f"t{i - 1}", None)] if i else []
        b.add_op(
            f"op{i}", "Relu", "vector", flops=0, dtype="int8", reads=reads, writes=[(f"t{i}", 0, "int8")],
            measured_s={"chip": measured},
        )  # fmt: skip
    return b.build()


@pytest.mark.parametrize(
    ("seconds", "num_chips", "cuts"),
    [
        ([3, 1, 4, 2, 2], 3, [0, 2, 3, 5]),  # shares end at 4 and 8: both meet a cut
        ([2, 3, 2, 3], 2, [0, 2, 4]),  # the share ends at 5
        ([1, 9, 1, 1], 3, [0, 1, 4]),  # the share of chip 1 ends inside the kernel of 9
        ([9, 1, 1, 1], 3, [0, 4]),  # both shares end inside it: nothing is left to cut
        ([1, 1], 4, [0, 1, 2]),  # shares end at 0.5, 1 and 1.5
        ([5], 3, [0, 1]),
    ],
)
def test_chain_by_hand(seconds: list[float], num_chips: int, cuts: list[int]) -> None:
    graph, target = chain(seconds), small_mcm(num_chips)
    order = np.arange(graph.num_ops, dtype=np.int32)
    slicing = greedy_slicing(cost_tables(graph, target), order, order, adjacent=True)
    assert list(segments_of(slicing)[0]) == cuts
    longest = max(sum(seconds[a:b]) for a, b in itertools.pairwise(cuts))
    assert slicing.expected_s == pytest.approx(longest)


def test_a_residual_moves_the_cut() -> None:
    # Shares of 43.4 us end at 14.5 and 28.9 us, behind dense (12.4) and mix (23.4). But x,
    # which enters chip 1, is read by add: chip 1 keeps it, and ends behind it.
    graph, target = toy_graph(), small_mcm(3)
    order = np.arange(6, dtype=np.int32)
    tables = cost_tables(graph, target)
    assert list(segments_of(greedy_slicing(tables, order, order, adjacent=True))[0]) == [0, 2, 5, 6]
    assert list(segments_of(greedy_slicing(tables, order, order, adjacent=False))[0]) == [0, 2, 4, 6]


@settings(max_examples=examples(200))
@given(seed=seeds)
def test_greedy_is_valid_and_no_better_than_slicing(seed: int) -> None:
    rng = np.random.default_rng(seed)
    target = random_target(rng, topology="ring", num_kinds=1, sram_bytes=10**9)
    graph = random_graph(rng, int(rng.integers(1, 40)))
    tables, order = cost_tables(graph, target), random_order(rng, graph)
    group = greedy_fusion(loop_roles(graph), order)
    greedy = greedy_slicing(tables, order, group, adjacent=True)
    best = slice_order(tables, order, group, forwarding="adjacent")
    assert best is not None
    assert best.expected_s <= greedy.expected_s * (1 + 1e-9)
    plan = Candidate("greedy", greedy.placement, order, group).plan(graph, target)
    assert verify(graph, target, plan) == []
