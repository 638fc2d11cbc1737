"""The engine against the slow simulator of ``twin.py``: the same times, the same deadlocks."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import assume, given, settings

from go_opt.env import Target
from go_opt.env.copies.stages import with_sharers
from go_opt.env.kernels.numbering import number_kernels
from go_opt.env.model.memory import FITS
from go_opt.env.simulator.assembly import Assembly, assemble
from go_opt.env.simulator.engine import DEADLOCK, run
from go_opt.env.simulator.package import NONE, inference_of
from go_opt.env.simulator.simulate import occupy_chips, replicas_by_chip, setting_of
from go_opt.model.builder import GraphBuilder
from go_opt.model.graph import Graph
from go_opt.model.plan import Plan
from tests.env.simulator.replicas import random_replicated, random_replicated_anywhere
from tests.env.simulator.twin import SlowSimulator
from tests.strategies import (
    examples,
    make_plan,
    random_graph,
    random_plan,
    random_simulated_target,
    seeds,
    simulated_package,
    small_mcm,
)

ROUNDS = 20


def assembled(graph: Graph, target: Target, plan: Plan, num_rounds: int, num_spans: int = 0) -> Assembly:
    tables, setting = setting_of(graph, target, ())
    kernel_of = number_kernels(plan.order, plan.fusion_group)
    replicas = replicas_by_chip(target, plan.placement, plan.replication, tables.sequences)
    tables = with_sharers(tables, plan.forwards, replicas)
    return assemble(tables, setting, kernel_of, plan.placement, replicas, num_rounds, num_spans)


def with_room(graph: Graph, target: Target, plan: Plan) -> Target:
    """The target, with memories doubled until the plan fits; so tests compare every plan that they draw."""
    while assembled(graph, target, plan, 1).fit.outcome != FITS:
        kinds = tuple(replace(kind, sram_bytes=2 * kind.sram_bytes) for kind in target.kinds)
        target = replace(target, kinds=kinds)
    return target


def compare(graph: Graph, target: Target, plan: Plan) -> bool:
    """Run both for some inferences, steady or not; whether they ended in a deadlock."""
    package = assembled(graph, target, plan, ROUNDS).package
    if not target.overlap:
        occupy_chips(setting_of(graph, target, ())[0], package)
    ended, _ = run(package, ROUNDS, ROUNDS + 1)
    slow = SlowSimulator(graph, target, plan, ROUNDS)
    slow.run()
    assert package.shared["completed"][0] == slow.completed
    assert (ended == DEADLOCK) == (slow.completed < ROUNDS)
    end_s = max(slow.chip_end_s.max(), 1e-9)
    same = {"rtol": 1e-9, "atol": 1e-12 * end_s}
    np.testing.assert_allclose(package.rounds["completion_s"], slow.completion_s, **same)
    np.testing.assert_allclose(package.end_s, np.concatenate([slow.chip_end_s, slow.link_end_s()]), **same)
    if ended == DEADLOCK:
        assert stopped_links(package) == slow.stopped()
    return ended == DEADLOCK


def stopped_links(package) -> list[tuple[int, int, int]]:
    """(link, tensor, inference) at the head of each queue."""
    found = []
    for number, head in enumerate(package.links["blocked_head"]):
        if head != NONE:
            hop = package.hops[package.nodes["subject"][head]]
            flow = package.flows[hop["flow"]]
            found.append((number, int(flow["tensor"]), int(inference_of(flow, hop["turn"]))))
    return found


@given(seed=seeds)
@settings(max_examples=examples(300))
def test_engine_matches_the_slow_simulator(seed: int) -> None:
    rng = np.random.default_rng(seed)
    graph = random_graph(rng, int(rng.integers(1, 20)))
    target = random_simulated_target(rng, overlap=bool(rng.random() < 0.8))
    plan = random_plan(rng, graph, target, monotone=target.constraints.acyclic)
    compare(graph, with_room(graph, target, plan), plan)


@given(seed=seeds)
@settings(max_examples=examples(150))
def test_replicated_stages(seed: int) -> None:
    graph, target, plan = random_replicated(np.random.default_rng(seed))
    compare(graph, with_room(graph, target, plan), plan)


@given(seed=seeds)
@settings(max_examples=examples(150))
def test_replicas_that_keep_sequences(seed: int) -> None:
    graph, target, plan = random_replicated(np.random.default_rng(seed), sequences=True)
    compare(graph, with_room(graph, target, plan), plan)


def test_the_cases_have_sequences_that_replicas_share_unevenly() -> None:
    cases = [random_replicated(np.random.default_rng(seed), sequences=True) for seed in range(60)]
    uneven = [graph.states and (graph.sequences % plan.replication > 0).any() for graph, _, plan in cases]
    assert sum(map(bool, uneven)) > 5


@given(seed=seeds)
@settings(max_examples=examples(150))
def test_replicas_that_forward_weights(seed: int) -> None:
    graph, target, plan = case_that_forwards(seed)
    compare(graph, with_room(graph, target, plan), plan)


def test_the_cases_forward() -> None:
    cases = [assembled(*case_that_forwards(seed), 1) for seed in range(60)]
    assert sum(case.package.flows["is_forwarded"].any() for case in cases if case.fit.outcome == FITS) > 5


def case_that_forwards(seed: int) -> tuple[Graph, Target, Plan]:
    """Chips with memory for the activations and some of the weights."""
    sram_bytes = 10**6
    for _ in range(2):
        rng = np.random.default_rng(seed)
        target = random_simulated_target(rng, topology="ring", acyclic=True, sram_bytes=sram_bytes)
        case = random_replicated(rng, target=target, legal=True, forwards=True)
        fit = assembled(*case, 1).fit
        sram_bytes = int(fit.peak_bytes.max() + 0.3 * fit.weight_bytes.max()) + 1000
    return case


@given(seed=seeds)
@settings(max_examples=examples(300))
def test_replicated_stages_anywhere(seed: int) -> None:
    graph, target, plan = random_replicated_anywhere(np.random.default_rng(seed))
    target = with_room(graph, target, plan)
    # An input of no bytes comes at the same moment as others: which is first no rule states.
    assume((assembled(graph, target, plan, 1).package.flows["size_bytes"] > 0).all())
    compare(graph, target, plan)


@pytest.mark.parametrize("weight_prefetch", [True, False])
def test_as_many_weights_ahead_as_inferences(weight_prefetch: bool) -> None:
    """Twenty streams of a package with single buffers: far more requests than buffers."""
    b = GraphBuilder("streams")
    for i in range(20):
        b.add_tensor(f"w{i}", 1000 + i, "float32", "weight")
        reads = [(f"w{i}", None)] + ([(f"t{i - 1}", None)] if i else [])
        writes = [(f"t{i}", 1, "float32")]
        b.add_op(f"op{i}", "Exp", "vector", flops=100 + i, dtype="float32", reads=reads, writes=writes)
    graph = b.build()
    tables = simulated_package(buffers=1, weight_prefetch=weight_prefetch)
    target = small_mcm(4, sram_bytes=100, simulator=tables)
    plan = make_plan(graph, target, [i // 5 for i in range(20)])
    assert assembled(graph, target, plan, 1).fit.is_streamed.all()
    assert not compare(graph, target, plan)
