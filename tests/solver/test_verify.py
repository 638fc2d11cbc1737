"""The verifier: plans that break one rule each, and brute force for triangle and memory."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings

from go_opt.env import Target, cost_tables, evaluate_batch
from go_opt.env.peak_memory import op_activation_bytes
from go_opt.errors import PlanError
from go_opt.model.builder import GraphBuilder
from go_opt.model.graph import Graph
from go_opt.model.plan import Candidate, Plan
from go_opt.solver.verify.memory import memory_bytes
from go_opt.solver.verify.verifier import verify
from tests.replicated import replicated_plan
from tests.strategies import (
    chip_kind,
    examples,
    kind_names,
    random_graph,
    random_plan,
    random_target,
    seeds,
    small_mcm,
    toy_graph,
)


def ops(names: str, edges: Sequence[str] = (), **changes: Any) -> Graph:
    """Element-wise ops of one letter each and edges ("ab"); each op writes 100 int8 elements."""
    b = GraphBuilder("letters")
    for name in names:
        b.add_op(
            name,
            "Add",
            "vector",
            flops=100,
            dtype="int8",
            reads=[(f"t{source}", None) for source, reader in edges if reader == name],
            writes=[(f"t{name}", 100, "int8")],
            **changes.get(name, {}),
        )
    return b.build()


def plan_of(
    graph: Graph,
    target: Target,
    placement: Sequence[int],
    *,
    order: Sequence[int] | None = None,
    group: Sequence[int] | None = None,
    **changes: Any,
) -> Plan:
    """A plan in the default order with one kernel per op, but for what is given."""
    default = np.arange(graph.num_ops)
    order = default if order is None else np.array(order)
    plan = Candidate("test", np.array(placement), order, default if group is None else np.array(group)).plan(
        graph, target
    )
    return dataclasses.replace(plan, **changes)


def only_violation(graph: Graph, target: Target, plan: Plan) -> tuple[str, str]:
    [violation] = verify(graph, target, plan)
    return violation.constraint, violation.message


CHAIN = ("abc", ["ab", "bc"])


def test_a_valid_plan() -> None:
    graph, target = ops(*CHAIN), small_mcm(3)
    assert verify(graph, target, plan_of(graph, target, [0, 1, 2])) == []
    assert verify(graph, target, plan_of(graph, target, [0, 0, 1], group=[0, 0, 1])) == []


def test_order() -> None:
    graph, target = ops(*CHAIN), small_mcm(1)
    rule, message = only_violation(graph, target, plan_of(graph, target, [0, 0, 0], order=[0, 2, 1]))
    assert rule == "order"
    assert "op 'c' stands before op 'b'" in message


@pytest.mark.parametrize("order", [[0, 1, 1], [0, 1], [0, 1, 3]])
def test_an_order_is_a_permutation(order: list[int]) -> None:
    graph, target = ops(*CHAIN), small_mcm(1)
    plan = plan_of(graph, target, [0, 0, 0], order=[0, 1, 2])
    plan = dataclasses.replace(plan, order=np.array(order, dtype=np.int32))
    rule, message = only_violation(graph, target, plan)
    assert rule == "shape"
    assert "order" in message


def test_a_kernel_is_one_stretch_of_the_order() -> None:
    graph, target = ops(*CHAIN), small_mcm(1)
    rule, message = only_violation(graph, target, plan_of(graph, target, [0, 0, 0], group=[0, 1, 0]))
    assert rule == "fusion"
    assert "op 'c' is not one stretch" in message


def test_a_kernel_lies_on_one_chip() -> None:
    graph, target = ops(*CHAIN), small_mcm(2)
    rule, message = only_violation(graph, target, plan_of(graph, target, [0, 0, 1], group=[0, 1, 1]))
    assert rule == "fusion"
    assert "op 'b' lies on several chips" in message


def test_a_kernel_is_one_loop_nest() -> None:
    # relu and mix are one loop; dense makes it two matrix ops.
    graph, target = toy_graph(), small_mcm(1)
    assert verify(graph, target, plan_of(graph, target, [0] * 6, group=[0, 1, 2, 2, 4, 5])) == []
    plan = plan_of(graph, target, [0] * 6, group=[0, 1, 1, 1, 4, 5])
    rule, message = only_violation(graph, target, plan)
    assert rule == "fusion"
    assert "op 'dense' is not one loop nest" in message


@pytest.mark.parametrize("chip", [-1, 2])
def test_chips_exist(chip: int) -> None:
    graph, target = ops(*CHAIN), small_mcm(2)
    rule, message = only_violation(graph, target, plan_of(graph, target, [0, 0, chip]))
    assert rule == "shape"
    assert f"op 'c' is on chip {chip}; chips are 0 to 1" in message


def test_arrays_are_as_long_as_the_graph() -> None:
    graph, target = ops(*CHAIN), small_mcm(2)
    plan = plan_of(graph, target, [0, 0, 0], replication=np.ones(2, dtype=np.int32))
    assert only_violation(graph, target, plan) == (
        "shape",
        "replication has 2 entries, the graph 3 ops.",
    )


def test_excluded_kinds() -> None:
    graph = ops(*CHAIN, b={"excluded_kinds": ["slow"]})
    target = small_mcm(kinds=[chip_kind("fast"), chip_kind("slow")])
    assert verify(graph, target, plan_of(graph, target, [0, 0, 1])) == []
    rule, message = only_violation(graph, target, plan_of(graph, target, [0, 1, 1]))
    assert rule == "kinds"
    assert "op 'b' is on chip 1 of kind 'slow'" in message


def test_acyclic() -> None:
    graph, target = ops(*CHAIN), small_mcm(2)
    rule, message = only_violation(graph, target, plan_of(graph, target, [1, 1, 0]))
    assert rule == "acyclic"
    assert "of op 'b' flows back from chip 1 to op 'c' on chip 0" in message


def test_acyclic_in_whatever_order_of_the_chips() -> None:
    graph, target = ops(*CHAIN), small_mcm(3, topology="host_star", acyclic=True)
    assert verify(graph, target, plan_of(graph, target, [2, 0, 1])) == []
    rule, message = only_violation(graph, target, plan_of(graph, target, [1, 0, 1]))
    assert rule == "acyclic"
    assert message == "results go around in a circle of chips: 'chip 0' -> 'chip 1' -> 'chip 0'."


def test_route() -> None:
    graph = ops(*CHAIN)
    target = small_mcm(2, topology="chain", acyclic=False, triangle="off")
    rule, message = only_violation(graph, target, plan_of(graph, target, [1, 1, 0]))
    assert rule == "route"
    assert "of op 'b' has no route from chip 1 to op 'c' on chip 0" in message


def test_no_skip_prefix() -> None:
    graph, target = ops(*CHAIN), small_mcm(4)
    rule, message = only_violation(graph, target, plan_of(graph, target, [0, 0, 2]))
    assert rule == "no_skip"
    assert message == "chip 1 runs no op, but chip 2 does."


def test_no_skip_all() -> None:
    graph, target = ops(*CHAIN), small_mcm(3, no_skip="all")
    rule, message = only_violation(graph, target, plan_of(graph, target, [0, 0, 1]))
    assert rule == "no_skip"
    assert "chip 2 runs no op" in message
    assert verify(graph, target, plan_of(graph, target, [0, 1, 2])) == []


# Ops a, b, c … on chips 0, 1, 2 …: chip dependencies are the edges.
@pytest.mark.parametrize(
    ("edges", "forbidden_by"),
    [
        (["ab", "bc", "cd"], []),
        # a -> c beside no other way: spans two chips, no detour.
        (["ab", "ac", "bd", "cd"], ["adjacent"]),
        # a -> d beside a -> b -> c -> d: a detour, but through two chips at once.
        (["ab", "bc", "cd", "ad"], ["adjacent", "longest_path"]),
        # a -> c beside a -> b -> c.
        (["ab", "bc", "ac", "cd"], ["adjacent", "longest_path", "three_chip"]),
    ],
)
@pytest.mark.parametrize("rule", ["adjacent", "longest_path", "three_chip", "off"])
def test_triangle(rule: str, edges: list[str], forbidden_by: list[str]) -> None:
    graph, target = ops("abcd", edges), small_mcm(4, triangle=rule)
    found = verify(graph, target, plan_of(graph, target, [0, 1, 2, 3]))
    assert [violation.constraint for violation in found] == ["triangle"] * (rule in forbidden_by)
    if found:
        assert "of op 'a' goes past another chip from chip 0" in found[0].message


def test_memory() -> None:
    # c reads 100 bytes from chip 0, held twice, and writes nothing that is read: 200 bytes.
    # b holds ta while it writes tb, which leaves: 100 + 200 bytes.
    graph, target = ops(*CHAIN), small_mcm(2, sram_bytes=299)
    plan = plan_of(graph, target, [0, 0, 1])
    assert list(memory_bytes(graph, target, plan)[0]) == [300, 200]
    rule, message = only_violation(graph, target, plan)
    assert rule == "memory"
    assert message == "chip 0 needs 300 bytes for activations and has 299."
    roomy = small_mcm(2, sram_bytes=300)
    assert verify(graph, roomy, plan_of(graph, roomy, [0, 0, 1])) == []


def test_forwarding() -> None:
    graph, target = ops(*CHAIN), small_mcm(4)
    plan = replicated_plan(graph, target, np.array([0, 1, 1]), np.array([1, 3]))
    assert verify(graph, target, replace(plan, forwards=(1,))) == []
    rule, message = only_violation(graph, target, replace(plan, forwards=(0,)))
    assert rule == "forwarding"
    assert message == "weights are forwarded from chip 0, where no replicated stage starts."
    in_turn = small_mcm(4, overlap=False)
    plan = replicated_plan(graph, in_turn, np.array([0, 1, 1]), np.array([1, 3]))
    rule, message = only_violation(graph, in_turn, replace(plan, forwards=(1,)))
    assert rule == "forwarding"
    assert message.startswith("weights are forwarded from chip 1; that takes a one-directional ring or chain")


def test_plans_of_another_graph_or_target_are_refused() -> None:
    graph, target = ops(*CHAIN), small_mcm(2)
    plan = plan_of(graph, target, [0, 0, 0])
    with pytest.raises(PlanError, match="another graph"):
        verify(ops("abc"), target, plan)
    with pytest.raises(PlanError, match="another target"):
        verify(graph, small_mcm(3), plan)


@settings(max_examples=examples(300))
@given(seed=seeds)
def test_triangle_against_all_paths(seed: int) -> None:
    rng = np.random.default_rng(seed)
    num_chips = int(rng.integers(1, 8))
    pairs = [(a, b) for b in range(num_chips) for a in range(b) if rng.random() < 0.5]
    letters = "abcdefg"[:num_chips]
    graph = ops(letters, [letters[a] + letters[b] for a, b in pairs])
    longest = {pair: max(map(len, paths(pairs, *pair))) for pair in pairs}
    forbidden = {
        "longest_path": {pair for pair in pairs if longest[pair] > 1},
        "three_chip": {pair for pair in pairs if any(len(path) == 2 for path in paths(pairs, *pair))},
        "adjacent": {(a, b) for a, b in pairs if b - a > 1},
    }
    for rule, wrong in forbidden.items():
        target = small_mcm(num_chips, triangle=rule)
        found = verify(graph, target, plan_of(graph, target, range(num_chips)))
        assert [violation.constraint for violation in found] == ["triangle"] * bool(wrong)
        messages = {
            f"the result of op {letters[a]!r} goes past another chip from chip {a} "
            f"to op {letters[b]!r} on chip {b}."
            for a, b in wrong
        }
        assert {violation.message for violation in found} <= messages


def paths(pairs: list[tuple[int, int]], start: int, end: int) -> list[list[tuple[int, int]]]:
    """All paths from ``start`` to ``end``, as lists of dependencies."""
    if start == end:
        return [[]]
    return [[pair, *rest] for pair in pairs if pair[0] == start for rest in paths(pairs, pair[1], end)]


@settings(max_examples=examples(300))
@given(seed=seeds)
def test_memory_is_the_environments(seed: int) -> None:
    rng = np.random.default_rng(seed)
    target = random_target(rng, no_skip="off", triangle="off", acyclic=False)
    graph = random_graph(rng, int(rng.integers(1, 40)), kinds=kind_names(target))
    plan = random_plan(rng, graph, target, fusion="legal")
    terms = evaluate_batch(
        cost_tables(graph, target), plan.placement[None], plan.order[None], plan.fusion_group[None]
    )
    np.testing.assert_array_equal(memory_bytes(graph, target, plan)[0], terms.peak_bytes[0])
    found = verify(graph, target, plan)
    assert [violation.constraint for violation in found] == ["memory"] * (not terms.fits[0])


@settings(max_examples=examples(100))
@given(seed=seeds)
def test_an_op_alone_never_needs_less_than_its_demand(seed: int) -> None:
    rng = np.random.default_rng(seed)
    target = random_target(rng)
    graph = random_graph(rng, int(rng.integers(1, 20)), kinds=kind_names(target))
    plan = random_plan(rng, graph, target, fusion="none")
    peak = memory_bytes(graph, target, plan)[0]
    assert (op_activation_bytes(graph, target) <= peak[plan.placement]).all()
