"""No answer has a bound above its objective, at any fidelity and objective, with and without overlap."""

from __future__ import annotations

import logging
import math
from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import pytest

from go_opt.env import evaluate_plan
from go_opt.result import Request
from go_opt.search.bounds import without_false_claim
from go_opt.search.optimizer import optimize_request
from go_opt.search.shared.context import RAISES
from tests.strategies import random_graph, random_target, small_mcm, toy_graph

CASES = [*product(("simulated", "analytical"), ("throughput", "latency"), ("all", "placement"))]


@pytest.mark.parametrize(("fidelity", "objective", "decide"), CASES)
def test_of_random_targets(fidelity: Any, objective: Any, decide: Any) -> None:
    """The check at the edge raises here; without effects both fidelities see the same interval."""
    for seed in range(4):
        rng = np.random.default_rng(seed)
        target = random_target(rng, overlap=seed % 2 == 1, sram_bytes=10**7)
        kinds = [kind.name for kind in target.kinds]
        graph = random_graph(rng, int(rng.integers(4, 12)), kinds=kinds)
        request = Request(fidelity=fidelity, objective=objective, decide=decide, max_evaluations=20)
        result = optimize_request(graph, target, request)
        assert result.lower_bound_s <= result.objective_s * (1 + 1e-9)
        if fidelity == "simulated":
            predicted = evaluate_plan(graph, target, result.plan)
            assert result.metrics.interval_s >= predicted.interval_s * (1 - 1e-9)


def test_a_false_bound_is_dropped_and_logged(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    result = optimize_request(toy_graph(), small_mcm(2), Request(max_evaluations=5))
    assert without_false_claim(result) is result
    false = replace(result, status="OPTIMAL", lower_bound_s=2 * result.objective_s, gap=-0.5)
    with pytest.raises(AssertionError, match="is above the throughput objective"):
        without_false_claim(false)
    monkeypatch.delenv(RAISES)
    with caplog.at_level(logging.ERROR):
        honest = without_false_claim(false)
    assert (honest.status, honest.lower_bound_s, honest.gap) == ("HEURISTIC", 0.0, math.inf)
    assert "is above the throughput objective" in caplog.text
