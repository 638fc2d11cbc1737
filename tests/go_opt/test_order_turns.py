"""Slicings of other orders where only placements are decided."""

from __future__ import annotations

import numpy as np
import pytest

from go_opt.model.builder import GraphBuilder
from go_opt.model.graph import Graph
from go_opt.result import Request
from go_opt.search import portfolio
from go_opt.search.optimizer import optimize_request
from tests.go_opt.test_optimizer import assert_consistent
from tests.strategies import small_mcm


@pytest.fixture(autouse=True)
def _orders_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    others = tuple(method for method in portfolio.METHODS if method.name != "rounds of improvement")
    monkeypatch.setattr(portfolio, "METHODS", others)


@pytest.fixture(scope="module")
def two_chains() -> Graph:
    """Stored in turn, so that a cut crosses both, 20 us of link; one after the other they take 12 us."""
    b = GraphBuilder("two chains")
    for i in range(12):
        for chain in "ab":
            reads = [(f"{chain}{i - 1}", None)] if i else []
            b.add_op(
                f"op {chain}{i}", "Relu", "vector", flops=0, dtype="int8", reads=reads,
                writes=[(f"{chain}{i}", 1000, "int8")], measured_s={"chip": 3e-6},
            )  # fmt: skip
    return b.build()


@pytest.mark.parametrize("relays", [False, True])
def test_orders_find_placements_of_fixed_kernels(two_chains: Graph, relays: bool) -> None:
    target = small_mcm(6)
    request = Request(max_evaluations=300, decide="placement", relays=relays)
    result = optimize_request(two_chains, target, request)
    assert_consistent(two_chains, target, result)
    assert result.metrics.interval_s == pytest.approx(12e-6)
    assert result.method.startswith("slice: ")
    assert result.plan.order.tolist() == list(range(24))
    assert len(np.unique(result.plan.fusion_group)) == 24
