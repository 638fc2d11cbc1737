"""Replicated stages: figures worked by hand, then the mean over inferences that take turns."""

from __future__ import annotations

from dataclasses import replace
from math import lcm

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from go_opt.env import Target, cost_tables, evaluate_batch, evaluate_plan, greedy_fusion, loop_roles
from go_opt.env.copies.relays import expand_plan, plan_tables
from go_opt.env.copies.stages import stage_tables, stages_of
from go_opt.model.graph import Graph, with_sequences
from go_opt.model.plan import Plan
from tests.copies import with_legal_relays
from tests.env.numpy_twin import Twin
from tests.replicated import anywhere, random_forwards, random_stages, replicated_plan
from tests.strategies import (
    examples,
    kind_names,
    random_graph,
    random_order,
    random_plan,
    random_target,
    seeds,
    small_mcm,
    toy_graph,
    with_random_states,
)

US = 1e-6


def in_us(seconds: object) -> object:
    return pytest.approx(np.array(seconds) * US, rel=1e-9, abs=1e-18)


def toy(sizes: list[int], stage_of_op: list[int], num_chips: int = 6, **changes: object) -> tuple:
    graph, target = toy_graph(), small_mcm(num_chips, **changes)
    plan = replicated_plan(graph, target, np.array(stage_of_op), np.array(sizes))
    return graph, target, plan


def test_two_chips_replicate_everything() -> None:
    graph, target, plan = toy([2], [0] * 6)
    metrics = evaluate_plan(graph, target, plan)
    alone = evaluate_plan(graph, target, toy([1], [0] * 6)[2])
    assert metrics.compute_s == in_us([21.7, 21.7, 0, 0, 0, 0])
    assert metrics.link_s == in_us([0, 0, 0, 0, 0, 0, 2, 10])  # the host's links as ever
    assert metrics.interval_s == in_us(21.7)
    assert metrics.latency_s == alone.latency_s
    assert metrics.weight_bytes.tolist() == [14000, 14000, 0, 0, 0, 0]
    assert metrics.peak_bytes[1] == metrics.peak_bytes[0] == alone.peak_bytes[0]


def test_three_stages_of_one_three_and_two_chips() -> None:
    # embed | dense relu mix add | logits: 3.4, 26 and 14 us.
    graph, target, plan = toy([1, 3, 2], [0, 1, 1, 1, 1, 2])
    metrics = evaluate_plan(graph, target, plan)
    assert plan.placement.tolist() == [0, 1, 1, 1, 1, 4]
    assert plan.chips_used == 6
    assert metrics.compute_s == in_us([3.4, *[26 / 3] * 3, 7, 7])
    # x, 10 us, enters chips 1 to 3 and y, 10 us, leaves them: behind q of them (3 - q)/3 of x
    # and q/3 of y. Behind the first of the last two half of y goes on; out leaves by the host.
    assert metrics.link_s == in_us([10, 10, 10, 10, 5, 0, 2, 10])
    assert metrics.interval_s == in_us(10)


def test_each_pair_of_replicas_has_a_link_of_its_own() -> None:
    # embed | the rest, on chips 0 and 1, 2; each link takes x, 10 us, every other inference.
    graph, target, plan = toy([1, 2], [0, 1, 1, 1, 1, 1], 3, topology="all_to_all")
    names = [name.removeprefix("link ") for name in target.link_names]
    metrics = evaluate_plan(graph, target, plan)
    loads = {name: load for name, load in zip(names, metrics.link_s, strict=True) if load > 0}
    assert loads == {"0->1": in_us(5), "0->2": in_us(5), "host in": in_us(2), "host out": in_us(10)}
    assert metrics.compute_s == in_us([3.4, 20, 20])
    assert metrics.interval_s == in_us(20)


def test_pairs_of_two_and_four_replicas_meet_only_in_step() -> None:
    # Two makers and four readers: an inference comes from its parity's, so that four links of eight are used.
    graph, target, plan = toy([2, 4], [0, 1, 1, 1, 1, 1], topology="all_to_all")
    metrics = evaluate_plan(graph, target, plan)
    used = [name for name, load in zip(target.link_names[:-2], metrics.link_s, strict=False) if load > 0]
    assert used == ["link 0->2", "link 0->4", "link 1->3", "link 1->5"]
    assert metrics.link_s[:-2].max() == in_us(10 / 4)


@pytest.mark.parametrize("behind", [1, 2, 3])
def test_links_inside_a_stage(behind: int) -> None:
    # x of 10 us enters a stage of four chips that makes h and a, 10 us each, and reads x again behind it.
    graph, target, plan = toy([1, 4, 1], [0, 1, 1, 2, 2, 2])
    metrics = evaluate_plan(graph, target, plan)
    # x goes by to `add` as well: in full on every link; a leaves from the chips so far.
    assert metrics.link_s[behind] == in_us(10 + 10 * behind / 4)
    assert metrics.link_s[4] == in_us(20)


def test_replicas_forward_what_streams() -> None:
    graph, target, plan = toy([2, 3], [0, 0, 0, 0, 0, 1], sram_bytes=11_000)
    alone = evaluate_plan(graph, target, plan)
    metrics = evaluate_plan(graph, target, replace(plan, forwards=(2,)))
    # The host sends half the table of 10,000 bytes once for three inferences, 5 bytes a ns.
    assert alone.link_s[-2] - metrics.link_s[-2] == in_us(5_000 * 2 / 3 * 0.005)
    # Each of the two links between the three chips carries it once for three inferences, at 10 bytes a ns.
    forwarded = (metrics.link_s - alone.link_s)[:-2]
    assert forwarded[2:4].tolist() == [in_us(5_000 / 3 * 0.01)] * 2
    assert forwarded[4:].tolist() == [0.0] * len(forwarded[4:])
    assert metrics.stream_bytes.tolist() == alone.stream_bytes.tolist()


@pytest.mark.parametrize("changes", [{"topology": "host_star"}, {"overlap": False}])
def test_what_cannot_forward_is_costed_as_if_it_did_not(changes: dict[str, object]) -> None:
    graph, target, plan = toy([2, 3], [0, 0, 0, 0, 0, 1], sram_bytes=11_000, **changes)
    alone = evaluate_plan(graph, target, plan)
    assert (
        evaluate_plan(graph, target, replace(plan, forwards=(2, 9))).link_s.tolist() == alone.link_s.tolist()
    )


def test_replicas_stream_for_their_own_inferences() -> None:
    graph, target, plan = toy([2, 3], [0, 0, 0, 0, 0, 1], sram_bytes=11_000)
    metrics = evaluate_plan(graph, target, plan)
    assert metrics.stream_bytes[2:5].tolist() == [5_000] * 3  # half the table, each inference
    assert metrics.weight_bytes[2:5].tolist() == [5_000] * 3
    # ids of 400 bytes, and that half once an inference: 5 bytes a ns.
    streamed = metrics.stream_bytes[0] + metrics.stream_bytes[2]
    assert metrics.link_s[-2] == in_us((400 + streamed) * 0.005)


@settings(max_examples=examples(200))
@given(seed=seeds, num_ops=st.integers(1, 18))
def test_inferences_take_turns(seed: int, num_ops: int) -> None:
    """The twin evaluates every inference as a plan without replication."""
    rng = np.random.default_rng(seed)
    graph, target, plan = random_case(rng, num_ops)
    compare_with_turns(graph, target, random_forwards(rng, target, plan))


def compare_with_turns(graph: Graph, target: Target, plan: Plan) -> None:
    metrics = evaluate_plan(graph, target, plan)
    expanded, placed = expand_plan(graph, target, plan)
    keeps = graph.has_scope("sequence")  # sequences on their replicas
    turns = [
        Twin(expanded, target, turn_of(placed, inference), fed=fed(placed, inference)).evaluate()
        for inference in range(graph.sequences if keeps else lcm(*placed.replication.tolist()))
    ]
    for name in ("compute_s", "link_s"):
        mean = np.mean([getattr(turn, name) for turn in turns], axis=0)
        assert getattr(metrics, name) == pytest.approx(mean, rel=1e-9, abs=1e-18), name
    for name in ("peak_bytes", "weight_bytes", "stream_bytes"):
        assert getattr(metrics, name).tolist() == np.max([getattr(t, name) for t in turns], axis=0).tolist()
    terms_s = np.mean([turn.terms_s for turn in turns], axis=0)
    latency_s = max(turn.latency_s for turn in turns) if keeps else turns[0].latency_s
    if keeps:  # the last term: all sequences have one inference in the time of the slowest
        terms_s[-1] = latency_s / graph.sequences
    assert metrics.interval_s == pytest.approx(terms_s.max(), rel=1e-9)
    assert metrics.latency_s == pytest.approx(latency_s, rel=1e-9)
    assert metrics.valid == all(turn.valid for turn in turns)


@settings(max_examples=examples(200))
@given(seed=seeds, num_ops=st.integers(1, 18))
def test_sequences_stay_on_their_replicas(seed: int, num_ops: int) -> None:
    rng = np.random.default_rng(seed)
    case = (random_case if rng.random() < 0.6 else random_case_anywhere)(rng, num_ops)
    compare_with_turns(*with_states(rng, *case))


@settings(max_examples=examples(200))
@given(seed=seeds, num_ops=st.integers(1, 18))
def test_inferences_take_turns_on_any_topology(seed: int, num_ops: int) -> None:
    compare_with_turns(*random_case_anywhere(np.random.default_rng(seed), num_ops))


@settings(max_examples=examples(100))
@given(seed=seeds, num_ops=st.integers(1, 25))
def test_stages_are_faster_chips(seed: int, num_ops: int) -> None:
    rng = np.random.default_rng(seed)
    graph, target, plan = random_case(rng, num_ops, overlap=True)
    placed, stages = plan_tables(graph, target, plan), stages_of(plan.placement, plan.replication)
    alone = evaluate_batch(
        stage_tables(placed.tables, stages),
        stages.number(placed.placement)[None],
        placed.order[None],
        placed.fusion_group[None],
    )
    metrics = evaluate_plan(graph, target, plan)
    assert alone.interval_s[0] == pytest.approx(metrics.interval_s, rel=1e-9)
    assert alone.fits[0] == metrics.valid


@settings(max_examples=examples(60))
@given(seed=seeds, num_ops=st.integers(1, 25))
def test_nothing_changes_without_replicas(seed: int, num_ops: int) -> None:
    rng = np.random.default_rng(seed)
    target = random_target(rng)
    graph = random_graph(rng, num_ops)
    placement = rng.integers(0, target.num_chips, (3, num_ops)).astype(np.int32)
    order = np.tile(random_order(rng, graph), (3, 1))
    tables = cost_tables(graph, target)
    plain = evaluate_batch(tables, placement, order, order)
    staged = evaluate_batch(tables, placement, order, order, np.ones_like(placement))
    for without, replicated in zip(plain, staged, strict=True):
        assert np.array_equal(without, replicated)


def with_states(
    rng: np.random.Generator, graph: Graph, target: Target, plan: Plan
) -> tuple[Graph, Target, Plan]:
    """The same with states of at least as many sequences as a stage has chips, if the graph can have states.

    An op that touches states may be where they are not: its chip has states of its own then.
    """
    stateful = with_random_states(rng, graph, scopes=("sequence",))
    if not stateful.states or stateful.op_names != graph.op_names:
        return graph, target, plan
    stateful = with_sequences(stateful, int(plan.replication.max()) + int(rng.integers(6)))
    changed = replace(
        plan,
        graph_fingerprint=stateful.fingerprint,
        sequences=stateful.sequences,
        fusion_group=np.arange(graph.num_ops, dtype=np.int32)[np.argsort(plan.order)],
        relays=(),
    )
    return stateful, target, changed


def random_case(rng: np.random.Generator, num_ops: int, **fields: object) -> tuple[Graph, Target, Plan]:
    """A valid replicated plan with relays, but for memory and the host's rates."""
    graph = random_graph(rng, num_ops)
    fields.setdefault("overlap", bool(rng.random() < 0.6))
    num_chips = int(rng.integers(1, 9))
    fields.setdefault("sram_bytes", int(rng.choice([3_000, 12_000, 10**6])))
    target = small_mcm(num_chips, **fields)
    order = random_order(rng, graph)
    group = greedy_fusion(loop_roles(graph), order)
    stage_of_op, sizes = random_stages(rng, order, group, target.num_chips)
    plan = replicated_plan(graph, target, stage_of_op, sizes, order=order, fusion_group=group)
    return graph, target, with_legal_relays(graph, target, plan)


def random_case_anywhere(
    rng: np.random.Generator, num_ops: int, **fields: object
) -> tuple[Graph, Target, Plan]:
    """A replicated plan on a target of any topology, valid but for memory and circles of chips."""
    target = random_target(rng, num_chips=int(rng.integers(2, 9)), **fields)
    graph = random_graph(rng, num_ops, kinds=kind_names(target))
    plan = random_plan(rng, graph, target, monotone=target.constraints.acyclic, fusion="legal")
    return graph, target, anywhere(rng, target, plan)


def fed(plan: Plan, inference: int) -> frozenset[int]:
    """The chips that get an inference's streamed weights from the chip before."""
    pairs = set(zip(plan.placement.tolist(), plan.replication.tolist(), strict=True))
    turns = {first: inference % size for first, size in pairs if first in plan.forwards}
    return frozenset(first + turn for first, turn in turns.items() if turn > 0)


def turn_of(plan: Plan, inference: int) -> Plan:
    """The placement by which one inference runs; the replication says how sequences are shared."""
    turn = plan.placement + inference % plan.replication
    return replace(plan, placement=turn.astype(np.int32))
