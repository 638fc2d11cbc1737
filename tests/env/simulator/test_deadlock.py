"""What the triangle rule is for: a direct dependency beside a detour stops a link for good."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from go_opt.env import Target, parse_target
from go_opt.env.simulator.simulate import simulate_plan
from go_opt.model.builder import GraphBuilder
from go_opt.model.graph import Graph
from go_opt.model.plan import Relay
from go_opt.solver.verify.verifier import verify
from tests.strategies import (
    chip_kind,
    make_plan,
    simulated_kind,
    simulated_package,
    small_mcm,
    target_toml,
)


def detour(length: int) -> Graph:
    """``source`` feeds ``end`` directly and through ``length`` ops in between."""
    b = GraphBuilder("detour")
    writes = [("skip", 10, "float32"), ("work", 10, "float32")]
    b.add_op("source", "Exp", "vector", flops=10, dtype="float32", reads=[], writes=writes)
    before = "work"
    for i in range(length):
        b.add_op(
            f"middle{i}",
            "Exp",
            "vector",
            flops=1000,
            dtype="float32",
            reads=[(before, None)],
            writes=[(f"t{i}", 10, "float32")],
        )
        before = f"t{i}"
    b.add_op(
        "end",
        "Add",
        "vector",
        flops=10,
        dtype="float32",
        reads=[("skip", None), (before, None)],
        writes=[("out", 10, "float32")],
    )
    return b.build()


def package(num_chips: int, triangle: str = "longest_path") -> Target:
    kinds = [chip_kind(count=num_chips, simulator=simulated_kind())]
    return parse_target(target_toml(kinds=kinds, simulator=simulated_package(), triangle=triangle), "by hand")


@pytest.mark.parametrize("length", [1, 2, 4])
def test_a_detour_deadlocks_and_a_relay_does_not(length: int) -> None:
    graph, target = detour(length), package(length + 2)
    plan = make_plan(graph, target, range(length + 2))
    assert [violation.constraint for violation in verify(graph, target, plan)] == ["triangle"]
    metrics = simulate_plan(graph, target, plan)
    assert not metrics.valid
    assert metrics.interval_s == float("inf")
    assert f"deadlock: link {length}->{length + 1} is stopped by tensor 'skip'" in metrics.reason

    relayed = replace(plan, relays=(Relay("skip", tuple(range(1, length + 1))),))
    assert verify(graph, target, relayed) == []
    metrics = simulate_plan(graph, target, relayed)
    assert metrics.valid, metrics.reason


def test_without_the_rule_every_dependency_has_credit() -> None:
    graph, target = detour(2), package(4, triangle="off")
    metrics = simulate_plan(graph, target, make_plan(graph, target, range(4)))
    assert metrics.valid, metrics.reason


@pytest.mark.parametrize(
    ("links", "chips"),
    [
        ({"topology": "listed", "links": [(0, 1, 1e8, 0.0)]}, (0, 1, 2)),
        ({"topology": "chain"}, (0, 2, 1)),  # which has no link back
    ],
)
def test_a_tensor_without_a_way_never_comes(links: dict[str, Any], chips: tuple[int, ...]) -> None:
    graph, target = detour(1), small_mcm(3, **links)
    metrics = simulate_plan(graph, target, make_plan(graph, target, chips))
    assert not metrics.valid
    assert metrics.reason == "deadlock: every chip waits for a tensor that never comes"


def test_unlimited_buffers_do_not_deadlock() -> None:
    graph, target = detour(2), package(4)
    metrics = simulate_plan(graph, target, make_plan(graph, target, range(4)), without=("buffers",))
    assert metrics.valid, metrics.reason
