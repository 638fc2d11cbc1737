"""What the verifier says of replicated stages: each rule broken once, and plans that keep them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from go_opt.env import Target
from go_opt.model.graph import Graph
from go_opt.model.plan import Plan, Relay
from go_opt.solver import ChipLimit, Forbid, Pin
from go_opt.solver.verify.verifier import verify
from tests.solver.test_verify import ops, plan_of
from tests.strategies import chip_kind, small_mcm

CHAIN = ("abc", ["ab", "bc"])
TRIANGLE = ("abc", ["ab", "bc", "ac"])


def replicated(graph: Graph, target: Target, placement: list[int], sizes: list[int], **changes: Any) -> Plan:
    return plan_of(graph, target, placement, replication=np.array(sizes, dtype=np.int32), **changes)


def test_stages_behind_each_other_are_valid() -> None:
    graph, target = ops(*CHAIN), small_mcm(6)
    assert verify(graph, target, replicated(graph, target, [0, 1, 4], [1, 3, 2])) == []
    assert verify(graph, target, replicated(graph, target, [0, 0, 0], [6, 6, 6])) == []


@pytest.mark.parametrize(
    ("placement", "sizes", "rule", "message"),
    [
        (
            [0, 0, 0],
            [1, 2, 1],
            "replication",
            "op 'b' is replicated over chips 0 to 1, the stage of chip 0 too.",
        ),
        (
            [0, 1, 2],
            [1, 2, 1],
            "replication",
            "op 'c' is replicated over chips 2 to 2, the stage of chip 1 too.",
        ),
        ([0, 1, 5], [1, 4, 2], "replication", "op 'c' is replicated over chips 5 to 6; the last chip is 5."),
        ([0, 0, 3], [2, 2, 1], "no_skip", "chip 2 runs no op, but chip 3 does."),
    ],
)
def test_stages_that_are_not(placement: list[int], sizes: list[int], rule: str, message: str) -> None:
    graph, target = ops(*CHAIN), small_mcm(6)
    [violation] = verify(graph, target, replicated(graph, target, placement, sizes))
    assert (violation.constraint, violation.message) == (rule, message)


def test_only_alike_chips_are_replicated() -> None:
    graph = ops(*CHAIN)
    several = small_mcm(kinds=[chip_kind("one", 1), chip_kind("other", 1)])
    [violation] = verify(graph, several, replicated(graph, several, [0] * 3, [2] * 3))
    assert violation.message == "op 'a' is replicated over chips 0 to 1, which are of several kinds."


@pytest.mark.parametrize("topology", ["all_to_all", "mesh2d", "host_star"])
def test_stages_are_valid_on_any_topology(topology: str) -> None:
    graph, target = ops(*TRIANGLE), small_mcm(6, topology=topology, columns=3)
    assert verify(graph, target, replicated(graph, target, [0] * 3, [6] * 3)) == []
    # The second stage comes first, and chip 1 stays free.
    assert verify(graph, target, replicated(graph, target, [4, 2, 4], [2, 2, 2])) == []


def test_every_pair_of_replicas_that_meets_needs_a_route() -> None:
    graph = ops(*CHAIN)

    def broken(links: list[tuple[int, int, float, float]], sizes: list[int]) -> list[str]:
        target = small_mcm(4, topology="listed", links=links)
        plan = replicated(graph, target, [0, sizes[0], sizes[0]], [sizes[0], sizes[1], sizes[1]])
        return [violation.message for violation in verify(graph, target, plan)]

    def to(*pairs: tuple[int, int]) -> list[tuple[int, int, float, float]]:
        return [(a, b, 1e8, 0.0) for a, b in pairs]

    # Two and two meet in step, 0 with 2 and 1 with 3; one and three do at every pair.
    assert broken(to((0, 2), (1, 3)), [2, 2]) == []
    assert broken(to((0, 2), (0, 3)), [2, 2]) == [
        "the result of op 'a' has no route from chip 0 to op 'b' on chip 2: "
        "in turn it goes from chip 1 to chip 3."
    ]
    assert broken(to((0, 1), (0, 2), (0, 3)), [1, 3]) == []
    [message] = broken(to((0, 1), (0, 3)), [1, 3])
    assert message.endswith("in turn it goes from chip 0 to chip 2.")


def test_triangle_holds_over_all_pairs_of_chips() -> None:
    graph, target = ops(*TRIANGLE), small_mcm(6)
    plan = replicated(graph, target, [0, 2, 4], [2, 2, 2])
    [violation] = verify(graph, target, plan)
    assert violation.constraint == "triangle"
    assert "of op 'a' goes past another chip from chip 0 to op 'c' on chip 4" in violation.message
    relays = (Relay(graph.tensor_names[graph.op_outputs[1][0]], (2,)),)
    assert verify(graph, target, replicated(graph, target, [0, 2, 4], [2, 2, 2], relays=relays)) == []


def test_adjacent_stages_may_depend_on_each_other() -> None:
    chain, target = ops(*CHAIN), small_mcm(6, triangle="adjacent")
    assert verify(chain, target, replicated(chain, target, [0, 2, 3], [2, 1, 3])) == []
    graph = ops(*TRIANGLE)
    [violation] = verify(graph, target, replicated(graph, target, [0, 2, 3], [2, 1, 3]))
    assert violation.constraint == "triangle"


def test_relays_name_the_first_chip_of_a_stage() -> None:
    graph, target = ops(*TRIANGLE), small_mcm(6)
    relays = (Relay(graph.tensor_names[graph.op_outputs[1][0]], (3,)),)
    found = verify(graph, target, replicated(graph, target, [0, 2, 4], [2, 2, 2], relays=relays))
    assert [v.message for v in found] == ["a relay is on chip 3, where no stage starts."]


def test_constraints_hold_on_every_replica() -> None:
    graph, target = ops(*CHAIN), small_mcm(4)
    plan = replicated(graph, target, [0, 0, 2], [2, 2, 2])
    messages = [v.message for v in verify(graph, target, plan, [Pin("a", 0), Forbid("c", (3,))])]
    assert len(messages) == 2
    assert messages[0].endswith("op 'a' is on chip 1.")
    assert messages[1].endswith("op 'c' is on chip 3.")
    alone = replicated(graph, target, [0, 0, 1], [1, 1, 1])
    busy_s = 3e-6  # a and b: 1 us of overhead each, and bytes; half of it on each of two replicas
    for chips, is_over in ((alone, True), (plan, False)):
        found = verify(graph, target, chips, [ChipLimit(0, at_most_s=busy_s)])
        assert [v.constraint for v in found] == ["limit"] * is_over
