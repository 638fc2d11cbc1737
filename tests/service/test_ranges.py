"""Requests for ranges of layers on mixed nodes that are malformed, and answers that are."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from go_opt.errors import InvalidInputError, ServiceError
from go_opt.proto import optimizer_pb2, step_pb2
from go_opt.service.workers.optimizer import LocalOptimizer, SearchControl
from go_opt.serving.mixed.wire import found_from_proto
from tests.go_opt.serving.test_mixed import PAIR, case_of


def request() -> Any:
    model = step_pb2.Transformer(hidden=8, layers=4, heads=1, sequence=1)
    return optimizer_pb2.OptimizeRequest(
        ranges=step_pb2.LayerRanges(model=model), target={"toml": PAIR}, budget_s=20.0
    )


@pytest.mark.parametrize(
    ("change", "field", "problem"),
    [
        (lambda m: m.ranges.model.ClearField("hidden"), "ranges.model.hidden", "hidden must be 1 or more"),
        (lambda m: setattr(m.target, "name", "mcm-6x6"), "target", "name"),
        (lambda m: setattr(m.target, "toml", PAIR + "x = 1"), "target", "x"),
        (lambda m: setattr(m, "objective", 1), "objective", "objective is not for ranges of layers"),
        (lambda m: setattr(m, "seed", -1), "seed", "seed"),
        (lambda m: setattr(m, "budget_s", -1.0), "budget_s", "budget must be above zero"),
        (lambda m: setattr(m.graph, "name", "x"), "ranges", "a graph or ranges of layers, not both"),
    ],
)
def test_requests_that_are_wrong(change: Callable[[Any], Any], field: str, problem: str) -> None:
    message = request()
    change(message)
    with pytest.raises(InvalidInputError, match=problem) as raised:
        LocalOptimizer().optimize(message.SerializeToString(), SearchControl())
    assert raised.value.field == field


@pytest.mark.parametrize(
    ("ranges", "problem"),
    [
        ([(0, 2), (2, 4)], "not of this model and cluster"),
        ([(0, 2), (2, 4), (2, 5)], "not of this model and cluster"),
        ([(0, 2), (2, 4), (2, 4)], "above the bound 5"),
    ],
)
def test_answers_that_are_wrong(ranges: list[tuple[int, int]], problem: str) -> None:
    rows = [step_pb2.NodeRange(start=start, end=end) for start, end in ranges]
    answer = optimizer_pb2.OptimizeResponse(ranges=step_pb2.RangesAnswer(nodes=rows, bound_per_s=5.0))
    with pytest.raises(ServiceError, match=problem):
        found_from_proto(answer, case_of(PAIR))
