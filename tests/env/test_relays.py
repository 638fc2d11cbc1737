"""Relays: figures by hand, graphs and tables against each other, twins and simulator."""

from __future__ import annotations

from dataclasses import fields, replace

import numpy as np
import pytest
from hypothesis import given, settings

from go_opt.env import (
    Metrics,
    Target,
    cost_tables,
    evaluate_plan,
    greedy_fusion,
    load_target,
    load_zoo,
    loop_roles,
)
from go_opt.env.copies.relays import expand_plan, expanded_tables, plan_tables, relay_name, relays_of
from go_opt.env.simulator.simulate import simulate_plan
from go_opt.env.target.kinds import EFFECTS
from go_opt.errors import PlanError
from go_opt.model.graph import NO_PRODUCER, Graph
from go_opt.model.plan import Plan, Relay
from go_opt.solver import slice_order
from go_opt.solver.verify.verifier import verify
from tests.copies import no_relays, output_values, with_any_relays, with_legal_relays
from tests.env.numpy_twin import Twin
from tests.relay_twin import order_with_relays, reads_with_relays
from tests.strategies import (
    JIT_IS_ON,
    TOPOLOGIES,
    examples,
    kind_names,
    make_plan,
    random_graph,
    random_plan,
    random_simulated_target,
    random_target,
    seeds,
    small_mcm,
    toy_graph,
)

US = 1e-6
THREE_CHIPS = (0, 0, 1, 1, 2, 2)  # embed dense | relu mix | add logits: x passes chip 1


def in_us(seconds: object) -> object:
    return pytest.approx(np.array(seconds) * US, rel=1e-9, abs=1e-18)


def check_equal(ours: Metrics, theirs: Metrics) -> None:
    for field in fields(Metrics):
        a, b = getattr(ours, field.name), getattr(theirs, field.name)
        if isinstance(a, float | np.ndarray):
            np.testing.assert_allclose(a, b, rtol=1e-12, atol=0, err_msg=field.name)
        else:
            assert a == b, field.name


# --------------------------------------------------------------------------- by hand


def toy_plan(target: Target, *relays: Relay) -> Plan:
    return replace(make_plan(toy_graph(), target, THREE_CHIPS), relays=relays)


RELAY = Relay("x", (1,))


def test_a_relay_by_hand() -> None:
    target = small_mcm(3)
    metrics = evaluate_plan(toy_graph(), target, toy_plan(target, RELAY))
    # The copy of x on chip 1: 1000 bytes read, 1000 written, 1 us overhead. chip 0: 3.4 + 9,
    # chip 1: 6 + 5 + 3, chip 2: 6 + 14.
    assert metrics.compute_s == in_us([12.4, 14, 20])
    # x and h, x and s; ids in, out out: as without the relay.
    assert metrics.link_s == in_us([20, 20, 0, 2, 10])
    assert metrics.interval_s == in_us(20)
    # chip 0: ids, x, h cross its border. chip 1: x once though it enters and leaves, h, s, and
    # a of 1000 bytes. chip 2: x, s, out, and y of 1000 bytes.
    assert metrics.peak_bytes.tolist() == [4800, 7000, 9000]
    assert metrics.weight_bytes.tolist() == [12000, 2000, 10000]
    # embed 2 to 5.4, dense to 14.4; copy 16.4 to 19.4, h there at 25.4, relu to 31.4, mix to 36.4;
    # s there at 47.4 (x at 30.4), add to 53.4, logits to 67.4, out at 77.4.
    assert metrics.latency_s == in_us(77.4)
    # Links are resources: x takes link 0 until 15.4, so h is 1 us later.
    assert metrics.makespan_s == in_us(78.4)


def test_summed_interval_by_hand() -> None:
    target = small_mcm(3, overlap=False)
    metrics = evaluate_plan(toy_graph(), target, toy_plan(target, RELAY))
    # chip 1: 14 + 20 in + 20 out.
    assert metrics.interval_s == in_us(54)
    assert metrics.bottleneck == "chip 1 compute and transfers"


def test_relays_stand_behind_kernels() -> None:
    graph, target = toy_graph(), small_mcm(3)
    plan = make_plan(graph, target, (0, 0, 1, 1, 2, 2), fusion_group=(0, 1, 2, 3, 4, 5))
    expanded, expanded_plan = expand_plan(graph, target, replace(plan, relays=(RELAY,)))
    names = [expanded.op_names[op] for op in expanded_plan.order]
    assert names == ["embed", "x/relay 1", "dense", "relu", "mix", "add", "logits"]
    # dense and relu are one kernel, which a copy of what dense makes may not part.
    fused = make_plan(graph, target, (0, 0, 0, 1, 1, 2), fusion_group=(0, 1, 1, 2, 2, 3))
    expanded, expanded_plan = expand_plan(graph, target, replace(fused, relays=(Relay("h", (1,)),)))
    names = [expanded.op_names[op] for op in expanded_plan.order]
    assert names == ["embed", "dense", "relu", "h/relay 1", "mix", "add", "logits"]


def test_a_plan_without_relays_is_answered_as_it_is() -> None:
    graph, target = toy_graph(), small_mcm(3)
    plan = make_plan(graph, target, THREE_CHIPS)
    assert expand_plan(graph, target, plan) == (graph, plan)
    tables = cost_tables(graph, target)
    answered = expanded_tables(tables, plan.placement, plan.order, plan.fusion_group, no_relays())
    assert answered == (tables, plan.placement, plan.order, plan.fusion_group)


@pytest.mark.parametrize(
    ("relay", "message"),
    [
        (Relay("z", (1,)), "relays: the graph has no tensor 'z'"),
        (Relay("ids", (1,)), "relays: no op produces tensor 'ids'"),
    ],
)
def test_what_the_graph_does_not_have(relay: Relay, message: str) -> None:
    graph, target = toy_graph(), small_mcm(3)
    for expand in (expand_plan, evaluate_plan):
        with pytest.raises(PlanError, match=message):
            expand(graph, target, toy_plan(target, relay))


# --------------------------------------------------------------------------- random plans


@given(seed=seeds)
@settings(max_examples=examples(100))
def test_the_expanded_graph_is_that_of_the_twin(seed: int) -> None:
    rng = np.random.default_rng(seed)
    target = random_target(rng)
    graph = random_graph(rng, int(rng.integers(1, 25)), kinds=kind_names(target))
    plan = with_any_relays(rng, graph, target, random_plan(rng, graph, target))
    expanded, expanded_plan = expand_plan(graph, target, plan)
    reads = {
        (expanded.tensor_names[k], name, elements)
        for op, name in enumerate(expanded.op_names)
        for k, elements in expanded.reads_of(op)
    }
    assert reads == reads_with_relays(graph, plan)
    assert [expanded.op_names[op] for op in expanded_plan.order] == order_with_relays(graph, plan)
    ends = zip(expanded.edge_src.tolist(), expanded.edge_dst.tolist(), strict=True)
    assert all(source < reader for source, reader in ends)


@given(seed=seeds)
@settings(max_examples=examples(100))
def test_tables_are_those_of_the_expanded_graph(seed: int) -> None:
    rng = np.random.default_rng(seed)
    target = random_target(rng)
    graph = random_graph(rng, int(rng.integers(1, 25)), kinds=kind_names(target))
    plan = with_any_relays(rng, graph, target, random_plan(rng, graph, target))
    expanded, expanded_plan = expand_plan(graph, target, plan)
    theirs, ours = cost_tables(expanded, target), plan_tables(graph, target, plan)
    tables, placement, order, group, _ = ours
    op, tensor = names_by_number(graph, plan, expanded)
    np.testing.assert_array_equal(op[order], expanded_plan.order)
    np.testing.assert_array_equal(placement, expanded_plan.placement[op])
    starts = group[order][1:] != group[order][:-1]
    theirs_group = expanded_plan.fusion_group[expanded_plan.order]
    np.testing.assert_array_equal(starts, theirs_group[1:] != theirs_group[:-1])
    for name in ("op_s", "measured_s", "can_run"):
        np.testing.assert_array_equal(getattr(tables, name), getattr(theirs, name)[:, op])
    for name in ("tensor_bytes", "tensor_kind", "tensor_is_output"):
        np.testing.assert_array_equal(getattr(tables, name), getattr(theirs, name)[tensor])
    has_producer = tables.tensor_producer != NO_PRODUCER
    producer = np.where(has_producer, op[tables.tensor_producer], NO_PRODUCER)
    np.testing.assert_array_equal(producer, theirs.tensor_producer[tensor])
    np.testing.assert_array_equal(tensor[tables.weight_by_size], theirs.weight_by_size)
    reads = set(zip(tensor[tables.reader_tensor], op[tables.reader_op], tables.read_bytes, strict=True))
    assert reads == set(zip(theirs.reader_tensor, theirs.reader_op, theirs.read_bytes, strict=True))
    for pointers, rows in (
        (tables.reader_ptr, tables.reader_tensor),
        (tables.op_read_ptr, tables.reader_op[tables.op_read]),
    ):
        np.testing.assert_array_equal(np.repeat(np.arange(len(pointers) - 1), np.diff(pointers)), rows)


def names_by_number(graph: Graph, plan: Plan, expanded: Graph) -> tuple[np.ndarray, np.ndarray]:
    """Op and tensor of the expanded graph by their numbers in the tables."""
    pairs = zip(*relays_of(graph, plan), strict=True)
    copied = [relay_name(graph.tensor_names[k], chip) for k, chip in pairs]
    op_of, tensor_of = expanded.op_index, expanded.tensor_index
    ops, tensors = [*graph.op_names, *copied], [*graph.tensor_names, *copied]
    numbers = [op_of[name] for name in ops], [tensor_of[name] for name in tensors]
    return np.array(numbers[0], np.int32), np.array(numbers[1], np.int32)


@given(seed=seeds)
@settings(max_examples=examples(100))
def test_a_plan_costs_what_its_expanded_graph_costs(seed: int) -> None:
    rng = np.random.default_rng(seed)
    # On a chain there is no way back to a relay that stands before its tensor.
    target = random_target(rng, topology=str(rng.choice([t for t in TOPOLOGIES if t != "chain"])))
    graph = random_graph(rng, int(rng.integers(1, 25)), kinds=kind_names(target))
    plan = with_any_relays(rng, graph, target, random_plan(rng, graph, target))
    metrics = evaluate_plan(graph, target, plan)
    expanded, expanded_plan = expand_plan(graph, target, plan)
    check_equal(metrics, evaluate_plan(expanded, target, expanded_plan))
    terms = Twin(expanded, target, expanded_plan).evaluate()
    assert metrics.interval_s == pytest.approx(terms.interval_s, rel=1e-9)
    assert metrics.latency_s == pytest.approx(terms.latency_s, rel=1e-9)
    assert metrics.peak_bytes.tolist() == terms.peak_bytes
    assert metrics.stream_bytes.tolist() == terms.stream_bytes


@given(seed=seeds)
@settings(max_examples=examples(100))
def test_the_simulator_with_all_effects_off_agrees(seed: int) -> None:
    rng = np.random.default_rng(seed)
    rule = str(rng.choice(["longest_path", "three_chip", "adjacent"]))
    target = random_simulated_target(rng, topology=str(rng.choice(["ring", "chain"])), triangle=rule)
    graph = random_graph(rng, int(rng.integers(2, 25)))
    plan = with_legal_relays(graph, target, random_plan(rng, graph, target, monotone=True))
    plain = replace(target, analytical_effects=())
    ideal, metrics = simulate_plan(graph, target, plan, without=EFFECTS), evaluate_plan(graph, plain, plan)
    assert ideal.valid == metrics.valid
    np.testing.assert_array_equal(ideal.peak_bytes, metrics.peak_bytes)
    np.testing.assert_allclose(ideal.compute_s, metrics.compute_s, rtol=1e-12, atol=0)
    if metrics.valid:
        np.testing.assert_array_equal(ideal.weight_bytes, metrics.weight_bytes)
        np.testing.assert_allclose(ideal.link_s, metrics.link_s, rtol=1e-12, atol=0)
        np.testing.assert_allclose(ideal.interval_s, metrics.interval_s, rtol=1e-9, atol=0)


@given(seed=seeds)
@settings(max_examples=examples(100))
def test_the_links_carry_what_they_carried(seed: int) -> None:
    """Relays change neither links nor host, and hold what their tensor takes where it enters."""
    rng = np.random.default_rng(seed)
    target = random_target(rng, topology="ring", triangle="longest_path", sram_bytes=10**9)
    graph = random_graph(rng, int(rng.integers(1, 25)), kinds=kind_names(target))
    plan = random_plan(rng, graph, target, monotone=True)
    relayed = with_legal_relays(graph, target, plan)
    before, after = evaluate_plan(graph, target, plan), evaluate_plan(graph, target, relayed)
    np.testing.assert_allclose(after.link_s, before.link_s, rtol=1e-12)
    tables = cost_tables(graph, target)
    held = before.peak_bytes.copy()
    for k, chip in zip(*relays_of(graph, relayed), strict=True):
        readers = tables.reader_op[tables.reader_ptr[k] : tables.reader_ptr[k + 1]]
        held[chip] += 0 if chip in plan.placement[readers] else 2 * tables.tensor_bytes[k]
    np.testing.assert_array_equal(after.peak_bytes, held)


# --------------------------------------------------------------------------- the same function


@given(seed=seeds)
@settings(max_examples=examples(100))
def test_the_expanded_graph_computes_the_same(seed: int) -> None:
    rng = np.random.default_rng(seed)
    target = random_target(rng, topology="ring", triangle="longest_path")
    graph = random_graph(rng, int(rng.integers(1, 25)), kinds=kind_names(target))
    plan = random_plan(rng, graph, target, monotone=True)
    for relayed in (with_any_relays(rng, graph, target, plan), with_legal_relays(graph, target, plan)):
        expanded, _ = expand_plan(graph, target, relayed)
        assert output_values(expanded) == output_values(graph)


@pytest.mark.parametrize("name", ["deberta_v3_base", "inception_v1", "vit_b16"] if JIT_IS_ON else ["din"])
def test_real_graphs(name: str) -> None:
    graph, target = load_zoo(name), load_target("mcm-6x6")
    rng = np.random.default_rng(0)
    order = np.arange(graph.num_ops, dtype=np.int32)
    group = greedy_fusion(loop_roles(graph), order)
    slicing = slice_order(cost_tables(graph, target), order, group, forwarding="free")
    assert slicing is not None
    sliced = make_plan(graph, target, slicing.placement, fusion_group=group)
    legal = with_legal_relays(graph, target, sliced)
    assert [v for v in verify(graph, target, legal) if v.constraint != "memory"] == []
    for plan in (legal, with_any_relays(rng, graph, target, sliced)):
        expanded, expanded_plan = expand_plan(graph, target, plan)
        assert output_values(expanded) == output_values(graph)
        check_equal(evaluate_plan(graph, target, plan), evaluate_plan(expanded, target, expanded_plan))


def test_batches_take_expanded_tables() -> None:
    graph, target = toy_graph(), small_mcm(3)
    plan = toy_plan(target, RELAY)
    terms = plan_tables(graph, target, plan).evaluate()
    assert terms.interval_s[0] == evaluate_plan(graph, target, plan).interval_s
