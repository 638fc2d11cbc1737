"""The portfolio: reproducible, anytime, honest about what is proven, and clear when nothing fits."""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings

import go_opt
from go_opt.env import Target, evaluate_plan, load_target
from go_opt.errors import InfeasibleError
from go_opt.model.builder import GraphBuilder
from go_opt.model.graph import Graph
from go_opt.model.plan import Candidate
from go_opt.result import OptimizeResult, Step
from tests.strategies import (
    JIT_IS_ON,
    chip_kind,
    examples,
    kind_names,
    random_graph,
    random_target,
    seeds,
    small_mcm,
    toy_graph,
)

ROOT = Path(__file__).resolve().parents[2]
PLAN_ARRAYS = ("placement", "order", "fusion_group", "replication", "op_provenance")


def branchy(num_ops: int = 40, seed: int = 3) -> Graph:
    return random_graph(np.random.default_rng(seed), num_ops, precision="native")


def one_op(*, elements: int = 100, writes: int = 100, **changes: Any) -> Graph:
    """``only`` reads ``elements`` int8 from the host and writes ``writes`` to it."""
    b = GraphBuilder("one op")
    b.add_tensor("in", elements, "int8", "input")
    b.add_op(
        "only", "Relu", "vector", flops=100, dtype="int8", reads=[("in", None)],
        writes=[("out", writes, "int8")], **changes,
    )  # fmt: skip
    b.mark_output("out")
    return b.build()


def answer(result: OptimizeResult) -> dict[str, Any]:
    """All of an answer that must not depend on the clock."""
    return {
        **{name: getattr(result.plan, name).tolist() for name in PLAN_ARRAYS},
        "provenance": list(result.plan.provenance),
        "status": result.status,
        "method": result.method,
        "gap": result.gap,
        "bound_reason": result.bound_reason,
        "reference_s": result.reference_s,
        "evaluations": result.evaluations,
        "history": [[s.method, s.objective_s, s.best_s, s.evaluations] for s in result.history],
    }


def assert_consistent(graph: Graph, target: Target, result: OptimizeResult) -> None:
    """What must hold of every answer."""
    assert go_opt.verify(graph, target, result.plan) == []
    metrics = go_opt.evaluate(graph, target, result.plan)
    assert metrics.valid
    reached_s = metrics.makespan_s if result.objective == "latency" else metrics.interval_s
    for name in ("interval_s", "latency_s", "makespan_s", "bottleneck"):
        assert getattr(result.metrics, name) == getattr(metrics, name)
    best = [step.best_s for step in result.history]
    assert best == sorted(best, reverse=True)
    assert best[-1] <= reached_s  # another plan of the search may fare better in the simulator
    assert reached_s in [step.objective_s for step in result.history]
    assert [step.evaluations for step in result.history] == list(range(1, len(best) + 1))
    assert result.evaluations == len(result.history)
    assert min(step.objective_s for step in result.history) == best[-1]
    assert result.bound_reason
    assert result.lower_bound_s <= reached_s * (1 + 1e-9)
    if result.lower_bound_s > 0:
        assert result.gap == pytest.approx(reached_s / result.lower_bound_s - 1)
    assert result.status == ("OPTIMAL" if result.gap <= 1e-6 else "FEASIBLE")


# --------------------------------------------------------------------------- reproducible


@pytest.mark.parametrize("objective", ["throughput", "latency"])
@pytest.mark.parametrize("target", ["mcm-2x2", "gpu-4"])
def test_same_seed_and_evaluations_same_answer(target: str, objective: Any) -> None:
    graph = branchy()
    first, again = (
        go_opt.optimize(graph, target, objective=objective, max_evaluations=25, seed=4) for _ in range(2)
    )
    assert answer(first) == answer(again)
    assert first.evaluations <= 25
    assert_consistent(graph, load_target(target), first)


def test_the_simulator_judges() -> None:
    graph = branchy()
    first, again = (
        go_opt.optimize(graph, "mcm-2x2", fidelity="simulated", max_evaluations=15, seed=4) for _ in range(2)
    )
    assert answer(first) == answer(again)
    assert (first.status, first.lower_bound_s, first.gap) == ("HEURISTIC", 0.0, float("inf"))
    assert "simulated" in first.bound_reason
    assert first.metrics.simulation is not None
    assert go_opt.verify(graph, "mcm-2x2", first.plan) == []
    metrics = go_opt.evaluate(graph, "mcm-2x2", first.plan, fidelity="simulated")
    reached = [step.objective_s for step in first.history]
    assert metrics.interval_s == first.metrics.interval_s
    assert first.metrics.interval_s == pytest.approx(min(reached), rel=1e-9)  # the fewest chips of equals
    # As many evaluations as steps, and better than the analytical winner, which is among the proposals.
    assert first.evaluations == len(reached) == 15
    other = go_opt.optimize(graph, "mcm-2x2", max_evaluations=15, seed=4).plan
    assert metrics.interval_s <= go_opt.evaluate(graph, "mcm-2x2", other, fidelity="simulated").interval_s


def test_latency_is_the_simulated_makespan() -> None:
    graph = branchy()
    result = go_opt.optimize(graph, "mcm-2x2", objective="latency", fidelity="simulated", max_evaluations=10)
    metrics = go_opt.evaluate(graph, "mcm-2x2", result.plan, fidelity="simulated")
    assert metrics.makespan_s == min(step.objective_s for step in result.history)


def test_a_fresh_process_gives_the_same_answer() -> None:
    code = (
        "import json, go_opt; from tests.go_opt.test_optimizer import answer, branchy; "
        "print(json.dumps(answer(go_opt.optimize(branchy(), 'mcm-6x6', max_evaluations=20, seed=9))))"
    )
    out = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    here = answer(go_opt.optimize(branchy(), "mcm-6x6", max_evaluations=20, seed=9))
    assert json.loads(out.stdout) == json.loads(json.dumps(here))


@settings(max_examples=examples(60))
@given(seed=seeds)
def test_answers_are_consistent(seed: int) -> None:
    rng = np.random.default_rng(seed)
    target = random_target(rng)
    graph = random_graph(rng, int(rng.integers(1, 25)), kinds=kind_names(target))
    objective = ("throughput", "latency")[int(rng.integers(2))]
    decide = ("placement", "all")[int(rng.integers(2))]
    try:
        result = go_opt.optimize(
            graph, target, objective=objective, decide=decide, max_evaluations=12, seed=seed
        )
    except InfeasibleError:
        return
    assert_consistent(graph, target, result)
    assert result.evaluations <= 12
    if decide == "placement":
        np.testing.assert_array_equal(result.plan.order, np.arange(graph.num_ops))
        np.testing.assert_array_equal(result.plan.fusion_group, np.arange(graph.num_ops))


# --------------------------------------------------------------------------- proven


def best_placement_s(graph: Graph, target: Target) -> float:
    """Of all placements the verifier accepts, one kernel per op in the default order."""
    one_each = np.arange(graph.num_ops)
    least_s = np.inf
    for placement in itertools.product(range(target.num_chips), repeat=graph.num_ops):
        plan = Candidate("test", np.array(placement), one_each, one_each).plan(graph, target)
        if not go_opt.verify(graph, target, plan):
            least_s = min(least_s, evaluate_plan(graph, target, plan).interval_s)
    return least_s


@settings(max_examples=examples(80))
@given(seed=seeds)
def test_optimal_means_that_no_placement_is_better(seed: int) -> None:
    rng = np.random.default_rng(seed)
    target = random_target(rng, num_chips=int(rng.integers(1, 4)))
    graph = random_graph(rng, int(rng.integers(1, 5)), kinds=kind_names(target))
    best_s, relays = best_placement_s(graph, target), bool(rng.integers(2))
    try:
        result = go_opt.optimize(graph, target, decide="placement", relays=relays, max_evaluations=10)
    except InfeasibleError:
        return
    if not relays:  # with copies a plan may be better than any without
        assert result.metrics.interval_s >= best_s * (1 - 1e-9)
    assert result.lower_bound_s <= best_s * (1 + 1e-9)
    if result.status == "OPTIMAL":
        assert result.metrics.interval_s <= best_s * (1 + 2e-6)


def test_toy_by_hand() -> None:
    # One chip, one kernel per op: 43.4 us is all work, so the bound meets it.
    result = go_opt.optimize(toy_graph(), small_mcm(1), decide="placement", max_evaluations=5)
    assert result.metrics.interval_s == pytest.approx(43.4e-6)
    assert result.status == "OPTIMAL"
    assert (result.method, result.evaluations) == ("greedy", 1)
    # Two chips: 23.4 us (tests/solver/test_slicing.py) over half of all work, 21.7 us …
    result = go_opt.optimize(toy_graph(), small_mcm(2), decide="placement", max_evaluations=3)
    assert result.metrics.interval_s == pytest.approx(23.4e-6)
    assert result.lower_bound_s == pytest.approx(21.7e-6)
    assert result.gap == pytest.approx(23.4 / 21.7 - 1)
    assert result.status == "FEASIBLE"
    # … which the refinement proves to be the best.
    result = go_opt.optimize(toy_graph(), small_mcm(2), decide="placement", max_evaluations=20)
    assert result.lower_bound_s == pytest.approx(23.4e-6)
    assert result.status == "OPTIMAL"
    assert result.reference_s == pytest.approx(25e-6)  # greedy cuts behind relu: 5 + 6 + 14


# --------------------------------------------------------------------------- infeasible


@pytest.mark.parametrize("limits", [{"max_evaluations": 40}, {"budget_s": 0.5}])
def test_an_op_that_fits_nowhere_is_named_with_demand_and_limit(limits: dict[str, Any]) -> None:
    target = small_mcm(2, sram_bytes=1000)
    # The input enters the chip and the output leaves it: twice 200 and twice 301 bytes.
    with pytest.raises(InfeasibleError) as caught:
        go_opt.optimize(one_op(elements=200, writes=301), target, **limits)
    assert str(caught.value) == (
        "op 'only' fits no chip of small-mcm as a kernel of its own: its activations need 1002 bytes "
        "('out' 602 in two buffers, 'in' 400 in two buffers), the limit is 1000 bytes; what would fit: "
        "a chip with 1002 bytes, or tensors of at most 0.99 times these sizes, as of a smaller batch."
    )
    go_opt.optimize(one_op(elements=200, writes=300), target, **limits)


@pytest.mark.parametrize("limits", [{"max_evaluations": 40}, {"budget_s": 0.5}])
def test_an_op_no_kind_can_run_is_named(limits: dict[str, Any]) -> None:
    # With an evaluation budget the search ends as well, though no method proposes a plan.
    target = small_mcm(kinds=[chip_kind("a"), chip_kind("b")])
    with pytest.raises(InfeasibleError, match="'only' is excluded from every chip kind"):
        go_opt.optimize(one_op(excluded_kinds=["a", "b"]), target, **limits)


def test_a_rule_no_plan_keeps_is_named() -> None:
    target = small_mcm(2, no_skip="all")
    with pytest.raises(InfeasibleError, match="the first one that fits breaks a rule: chip 1 runs no op"):
        go_opt.optimize(one_op(), target, replication=False, max_evaluations=10)


# --------------------------------------------------------------------------- corners


@pytest.mark.parametrize("decide", ["placement", "all"])
@pytest.mark.parametrize("target", ["mcm-2x2", "mcm-6x6", "gpu-2", "gpu-8"])
def test_one_op(target: str, decide: Any) -> None:
    graph = one_op()
    result = go_opt.optimize(graph, target, decide=decide, replication=False, max_evaluations=5)
    assert_consistent(graph, load_target(target), result)
    assert result.plan.chips_used == 1
    # With fusion open the bound leaves the op's bytes out.
    assert result.gap <= (1e-6 if decide == "placement" else 1e-3)


def test_one_chip() -> None:
    graph, target = branchy(), small_mcm(1, sram_bytes=10**9)
    result = go_opt.optimize(graph, target, max_evaluations=10)
    assert_consistent(graph, target, result)
    assert not result.plan.placement.any()


def test_a_graph_in_pieces() -> None:
    # Four ops of 3 us that share nothing: three chips of at most two, 6 us.
    b = GraphBuilder("pieces")
    for i in range(4):
        b.add_op(
            f"op{i}", "Relu", "vector", flops=0, dtype="int8", reads=[], writes=[(f"t{i}", 0, "int8")],
            measured_s={"chip": 3e-6},
        )  # fmt: skip
    graph, target = b.build(), small_mcm(3)
    result = go_opt.optimize(graph, target, replication=False, max_evaluations=10)
    assert_consistent(graph, target, result)
    assert result.metrics.interval_s == pytest.approx(6e-6)


@pytest.mark.parametrize("overhead_s", [0.0, 1e-6])
def test_no_flops_and_no_bytes(overhead_s: float) -> None:
    b = GraphBuilder("nothing")
    for i in range(3):
        reads = [(f"t{i - 1}", None)] if i else []
        b.add_op(
            f"op{i}", "Relu", "vector", flops=0, dtype="int8", reads=reads, writes=[(f"t{i}", 0, "int8")]
        )
    graph, target = b.build(), small_mcm(2, kernel_overhead_s=overhead_s)
    result = go_opt.optimize(graph, target, replication=False, max_evaluations=10)
    assert_consistent(graph, target, result)
    # Fused, they are one kernel; but for its overhead it takes no time at all.
    assert result.metrics.interval_s == pytest.approx(overhead_s)


def test_more_than_64_chips() -> None:
    graph, target = branchy(150), small_mcm(100, sram_bytes=10**9)
    result = go_opt.optimize(graph, target, decide="placement", max_evaluations=5)
    assert_consistent(graph, target, result)


def test_gpus_finish_earlier_together() -> None:
    # Two branches of 1 ms each: 1 ms on two GPUs, 2 ms on one.
    b = GraphBuilder("two branches")
    for i in range(2):
        b.add_op(
            f"op{i}", "MatMul", "matrix", flops=0, dtype="bfloat16", reads=[], writes=[],
            measured_s={"gpu": 1e-3},
        )  # fmt: skip
    graph, target = b.build(), load_target("gpu-4")
    result = go_opt.optimize(graph, target, objective="latency", max_evaluations=10)
    assert_consistent(graph, target, result)
    assert result.metrics.makespan_s == pytest.approx(1e-3)
    assert result.status == "OPTIMAL"


def test_latency_is_no_worse_than_the_throughput_plans() -> None:
    graph = branchy()
    by_latency = go_opt.optimize(graph, "gpu-4", objective="latency", max_evaluations=60)
    by_interval = go_opt.optimize(graph, "gpu-4", max_evaluations=20)
    assert_consistent(graph, load_target("gpu-4"), by_latency)
    assert by_latency.metrics.makespan_s <= by_interval.metrics.makespan_s * (1 + 1e-9)


# --------------------------------------------------------------------------- anytime


def test_should_stop_ends_the_search() -> None:
    steps: list[Step] = []
    result = go_opt.optimize(
        branchy(), small_mcm(3, sram_bytes=10**9), max_evaluations=100, on_step=steps.append,
        should_stop=lambda: len(steps) >= 3,
    )  # fmt: skip
    assert len(steps) == 3
    assert result.history == tuple(steps)
    # Nor does it wait for the simulator, as the answer of a search that ends does.
    assert result.simulated_interval_s is None
    whole = go_opt.optimize(branchy(), small_mcm(3, sram_bytes=10**9), max_evaluations=3)
    assert whole.simulated_interval_s is not None


def test_an_interrupt_keeps_the_best_plan() -> None:
    def interrupt(step: Step) -> None:
        if step.evaluations == 2:
            raise KeyboardInterrupt

    graph, target = branchy(), small_mcm(3, sram_bytes=10**9)
    result = go_opt.optimize(graph, target, max_evaluations=100, on_step=interrupt)
    assert result.evaluations == 2
    assert_consistent(graph, target, result)


def test_an_interrupt_before_the_first_plan_is_an_interrupt() -> None:
    def interrupt(step: Step) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        # Each op alone takes 30 bytes, both together, as one kernel too, more than there are.
        go_opt.optimize(chain_of(2), small_mcm(1, sram_bytes=35), on_step=interrupt)


@pytest.mark.skipif(not JIT_IS_ON, reason="the first methods alone take longer interpreted")
def test_a_budget_ends_the_search() -> None:
    # Far from tight: the point is that an endless stream of random orders ends.
    result = go_opt.optimize(branchy(200), small_mcm(8, sram_bytes=10**9), budget_s=0.3)
    assert result.wall_s < 5.0


def test_it_gives_up_without_progress() -> None:
    result = go_opt.optimize(branchy(12), small_mcm(3, sram_bytes=10**9), budget_s=600.0)
    assert result.wall_s < 120.0


# ------------------------------------------------------- rules and targets without a ring


def chain_of(num_ops: int, flops: float = 1000.0) -> Graph:
    b = GraphBuilder("chain")
    b.add_tensor("t0", 10, "int8", "input")
    for i in range(num_ops):
        b.add_op(
            f"op{i}", "Relu", "vector", flops=flops, dtype="int8", reads=[(f"t{i}", None)],
            writes=[(f"t{i + 1}", 10, "int8")],
        )  # fmt: skip
    b.mark_output(f"t{num_ops}")
    return b.build()


def test_all_chips_are_used_where_the_target_asks_for_it() -> None:
    # Six ops of next to nothing: one chip would be enough, no_skip = "all" wants three.
    graph, target = chain_of(6, flops=1.0), small_mcm(3, no_skip="all")
    result = go_opt.optimize(graph, target, decide="placement")
    assert result.plan.chips_used == 3
    assert go_opt.verify(graph, target, result.plan) == []


def test_all_chips_of_too_many_is_infeasible() -> None:
    with pytest.raises(InfeasibleError, match=r"chip \d runs no op"):
        go_opt.optimize(chain_of(2), small_mcm(3, no_skip="all"), decide="placement")


def test_the_faster_kind_is_used_where_kinds_come_in_any_order() -> None:
    # The second kind is a hundred times faster; slicing alone would start on the first.
    kinds = [chip_kind("slow", 1), chip_kind("fast", 1, vector_flops_per_s={"default": 1e10})]
    graph, target = chain_of(4), small_mcm(topology="all_to_all", kinds=kinds)
    result = go_opt.optimize(graph, target, decide="placement")
    # Four kernels of 1000 flops at 1e10/s, each with an overhead of 1 us.
    assert result.plan.placement.tolist() == [1, 1, 1, 1]
    assert result.metrics.interval_s == pytest.approx(4 * (0.1e-6 + 1e-6))
