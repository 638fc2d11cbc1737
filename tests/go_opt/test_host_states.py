"""States that the host keeps: when a search leaves them there, and what it says of them."""

from __future__ import annotations

import itertools
import math
from types import SimpleNamespace

import numpy as np
import pytest
from rich.console import Console

import go_opt
from go_opt.env import load_target, load_zoo
from go_opt.env.copies.splits import planned_graph
from go_opt.explanations import PlanExplanation
from go_opt.model.builder import GraphBuilder
from go_opt.model.graph import Graph, Scope
from go_opt.model.states import with_host_states
from go_opt.report.explanation import summary_lines
from go_opt.report.page import plan_page
from go_opt.report.tables import print_result
from go_opt.result import Request
from go_opt.result_json import result_to_dict
from go_opt.search.bounds import bound_with_host_states
from go_opt.search.shared import context
from tests.env.test_states import decoder, in_us
from tests.strategies import random_graph, small_mcm, with_random_states


def two_readers(scope: Scope = "sequence") -> Graph:
    """Two products of 5 us read a state of 20 bytes, which ties them to one chip; a third joins them."""
    b = GraphBuilder("two readers")
    b.add_tensor("h", 10, "bf16", "input")
    for name in ("a", "b"):
        b.add_tensor(f"w_{name}", 2000, "bf16", "weight")
        b.add_op(name, "MatMul", "matrix", flops=0, dtype="bf16",
                 reads=[("h", None), (f"w_{name}", None)], writes=[(f"y_{name}", 10, "bf16")])  # fmt: skip
    b.add_op("join", "MatMul", "matrix", flops=0, dtype="bf16",
             reads=[("y_a", None), ("y_b", None)], writes=[("next_h", 10, "bf16")])  # fmt: skip
    b.mark_output("next_h")
    b.add_state("h", "next_h", scope)
    return b.build()


def test_a_state_goes_to_the_host_where_it_ties_work_to_one_chip() -> None:
    graph, target = two_readers(), small_mcm(2)
    result = go_opt.optimize(graph, target, max_evaluations=200, replication=False)
    assert result.plan.host_states == ("h",)
    # `a` on one chip, `b` and `join` on the other: 40 to 4060 bytes at 1000 bytes/us, and 1 us a kernel.
    assert result.metrics.interval_s == in_us(4.04 + 1 + 0.06 + 1)
    # `h` comes in 0.1 us, `y_a` takes 0.2 + 1 us, `next_h` leaves in 0.1 us.
    assert result.metrics.latency_s == in_us(0.1 + 5.04 + 1.2 + 1.06 + 0.1)
    assert result.plan.sequences == 2
    assert result.lower_bound_s <= result.metrics.interval_s
    alone = go_opt.optimize(graph, target, max_evaluations=200, decide="placement", sequences=1)
    assert alone.plan.host_states == ()


def test_a_step_may_leave_states_to_the_host_too() -> None:
    graph, target = two_readers("model"), small_mcm(2)
    result = go_opt.optimize(graph, target, max_evaluations=100)
    assert result.plan.host_states == ("h",)
    assert result.metrics.interval_s == result.metrics.makespan_s == in_us(0.1 + 5.04 + 1.2 + 1.06 + 0.1)
    assert result.plan.sequences == 1


def test_as_many_states_go_to_the_host_as_the_weights_need_room() -> None:
    """Six cells: weights of 2000 bytes and ten states of 1000 exceed two memories of 32,000 by 8,000.

    A state on the host frees 10,000 bytes but for four buffers. Three do, one or two on each chip.
    """
    b = GraphBuilder("cells")
    b.add_tensor("x0", 10, "bf16", "input")
    for i in range(6):
        b.add_tensor(f"w{i}", 1000, "bf16", "weight")
        b.add_tensor(f"h{i}", 500, "bf16", "input")
        reads = [(f"{name}{i}", None) for name in "xhw"]
        b.add_op(f"cell{i}", "MatMul", "matrix", flops=0, dtype="bf16", reads=reads,
                 writes=[(f"x{i + 1}", 10, "bf16"), (f"n{i}", 500, "bf16")])  # fmt: skip
    b.mark_output("x6")
    for i in range(6):
        b.add_state(f"h{i}", f"n{i}", "sequence")
    target = small_mcm(2, sram_bytes=32_000)
    result = go_opt.optimize(b.build(), target, sequences=10, max_evaluations=60, replication=False)
    assert len(result.plan.host_states) == 3
    # Three cells on each chip: 4040 bytes at 1000 bytes/us, and 1 us a kernel.
    assert result.metrics.interval_s == in_us(3 * (4.04 + 1))


@pytest.fixture(scope="module")
def crowded() -> go_opt.OptimizeResult:
    """Six states of 2200 bytes exceed any memory of 12000, unless replicas share the sequences."""
    return go_opt.optimize(
        decoder(), small_mcm(2, sram_bytes=12_000), sequences=6, replication=False, max_evaluations=80
    )


def test_states_that_fit_no_memory_go_to_the_host(crowded: go_opt.OptimizeResult) -> None:
    graph, target = decoder(), small_mcm(2, sram_bytes=12_000)
    assert crowded.plan.host_states == ("past",)
    assert crowded.metrics.valid
    assert go_opt.verify(graph, target, crowded.plan) == []


@pytest.mark.parametrize("sequences", [None, 6])
@pytest.mark.parametrize("most", [1, 2, 5])
def test_there_is_a_plan_after_one_evaluation(sequences: int | None, most: int) -> None:
    """Of a graph whose states leave no room on the chips for the number of sequences that is tried first."""
    graph, target = decoder(), small_mcm(2, sram_bytes=12_000)
    options = {"sequences": sequences, "replication": False}
    result = go_opt.optimize(graph, target, max_evaluations=most, **options)
    assert result.evaluations <= most
    assert result.history[0].objective_s < math.inf
    assert go_opt.verify(graph, target, result.plan) == []
    if most == 1:
        assert (result.plan.host_states, result.plan.sequences) == (("past",), sequences or 1)


def test_the_first_plan_of_small_memories_has_an_order_with_few_live_bytes() -> None:
    """With all states on the host, only few placements of few orders fit, each op a kernel."""
    rng = np.random.default_rng(4)
    graph = with_random_states(rng, random_graph(rng, int(rng.integers(4, 12))), scopes=["sequence"])
    target = small_mcm(3, sram_bytes=78_528)
    result = go_opt.optimize(graph, target, sequences=3, max_evaluations=4)
    assert len(result.plan.host_states) == len(graph.states) == 3
    assert go_opt.verify(graph, target, result.plan) == []


def test_there_is_a_plan_when_the_time_is_over_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = itertools.count(0.0, 1000.0)
    monkeypatch.setattr(context, "time", SimpleNamespace(monotonic=lambda: next(now_s)))
    result = go_opt.optimize(decoder(), small_mcm(2, sram_bytes=12_000), sequences=6, replication=False)
    assert result.plan.host_states == ("past",)


def test_what_is_said_of_states_on_the_host(crowded: go_opt.OptimizeResult) -> None:
    graph, target = decoder(), small_mcm(2, sram_bytes=12_000)
    planned = planned_graph(graph, crowded.plan)
    (row,) = result_to_dict(planned, crowded, target.native_dtype)["states"]
    assert row == {"read": "past", "next": "present", "scope": "sequence", "bytes": 2200, "where": "host"}
    screen = Console(record=True, width=300)
    print_result(screen, planned, target, crowded)
    said = "1 state stays on the host ('past'): 2 kB in and 2.2 kB out for each inference, because "
    assert f"host        {said}" in screen.export_text()
    explanation = go_opt.explain(graph, target, crowded.plan)
    assert isinstance(explanation, PlanExplanation)
    assert explanation.states is not None
    (state,) = explanation.states.on_host
    assert (state.state, state.in_bytes, state.out_bytes, state.needed_bytes) == ("past", 2000, 2200, 13_200)
    assert state.because in ("chips", "memory")
    assert said in "\n".join(summary_lines(explanation))
    assert explanation.bound is not None
    assert explanation.bound.seconds <= crowded.metrics.interval_s
    assert "stays on the host" in plan_page(graph, target, crowded.plan)


def test_a_plan_with_states_on_the_host_is_a_start() -> None:
    graph, target = two_readers(), small_mcm(2)
    found = go_opt.optimize(graph, target, max_evaluations=200)
    again = go_opt.optimize(graph, target, max_evaluations=20, start=found.plan)
    assert again.metrics.interval_s <= found.metrics.interval_s


def test_the_bound_holds_for_states_on_the_host_of_gpus() -> None:
    """Attention over a cache is one kernel on GPUs, wherever the cache lies."""
    graph, target = load_zoo("gpt2_step"), load_target("h100-sxm-8")
    on_host = with_host_states(graph, tuple(graph.tensor_names[state.read] for state in graph.states))
    found = go_opt.optimize(on_host, target, max_evaluations=4, sequences=9, splits=False)
    request = Request(max_evaluations=4, splits=False)
    assert bound_with_host_states(graph, target, request).seconds <= found.metrics.interval_s


def test_bounds_where_transfers_add_to_compute() -> None:
    graph, target = decoder(), small_mcm(2, overlap=False)
    for sequences in (None, 2):
        result = go_opt.optimize(graph, target, sequences=sequences, max_evaluations=10)
        assert result.lower_bound_s <= result.metrics.interval_s
