"""The compiled full-rule check against the verifier, which shares no code with it."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings

import go_opt
from go_opt.model.builder import GraphBuilder
from go_opt.solver.problem.problem import placement_problem
from go_opt.solver.verify.rule_check import RULE_NAMES, broken_rules
from tests.strategies import chip_kind, examples, make_plan, random_graph, seeds, small_mcm

RULES = list(itertools.product(("prefix", "all", "off"), ("longest_path", "three_chip", "adjacent", "off")))


@pytest.mark.parametrize(("no_skip", "triangle"), RULES)
@settings(max_examples=examples(100))
@given(seed=seeds)
def test_agrees_with_the_verifier(no_skip: str, triangle: str, seed: int) -> None:
    rng = np.random.default_rng(seed)
    graph = random_graph(rng, int(rng.integers(1, 9)))
    target = small_mcm(int(rng.integers(1, 6)), no_skip=no_skip, triangle=triangle, sram_bytes=10**12)
    problem = placement_problem(graph, target)
    # Half of them follow the order, so that some obey: random chips nearly never do.
    free = rng.integers(0, target.num_chips, (4, graph.num_ops))
    placements = np.concatenate([free, np.sort(free, axis=1)]).astype(np.int32)
    for placement, broken in zip(placements, broken_rules(problem, placements), strict=True):
        found = {v.constraint for v in go_opt.verify(graph, target, make_plan(graph, target, placement))}
        assert (broken == 0) == (not found - {"memory"}), (found, RULE_NAMES[broken])
        assert broken == 0 or RULE_NAMES[broken] in found


def test_a_chain_over_seventy_chips_and_a_detour_in_the_second_word() -> None:
    graph = chain_with_a_skip(70)
    problem = placement_problem(graph, small_mcm(70))
    # One op a chip; the last op also reads op 66: 66 -> 69 goes past 67 and 68.
    along = np.arange(70, dtype=np.int32)
    # With ops 66 to 69 on two chips there is no way around.
    together = along.copy()
    together[66:] = (66, 66, 66, 67)
    assert [RULE_NAMES[b] for b in broken_rules(problem, np.stack([along, together]))] == ["triangle", "none"]


def test_excluded_kinds_and_chips_out_of_range() -> None:
    graph = chain_with_a_skip(3, excluded_kinds=["big"])
    target = small_mcm(kinds=[chip_kind("chip", 1), chip_kind("big", 1)])
    placements = np.array([[0, 0, 0], [0, 0, 1], [0, 0, 2], [-1, 0, 0]], dtype=np.int32)
    broken = broken_rules(placement_problem(graph, target), placements)
    assert [RULE_NAMES[b] for b in broken] == ["none", "kinds", "chips", "chips"]


def chain_with_a_skip(num_ops: int, excluded_kinds: list[str] | None = None) -> go_opt.Graph:
    """A chain whose last op also reads what the third before it wrote."""
    b = GraphBuilder("skip")
    b.add_tensor("t0", 1, "int8", "input")
    for i in range(num_ops):
        reads = {f"t{i}", f"t{max(0, i - 2)}"} if i == num_ops - 1 else {f"t{i}"}
        b.add_op(
            f"op{i}", "Add", "vector", flops=1, dtype="int8", reads=[(name, None) for name in sorted(reads)],
            writes=[(f"t{i + 1}", 1, "int8")], excluded_kinds=excluded_kinds or [],
        )  # fmt: skip
    return b.build()
