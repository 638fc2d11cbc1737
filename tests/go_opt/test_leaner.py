"""Equal intervals: the answer uses the fewest chips that the search reaches, at the lowest latency."""

from __future__ import annotations

import re

import numpy as np
import pytest
from hypothesis import given, settings

import go_opt
from go_opt.env import Target, parse_target, target_text
from go_opt.errors import InfeasibleError
from go_opt.result import OptimizeResult, Request
from go_opt.search.finish.leaner import leaner
from go_opt.search.methods.events import EQUAL, Proposal
from go_opt.search.state import Search
from tests.strategies import examples, kind_names, random_graph, random_target, seeds


def assert_lean(graph, target: Target, request: Request, result: OptimizeResult) -> None:
    """No move finds a plan as good on fewer chips, or on as many at a lower latency."""
    search, plan = Search(graph, target, request), result.plan
    search.take(
        Proposal("answer", plan.placement, plan.order, plan.fusion_group, replication=plan.replication)
    )
    if search.best is None or search.best_s > result.objective_s * (1 + EQUAL):
        return  # it forwards weights
    for proposal in leaner(search, "answer"):
        search.take(proposal)
    lean = search.leanest_plan
    assert lean is not None
    assert lean.chips_used >= plan.chips_used or search.best_s < result.objective_s * (1 - EQUAL)


@settings(max_examples=examples(40))
@given(seed=seeds)
def test_no_answer_can_be_made_leaner(seed: int) -> None:
    rng = np.random.default_rng(seed)
    target = random_target(rng, num_chips=int(rng.integers(2, 9)))
    graph = random_graph(rng, int(rng.integers(2, 25)), kinds=kind_names(target))
    request = Request(
        objective=("throughput", "latency")[int(rng.integers(2))],
        max_evaluations=200,
        decide=("placement", "all")[int(rng.integers(2))],
        replication=bool(rng.integers(2)),
        relays=bool(rng.integers(2)),
        simulate=False,
        splits=False,
    )
    try:
        result = go_opt.optimize(graph, target, request=request)
    except InfeasibleError:
        return
    if result.evaluations < request.max_evaluations:
        assert_lean(graph, target, request, result)


@pytest.mark.parametrize("options", [{}, {"simulate": False}, {"replication": False}, {"splits": False}])
def test_the_host_sets_the_pace_of_32_gpus(options: dict[str, bool]) -> None:
    # Results of 128 tokens cross the host's link out in 515 us; a few GPUs do all the rest in that time.
    ends = [(a, b) for a in range(32) for b in range(32) if a != b]
    links = "\n".join(
        f"[[topology.links]]\nsource = {a}\ndestination = {b}\nrate_bytes_per_s = 3e11\nlatency_s = 1e-6"
        for a, b in ends
    )
    text = target_text("gpu-8").replace("count = 8", "count = 32")
    text = re.sub(r'kind = "host_star"\nrate_bytes.*\nlatency_s.*\n', f'kind = "listed"\n{links}\n', text)
    result = go_opt.optimize("zoo:gpt2", parse_target(text, "gpu-32"), budget_s=60, **options)
    assert result.status == "OPTIMAL"
    assert result.metrics.bottleneck == "host out"
    assert result.plan.chips_used == np.ceil(result.metrics.compute_s.sum() / result.metrics.interval_s)
