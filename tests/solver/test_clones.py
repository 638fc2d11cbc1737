"""Clones for a placement: by hand, never worse than relays alone, and verified."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings

from go_opt.env import Target, cost_tables, evaluate_plan, greedy_fusion, load_target, load_zoo, loop_roles
from go_opt.env.copies.clonable import clonable_ops
from go_opt.model.builder import GraphBuilder
from go_opt.model.graph import Graph
from go_opt.model.plan import Clone, Plan
from go_opt.solver import slice_order, verify
from go_opt.solver.copies.clones import Cloned, improve_with_clones
from go_opt.solver.copies.relays import clones_of_arrays, needed_relays, relays_of_arrays
from tests.strategies import (
    JIT_IS_ON,
    examples,
    kind_names,
    make_plan,
    random_graph,
    random_plan,
    random_target,
    seeds,
    small_mcm,
)

US = 1e-6


def improve(graph: Graph, target: Target, plan: Plan, **limits: int) -> Cloned:
    return improve_with_clones(
        cost_tables(graph, target),
        clonable_ops(graph),
        target.constraints.triangle,
        np.array(plan.placement),
        np.array(plan.order),
        np.array(plan.fusion_group),
        **limits,
    )


def with_copies(graph: Graph, plan: Plan, cloned: Cloned) -> Plan:
    relay_tensor, relay_chip, clone_op, clone_chip = cloned.copies
    return replace(
        plan,
        relays=relays_of_arrays(graph, relay_tensor, relay_chip),
        clones=clones_of_arrays(graph, clone_op, clone_chip),
    )


def masked() -> Graph:
    """Three layers, one a chip, that add a mask broadcast from a small cast of an input.

    cast reads 100 bytes and writes 100; expand reads these and writes the mask of 5000 bytes;
    each layer is 5 us of compute on 1000 bytes.
    """
    b = GraphBuilder("masked")
    for name in ("ids", "x0"):
        b.add_tensor(name, 100 if name == "ids" else 1000, "int8", "input")

    def add(name: str, op_class: str, flops: int, reads: list[str], elements: int) -> None:
        reading = [(read, None) for read in reads]
        b.add_op(
            name,
            name[:3],
            op_class,
            flops=flops,
            dtype="int8",
            reads=reading,
            writes=[(f"t {name}", elements, "int8")],
        )

    add("cast", "data_movement", 0, ["ids"], 100)
    add("expand", "data_movement", 0, ["t cast"], 5000)
    before = "x0"
    for layer in "abc":
        add(f"layer {layer}", "matrix", 20000, [before, "t expand"], 1000)
        before = f"t layer {layer}"
    b.mark_output(before)
    return b.build()


def test_a_mask_by_hand() -> None:
    graph, target = masked(), small_mcm(3)
    plan = make_plan(graph, target, (0, 0, 0, 1, 2))
    # The mask: 5000 bytes = 50 us on links 0 and 1, and a layer's 1000 = 10 us.
    relayed = improve(graph, target, plan, max_evaluations=1)
    assert relayed.interval_s == pytest.approx(60 * US)
    assert relayed.evaluations == 1
    cloned = improve(graph, target, plan)
    # Expand on chips 1 and 2, cast too or its 100 bytes sent: 10 or 11 us on links, 5.1 + 1 us on
    # chips, with a cast of 0.2 + 1. Layers: 10 us and 8 us of bytes, 11 us; chip 0 has 11 + 1.2 + 6.1.
    assert cloned.interval_s == pytest.approx(18.3 * US)
    assert {Clone("expand", 1), Clone("expand", 2)} <= set(clones_of_arrays(graph, *cloned.copies[2:]))
    assert verify(graph, target, with_copies(graph, plan, cloned)) == []


def test_targets_without_the_rule_get_none() -> None:
    graph, target = masked(), small_mcm(3, triangle="off")
    cloned = improve(graph, target, make_plan(graph, target, (0, 0, 0, 1, 2)))
    assert [len(column) for column in cloned.copies] == [0, 0, 0, 0]
    assert cloned.evaluations == 1


@settings(max_examples=examples(100))
@given(seed=seeds)
def test_clones_are_legal_and_never_worse(seed: int) -> None:
    rng = np.random.default_rng(seed)
    rule = str(rng.choice(["longest_path", "three_chip", "adjacent"]))
    target = random_target(rng, topology=str(rng.choice(["ring", "chain"])), no_skip="off", triangle=rule)
    graph = random_graph(rng, int(rng.integers(2, 30)), kinds=kind_names(target))
    plan = random_plan(rng, graph, target, monotone=True, fusion="legal")
    limit = int(rng.integers(1, 20))
    cloned = improve(graph, target, plan, max_evaluations=limit)
    assert cloned.evaluations <= limit
    again = improve(graph, target, plan, max_evaluations=limit)
    assert all(np.array_equal(a, b) for a, b in zip(cloned.copies, again.copies, strict=True))
    best = with_copies(graph, plan, cloned)
    metrics = evaluate_plan(graph, target, best)
    assert metrics.interval_s == pytest.approx(cloned.interval_s, rel=1e-12)
    needed = needed_relays(cost_tables(graph, target), np.array(plan.placement), target.constraints.triangle)
    relayed = evaluate_plan(graph, target, replace(plan, relays=relays_of_arrays(graph, *needed)))
    assert metrics.valid >= relayed.valid
    if metrics.valid == relayed.valid:
        assert metrics.interval_s <= relayed.interval_s
    found = verify(graph, target, best)
    assert [violation.constraint for violation in found] == ["memory"] * (not metrics.valid)


@pytest.mark.parametrize("overlap", [True, False])
@pytest.mark.skipif(not JIT_IS_ON, reason="takes minutes interpreted")
def test_an_attention_mask(overlap: bool) -> None:
    graph, target = load_zoo("deberta_v3_base"), replace(load_target("mcm-6x6"), overlap=overlap)
    order = np.arange(graph.num_ops, dtype=np.int32)
    group = greedy_fusion(loop_roles(graph), order)
    slicing = slice_order(cost_tables(graph, target), order, group, passing="free")
    assert slicing is not None
    plan = make_plan(graph, target, slicing.placement, fusion_group=group)
    relayed, cloned = improve(graph, target, plan, max_evaluations=1), improve(graph, target, plan)
    assert cloned.interval_s < relayed.interval_s
    assert len(cloned.copies.relay_chip) < len(relayed.copies.relay_chip)
    assert verify(graph, target, with_copies(graph, plan, cloned)) == []
