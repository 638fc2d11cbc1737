"""The published inputs: their loads are our intervals, and their optima cost what is published."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import go_opt
from go_opt.model.graph import Graph
from go_opt.model.plan import Candidate
from go_opt.result import Objective
from tests.benchmarks.neurips20 import Input, as_ours, load_input, optimum
from tests.strategies import chip_kind, small_mcm, toy_graph

DATA = Path(__file__).parent.parent / "data" / "neurips20"
BERT_LAYERS = DATA / "bert24_layer_inference.json"
RESNET_LAYERS = DATA / "resnet50_layer_inference.json"
BERT_OPS = DATA / "bert_l-3_operator_inference.json"
OPTIMA_MS = {BERT_LAYERS: 17.790, RESNET_LAYERS: 33.775, BERT_OPS: 27.919}
# The experts' splits: the last node of each accelerator, and the published load.
EXPERTS = [
    (BERT_LAYERS, (8, 12, 16, 20, 24, 32), 20.084),
    (RESNET_LAYERS, (5, 37, 79, 121, 163, 177), 43.918),
]


def plan_of(graph: Graph, target: go_opt.Target, placement: Any) -> go_opt.Plan:
    ops = np.arange(graph.num_ops, dtype=np.int32)
    return Candidate("by hand", np.asarray(placement, np.int32), ops, ops).plan(graph, target)


def loads_ms(given: Input, device: list[int]) -> np.ndarray:
    """The load of each device, word by word: accelerators, then CPUs, which pay for no transfers."""
    load = np.zeros(given.accelerators + given.cpus)
    for node, at in zip(given.nodes, device, strict=True):
        load[at] += node["fpgaLatency"] if at < given.accelerators else node["cpuLatency"]
    for source, sent_ms in given.sent_ms.items():
        readers = {device[reader] for reader in given.readers[source]} - {device[source]}
        for at in [*readers, *([device[source]] if readers else [])]:
            load[at] += sent_ms if at < given.accelerators else 0.0
    return load


@pytest.mark.parametrize("path", OPTIMA_MS, ids=lambda path: path.stem)
def test_the_published_optimum_is_valid_and_costs_what_is_published(path: Path) -> None:
    given = load_input(path)
    graph, target, constraints = as_ours(given)
    found = optimum(given)
    placement = [found.device[op] for op in graph.op_names]
    plan = plan_of(graph, target, placement)
    assert go_opt.verify(graph, target, plan, constraints=constraints) == []
    interval_ms = go_opt.evaluate(graph, target, plan).interval_s * 1e3
    assert interval_ms == pytest.approx(OPTIMA_MS[path], abs=5e-4)
    assert found.load_ms == pytest.approx(interval_ms, rel=1e-9)


@pytest.mark.parametrize(("path", "last", "published_ms"), EXPERTS)
def test_the_experts_splits_cost_what_is_published(
    path: Path, last: tuple[int, ...], published_ms: float
) -> None:
    graph, target, _ = as_ours(load_input(path))
    ids = [int(name.removeprefix("node")) for name in graph.op_names]
    plan = plan_of(graph, target, np.searchsorted(last, ids))
    assert go_opt.evaluate(graph, target, plan).interval_s * 1e3 == pytest.approx(published_ms, abs=5e-4)


@pytest.mark.parametrize("path", OPTIMA_MS, ids=lambda path: path.stem)
def test_any_placement_costs_its_largest_load(path: Path) -> None:
    given = load_input(path)
    graph, target, _ = as_ours(given)
    rng = np.random.default_rng(0)
    for _ in range(20):
        placement = rng.integers(0, target.num_chips, graph.num_ops)
        loads = loads_ms(given, [int(placement[graph.op_index[name]]) for name in given.names])
        metrics = go_opt.evaluate(graph, target, plan_of(graph, target, placement))
        assert metrics.interval_s * 1e3 == pytest.approx(loads.max(), rel=1e-9)
        assert metrics.bottleneck == f"chip {loads.argmax()} compute and transfers"


def test_the_portfolio_plans_for_chips_around_a_host() -> None:
    """Kinds of unlike chips, limits and colocation included; no worse than the human expert."""
    given = load_input(BERT_LAYERS)
    graph, target, constraints = as_ours(given)
    result = go_opt.optimize(
        graph,
        target,
        constraints=constraints,
        max_evaluations=60,
        policy=None,
        relays=False,
        replication=False,
    )
    assert go_opt.verify(graph, target, result.plan, constraints=constraints) == []
    assert result.lower_bound_s <= OPTIMA_MS[BERT_LAYERS] * 1e-3
    assert OPTIMA_MS[BERT_LAYERS] - 5e-4 <= result.metrics.interval_s * 1e3 <= EXPERTS[0][2]


@pytest.mark.parametrize("objective", ["throughput", "latency"])
@pytest.mark.parametrize("acyclic", [True, False])
def test_a_star_of_ones_own(objective: Objective, acyclic: bool) -> None:
    """With all that plans may use: copies reach below what any placement without them does."""
    kinds = [chip_kind("accelerator", 2), chip_kind("cpu", 1, pays_transfers=False)]
    target = small_mcm(topology="host_star", overlap=False, acyclic=acyclic, kinds=kinds)
    result = go_opt.optimize(toy_graph(), target, objective=objective, max_evaluations=60, policy=None)
    assert go_opt.verify(toy_graph(), target, result.plan) == []
    assert result.gap >= 0.0
