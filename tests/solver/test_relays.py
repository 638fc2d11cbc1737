"""Relays that a placement needs: by hand, and on random placements the verifier agrees."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings

from go_opt.env import Target, cost_tables
from go_opt.env.target import Triangle
from go_opt.model.graph import Graph
from go_opt.model.plan import Plan, Relay
from go_opt.solver.copies.relays import needed_relays, relays_of_arrays
from go_opt.solver.verify.verifier import verify
from tests.solver.test_verify import ops, plan_of
from tests.strategies import examples, random_graph, random_plan, seeds, small_mcm

FORMS: tuple[Triangle, ...] = ("longest_path", "three_chip", "adjacent")


def relays(graph: Graph, target: Target, plan: Plan, rule: Triangle) -> tuple[Relay, ...]:
    needed = needed_relays(cost_tables(graph, target), np.array(plan.placement), rule)
    return relays_of_arrays(graph, *needed)


def relays_of(
    names: str, edges: list[str], placement: list[int], rule: Triangle
) -> dict[str, tuple[int, ...]]:
    graph, target = ops(names, edges), small_mcm(8)
    found = relays(graph, target, plan_of(graph, target, placement), rule)
    return {relay.tensor: relay.chips for relay in found}


def test_every_form_by_hand() -> None:
    detour = ("abc", ["ab", "bc", "ac"], [0, 1, 2])
    for rule in FORMS:
        assert relays_of(*detour, rule) == {"ta": (1,)}
    # No detour: b, on the chip that ta passes, has nothing to do with it.
    assert relays_of("abc", ["ac"], [0, 1, 2], "longest_path") == {}
    assert relays_of("abc", ["ac"], [0, 1, 2], "adjacent") == {"ta": (1,)}
    # The detour of three steps is one of two chips between, which the three-chip form allows.
    long = ("abcd", ["ab", "bc", "cd", "ad"], [0, 1, 2, 3])
    assert relays_of(*long, "longest_path") == {"ta": (1, 2)}
    assert relays_of(*long, "three_chip") == {}
    assert relays_of(*long, "off") == {}


def test_the_shortest_way_is_taken() -> None:
    # From chip 0 to 4 over 1, 2, or over 3: the latter is one relay.
    edges = ["ab", "bc", "ce", "ad", "de", "ae"]
    assert relays_of("abcde", edges, [0, 1, 2, 3, 4], "longest_path") == {"ta": (3,)}


def test_other_readers_get_new_dependencies() -> None:
    # ta goes to d over chip 1; then c on chip 2 takes it from there too, so 1 may not send tb
    # past 2, nor 0 to 2 … until all goes from chip to chip.
    edges = ["ab", "ac", "ad", "bd", "cd"]
    assert relays_of("abcd", edges, [0, 1, 2, 3], "longest_path") == {"ta": (1, 2), "tb": (2,)}


def test_arrays_of_relays() -> None:
    graph = ops("abc")
    k, chips = np.array([0, 0, 2], np.int32), np.array([1, 2, 1], np.int32)
    assert relays_of_arrays(graph, k, chips) == (Relay("ta", (1, 2)), Relay("tc", (1,)))


@pytest.mark.parametrize("rule", FORMS)
@settings(max_examples=examples(150))
@given(seed=seeds)
def test_what_is_needed_is_enough_and_no_more_than_adjacent(rule: Triangle, seed: int) -> None:
    rng = np.random.default_rng(seed)
    num_chips = 70 if rng.random() < 0.1 else int(rng.integers(2, 12))
    target = small_mcm(num_chips, triangle=rule, no_skip="off", sram_bytes=10**9)
    graph = random_graph(rng, int(rng.integers(2, 40)))
    plan = random_plan(rng, graph, target, monotone=True, fusion="legal")
    needed = relays(graph, target, plan, rule)
    assert verify(graph, target, replace(plan, relays=needed)) == []
    if verify(graph, target, plan) == []:
        assert needed == ()
    every = {relay.tensor: set(relay.chips) for relay in relays(graph, target, plan, "adjacent")}
    assert all(set(relay.chips) <= every[relay.tensor] for relay in needed)
