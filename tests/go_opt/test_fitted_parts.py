"""Parts that fit the chips: the pieces they are chosen from, and the plans that come of them."""

from __future__ import annotations

from itertools import islice

import numpy as np
import pytest

import go_opt
from go_opt import from_onnx
from go_opt.env import evaluate_plan, load_target
from go_opt.env.copies.splits import split_graph
from go_opt.model.graph import Graph, with_sequences
from go_opt.result import Request
from go_opt.search.methods.given import given
from go_opt.search.splits.fitted_parts import METHOD, FittedParts
from go_opt.search.state import Search
from go_opt.solver.verify.verifier import verify
from tests.decoders import decoder, lstm_cell

TARGET = load_target("mcm-6x6")


@pytest.fixture(scope="module")
def graph() -> Graph:
    return from_onnx(decoder(layers=4, heads=8, width=64, past=300, vocabulary=9000))


def test_parts_of_each_block_are_chosen_for_themselves(graph: Graph) -> None:
    """The plan has the stages and, but for relays, the loads of its slicing; blocks have different parts."""
    parts = FittedParts(graph, TARGET, Request())
    assert parts.is_open
    found = parts.fitted(16, 1e-6, 1e-3, 1.0)
    assert found is not None
    request = Request(budget_s=60.0, splits=False, simulate=False, start=found.start)
    whole = with_sequences(graph, 16)
    divided = with_sequences(split_graph(whole, found.way), 16)
    assert set(divided.op_names) == found.start.ops.keys()
    assert len({split.parts for split in found.way}) > 1
    search = Search(divided, TARGET, request)
    for event in islice(given(search), 4):
        search.take(event)
    assert search.best is not None
    plan = search.best.plan
    assert not verify(divided, TARGET, plan)
    assert set(plan.placement.tolist()) == set(found.slicing.first_chip.tolist())
    metrics = evaluate_plan(divided, TARGET, plan)
    relays = sorted({chip for relay in plan.relays for chip in relay.chips})
    assert np.delete(metrics.compute_s, relays).max() <= found.slicing.interval_s * (1 + 1e-9)
    assert metrics.latency_s == pytest.approx(found.slicing.latency_s, rel=0.25), "an estimate"


def test_nothing_is_fitted_without_blocks(graph: Graph) -> None:
    assert not FittedParts(graph, TARGET, Request(splits=False)).is_open
    assert not FittedParts(from_onnx(lstm_cell()), load_target("h100-sxm-8"), Request()).is_open


def test_a_search_takes_the_better_plan(graph: Graph) -> None:
    found = go_opt.optimize(graph, TARGET, max_evaluations=64, simulate=False)
    parts = FittedParts(graph, TARGET, Request())
    fitted = parts.fitted(found.plan.sequences, found.lower_bound_s, found.metrics.interval_s, 1.0)
    assert fitted is None or any(METHOD in step.method for step in found.history)
