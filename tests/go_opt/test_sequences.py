"""Plans of graphs with states: the number of sequences, and bounds that hold for every number."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings

import go_opt
from go_opt.common.arrays import IntArray
from go_opt.env import cost_tables, evaluate_batch, loop_roles
from go_opt.errors import InfeasibleError, InvalidInputError
from go_opt.explanations import PlanExplanation
from go_opt.model.graph import Graph, with_sequences
from go_opt.model.states import with_host_states
from go_opt.report.explanation import summary_lines
from go_opt.report.page import plan_page
from go_opt.result import Request
from go_opt.search.bounds import lower_bound
from go_opt.search.sequences import SequenceSearch
from go_opt.search.shared.context import Context, Watch
from tests.decoders import decoder as onnx_decoder
from tests.env.test_states import decoder
from tests.replicated import replicated_plan
from tests.searches import drawn_options, search
from tests.solver.brute_force import all_fusions, all_orders, all_placements, on_one_chip_each
from tests.strategies import (
    examples,
    kind_names,
    random_graph,
    random_target,
    seeds,
    small_mcm,
    with_random_states,
)


def test_the_least_number_that_reaches_the_least_interval() -> None:
    graph, target = decoder(), small_mcm(2)
    options = {"max_evaluations": 200, "replication": False}
    alone = go_opt.optimize(graph, target, sequences=1, max_evaluations=60)
    result = go_opt.optimize(graph, target, **options)
    latency_s, interval_s = result.metrics.latency_s, result.metrics.interval_s
    assert alone.plan.sequences == 1
    assert alone.metrics.interval_s == pytest.approx(alone.metrics.latency_s)
    assert result.plan.sequences == 2
    assert interval_s == pytest.approx(10.4e-6) == pytest.approx(max(10.4e-6, latency_s / 2))
    assert result.evaluations == len(result.history) <= 200
    assert [step.evaluations for step in result.history] == list(range(1, result.evaluations + 1))
    again = go_opt.optimize(graph, target, **options)
    assert again.plan.placement.tolist() == result.plan.placement.tolist()


@pytest.mark.parametrize(("given", "asked"), [(12, [3, 12]), (4, [4])])
def test_a_number_that_leaves_little_room_begins_with_a_plan_for_fewer(given: int, asked: list[int]) -> None:
    """Two memories have room for 16 sequences; three keep two chips busy."""
    numbers = []

    def answer(graph: Graph, request: Request, watch: Watch) -> go_opt.OptimizeResult:
        numbers.append(graph.sequences)
        raise InfeasibleError("none")

    request = Request(sequences=given, max_evaluations=60, replication=False)
    target = small_mcm(2, sram_bytes=20_000)
    watch = Watch(lambda step: None, lambda found: None, lambda: False)
    with pytest.raises(InfeasibleError):
        SequenceSearch(decoder(), target, request, Context(math.inf), watch, answer).answer()
    assert numbers == asked


def test_replicas_share_the_sequences() -> None:
    """Two chips run all ops, 15.8 us, for half of the sequences each; an inference takes 17.8 us.

    Two sequences would wait for each other, and of three one chip would have two.
    """
    graph, target = decoder(), small_mcm(2)
    result = go_opt.optimize(graph, target, max_evaluations=200)
    assert (result.plan.sequences, result.plan.replication.tolist()) == (4, [2, 2, 2, 2])
    assert result.metrics.interval_s == pytest.approx(7.9e-6)
    assert result.status == "OPTIMAL"
    explanation = go_opt.explain(graph, target, result.plan)
    assert isinstance(explanation, PlanExplanation)
    assert explanation.states is not None
    assert (explanation.states.fullest_chip, explanation.states.fullest_bytes) == (0, 2 * 2200)
    assert explanation.states.one_more_s == pytest.approx(15.8e-6 * 3 / 5)


def test_a_plan_with_replicas_of_uneven_sequences_is_explained() -> None:
    graph, target = with_sequences(decoder(), 5), small_mcm(5)
    plan = replicated_plan(graph, target, np.array([0, 0, 0, 1]), np.array([2, 3]))
    explanation = go_opt.explain(decoder(), target, plan)
    assert isinstance(explanation, PlanExplanation)
    text = "\n".join(summary_lines(explanation))
    assert "this chip runs 3 in 5" in text
    for op in graph.op_names:
        go_opt.explain(graph, target, plan, op)


def test_states_that_fit_no_memory_are_infeasible() -> None:
    with pytest.raises(InfeasibleError):
        go_opt.optimize(decoder(), small_mcm(2, sram_bytes=2000), max_evaluations=40)
    with pytest.raises(InfeasibleError):
        go_opt.optimize(decoder(), small_mcm(2, sram_bytes=9000), sequences=9, max_evaluations=40)


@pytest.mark.parametrize("seed", range(6))
def test_a_search_takes_no_more_evaluations_than_are_allowed(seed: int) -> None:
    rng = np.random.default_rng(seed)
    target = random_target(rng, num_chips=3, num_kinds=1)
    graph = with_random_states(rng, random_graph(rng, 8, kinds=kind_names(target)), scopes=["sequence"])
    plain = {"is_constrained": False, "starts": False, "fidelity": "analytical"}
    for most in range(2, 9):
        result = search(graph, target, max_evaluations=most, seed=seed, **plain)
        assert result is None or result.evaluations <= most


@pytest.mark.parametrize("size", [{"layers": 2, "heads": 8, "width": 16, "past": 20}, {"layers": 3}])
def test_sequences_do_not_wait_where_they_come_back_to_a_chip(size: dict[str, int]) -> None:
    """A chip works off one inference after the other: schedules of one are late by 60 %."""
    graph = go_opt.from_onnx(onnx_decoder(**size))
    result = go_opt.optimize(graph, "gpu-4", sequences=2, max_evaluations=40, policy=None)
    assert result.simulated_interval_s is not None
    assert result.simulated_interval_s < 1.05 * result.metrics.interval_s


@pytest.mark.parametrize(("sequences", "copies"), [(1, False), (2, True)])
def test_copies_and_guesses_that_one_sequence_has_no_use_for(sequences: int, copies: bool) -> None:
    """A copy for each of two sequences is valid on four chips; the latency of one is annealed."""
    result = go_opt.optimize(
        go_opt.from_onnx(onnx_decoder(1)), "gpu-4", sequences=sequences, max_evaluations=24, policy=None
    )
    copied_s = [step.objective_s for step in result.history if step.method.endswith("copied")]
    assert all(map(math.isfinite, copied_s))
    assert bool(copied_s) == copies
    if sequences == 1:
        assert not any(step.method.startswith("slice: random order") for step in result.history)


def test_a_number_of_sequences_is_above_zero() -> None:
    with pytest.raises(InvalidInputError, match="sequences must be 1"):
        go_opt.optimize(decoder(), small_mcm(2), sequences=0)


@settings(max_examples=examples(30))
@given(seed=seeds)
def test_any_search_with_states(seed: int) -> None:
    """Whatever is asked for: the plan is valid, and no bound is above it."""
    rng = np.random.default_rng(seed)
    target = random_target(rng)
    graph = with_random_states(rng, random_graph(rng, int(rng.integers(2, 12)), kinds=kind_names(target)))
    options = drawn_options(rng) | {"sequences": (None, None, 1, 3)[int(rng.integers(4))]}
    result = search(graph, target, max_evaluations=int(rng.integers(5, 60)), seed=seed % 100, **options)
    if result is not None and graph.has_scope("sequence") and not graph.has_scope("model"):
        metrics = result.metrics
        assert metrics.interval_s >= metrics.latency_s / result.plan.sequences * (1 - 1e-6)


@settings(max_examples=examples(25))
@given(seed=seeds)
def test_bounds_hold_for_every_plan_and_number(seed: int) -> None:
    rng = np.random.default_rng(seed)
    target = random_target(rng, num_chips=3, num_kinds=1, topology="ring", no_skip="off", overlap=True)
    graph = with_random_states(rng, random_graph(rng, int(rng.integers(2, 5)), kinds=kind_names(target)))
    if not graph.has_scope("sequence") or graph.has_scope("model"):
        return
    try:
        result = go_opt.optimize(graph, target, max_evaluations=80, splits=False)
    except InfeasibleError:
        return
    read = [graph.tensor_names[state.read] for state in graph.states]
    least_s = min(
        _least_interval_s(with_sequences(with_host_states(graph, names), number), target)
        for count in range(len(read) + 1)
        for names in itertools.combinations(read, count)
        for number in range(1, 6)
    )
    assert result.lower_bound_s <= least_s * (1 + 1e-9)
    assert result.status != "OPTIMAL" or result.objective_s <= least_s * (1 + 1e-6)


def _least_interval_s(graph: Graph, target: go_opt.Target) -> float:
    """Of all placements that keep the ops of a state together, orders, kernels and sizes of stages."""
    tables, roles = cost_tables(graph, target), loop_roles(graph, target.kernel_patterns)
    placements = all_placements(graph, tables)
    if target.goes_forward:
        forward = placements[:, graph.edge_src] <= placements[:, graph.edge_dst]
        placements = placements[forward.all(axis=1)]
    for state in graph.states:
        touching = placements[:, graph.readers_of(state.read)]
        placements = placements[(touching == touching[:, :1]).all(axis=1)]
    least_s = np.inf
    for order in itertools.islice(all_orders(graph), 30):
        for group in all_fusions(graph, order, roles):
            rows, sizes = _staged(on_one_chip_each(placements, group), target.num_chips, graph.sequences)
            if len(rows):
                many = (np.tile(one, (len(rows), 1)) for one in (order, group))
                terms = evaluate_batch(tables, rows, *many, sizes)
                least_s = min(least_s, float(terms.interval_s[terms.fits].min(initial=np.inf)))
    return least_s


def _staged(placements: IntArray, num_chips: int, sequences: int) -> tuple[IntArray, IntArray]:
    """[B, N] each of ``placements`` with each number of chips for each of its stages; those numbers."""
    rows, sizes = [], []
    for placement in placements:
        first, stage = np.unique(placement, return_inverse=True)
        room = np.minimum(np.diff([*first, num_chips]), sequences)
        for size in itertools.product(*(range(1, most + 1) for most in room)):
            rows.append(placement)
            sizes.append(np.array(size, np.int32)[stage])
    return np.array(rows, np.int32), np.array(sizes, np.int32)


def test_a_plan_whose_sequences_wait_is_explained() -> None:
    graph, target = decoder(), small_mcm(2)
    plan = go_opt.optimize(graph, target, sequences=1, max_evaluations=60).plan
    explanation = go_opt.explain(graph, target, plan)
    assert isinstance(explanation, PlanExplanation)
    states = explanation.states
    assert states is not None
    assert (states.sequences, states.sequence_bytes, states.model_bytes) == (1, 2200, 0)
    assert states.waits_s == explanation.metrics.interval_s
    assert states.one_more_s is not None
    assert states.one_more_s < states.waits_s
    text = "\n".join(summary_lines(explanation))
    assert "What binds: latency of a sequence over all sequences in flight" in text
    assert "States: 2.2 kB for each of 1 sequence in flight, most of them on chip" in text
    for op in graph.op_names:
        go_opt.explain(graph, target, plan, op)
    assert "latency of a sequence" in plan_page(graph, target, plan)


def test_the_interval_of_a_step_with_state_of_the_model_is_its_makespan() -> None:
    graph, target = decoder(scope="model"), small_mcm(2)
    result = go_opt.optimize(graph, target, max_evaluations=60)
    assert result.metrics.interval_s == result.metrics.makespan_s == result.objective_s
    assert result.plan.sequences == 1
    assert result.lower_bound_s <= result.objective_s
    with pytest.raises(InfeasibleError, match="no plan was found with a step of at most 1 us"):
        go_opt.optimize(graph, target, max_evaluations=60, max_latency_s=1e-6)


def test_the_busiest_replica_has_no_fewer_sequences_than_others() -> None:
    """Three chips share five sequences: one has two of them, so an op takes 2/5, not 1/3."""
    graph, target = with_sequences(decoder(), 5), small_mcm(3)
    request = Request(sequences=5, splits=False)
    fixed, least = (lower_bound(graph, target, one) for one in (request, replace(request, sequences=None)))
    longest_s = cost_tables(graph, target).kernel_floor_s().min(axis=0).max()
    assert fixed.seconds >= longest_s * 2 / 5 * (1 - 1e-9)
    assert least.seconds <= fixed.seconds
