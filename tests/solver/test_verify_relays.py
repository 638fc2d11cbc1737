"""The verifier on relays: what each broken one is refused for, and that legal ones pass."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings

from go_opt.env import evaluate_plan
from go_opt.env.copies.relays import expand_plan
from go_opt.model.builder import GraphBuilder
from go_opt.model.graph import Graph
from go_opt.model.plan import Relay
from go_opt.solver.verify.memory import memory_bytes
from go_opt.solver.verify.verifier import verify
from tests.copies import with_legal_relays
from tests.solver.test_verify import ops, plan_of
from tests.strategies import (
    examples,
    kind_names,
    random_graph,
    random_plan,
    random_target,
    seeds,
    small_mcm,
)

SKIP = ("abc", ["ab", "bc", "ac"])  # one op a chip: ta passes chip 1
ONE_EACH = (0, 1, 2)


def violations(
    graph: Graph, *, triangle: str = "longest_path", relays: tuple[Relay, ...] = ()
) -> list[tuple[str, str]]:
    target = small_mcm(3, triangle=triangle)
    found = verify(graph, target, plan_of(graph, target, ONE_EACH, relays=relays))
    return [(violation.constraint, violation.message) for violation in found]


def test_the_rule_holds_by_a_relay() -> None:
    graph = ops(*SKIP)
    for rule in ("longest_path", "three_chip", "adjacent"):
        assert [name for name, _ in violations(graph, triangle=rule)] == ["triangle"]
        assert violations(graph, triangle=rule, relays=(Relay("ta", (1,)),)) == []


@pytest.mark.parametrize(
    ("relays", "message"),
    [
        ([Relay("tz", (1,))], "a relay is of tensor 'tz', which the graph does not have."),
        ([Relay("in", (1,))], "a relay is of tensor 'in', which no op produces."),
        ([Relay("ta", (1, 3))], "tensor 'ta' has a relay on chip 3; chips are 0 to 2."),
        ([Relay("ta", (-1,))], "tensor 'ta' has a relay on chip -1; chips are 0 to 2."),
    ],
)
def test_relays_of_what_there_is_not(relays: list[Relay], message: str) -> None:
    b = GraphBuilder("input")
    b.add_tensor("in", 10, "int8", "input")
    for name, reads in (("a", ["in"]), ("b", ["ta"]), ("c", ["ta", "tb"])):
        writes = [(f"t{name}", 100, "int8")]
        b.add_op(
            name, "Add", "vector", flops=1, dtype="int8", reads=[(r, None) for r in reads], writes=writes
        )
    assert violations(b.build(), relays=tuple(relays)) == [("shape", message)]


@pytest.mark.parametrize(
    ("relays", "message"),
    [
        ([(1, 0)], "the relay of tensor 'ta' on chip 0 is not between chip 0, which makes it, and chip 2"),
        ([(1, 2)], "the relay of tensor 'ta' on chip 2 is not between chip 0, which makes it, and chip 2"),
        ([(1, 1)], "tensor 'ta' has two relays on chip 1."),
        ([(1,), (1,)], "tensor 'ta' has two relays on chip 1."),
    ],
)
def test_where_relays_may_be(relays: list[tuple[int, ...]], message: str) -> None:
    [(rule, found)] = violations(ops(*SKIP), relays=tuple(Relay("ta", chips) for chips in relays))
    assert rule == "relays"
    assert found.startswith(message)


def test_a_target_without_the_rule_has_no_relays() -> None:
    [(rule, message)] = violations(ops(*SKIP), triangle="off", relays=(Relay("ta", (1,)),))
    assert (rule, message) == ("relays", "tensor 'ta' has a relay, but the target has no triangle rule.")


def test_relays_bring_dependencies_of_their_own() -> None:
    graph, target = ops("abcd", ["ab", "ac", "ad", "bd", "cd"]), small_mcm(4)
    plan = plan_of(graph, target, (0, 1, 2, 3), relays=(Relay("ta", (1,)),))
    # c, too, takes ta from chip 1 now, which therefore may not send tb past chip 2.
    [violation] = verify(graph, target, plan)
    assert violation.constraint == "triangle"
    assert "goes past another chip from chip 1 to op 'd' on chip 3" in violation.message
    relays = (Relay("ta", (1, 2)), Relay("tb", (2,)))
    assert verify(graph, target, plan_of(graph, target, (0, 1, 2, 3), relays=relays)) == []


def test_what_a_relay_holds() -> None:
    # chip 1 holds ta, which it reads and sends on, twice, and so tb; chips 0 and 2 hold less.
    graph = ops(*SKIP)
    for limit, wrong in ((400, []), (399, ["memory"])):
        target = small_mcm(3, sram_bytes=limit)
        plan = plan_of(graph, target, ONE_EACH, relays=(Relay("ta", (1,)),))
        found = verify(graph, target, plan)
        assert [violation.constraint for violation in found] == wrong
        assert all("chip 1 needs 400 bytes for activations" in v.message for v in found)


@settings(max_examples=examples(200))
@given(seed=seeds)
def test_legal_relays_pass_and_take_the_memory_they_are_charged(seed: int) -> None:
    rng = np.random.default_rng(seed)
    rule = str(rng.choice(["longest_path", "three_chip", "adjacent"]))
    target = random_target(rng, topology=str(rng.choice(["ring", "chain"])), no_skip="off", triangle=rule)
    graph = random_graph(rng, int(rng.integers(1, 30)), kinds=kind_names(target))
    plan = random_plan(rng, graph, target, monotone=True, fusion="legal")
    plan = with_legal_relays(graph, target, plan)
    metrics = evaluate_plan(graph, target, plan)
    expanded, expanded_plan = expand_plan(graph, target, plan)
    np.testing.assert_array_equal(memory_bytes(expanded, target, expanded_plan)[0], metrics.peak_bytes)
    found = verify(graph, target, plan)
    assert [violation.constraint for violation in found] == ["memory"] * (not metrics.valid)
