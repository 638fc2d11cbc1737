"""Layers that GPUs share by collectives: which ways are tried, what they are worth, that bounds hold."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import assume, given, settings

import go_opt
from go_opt import from_onnx
from go_opt.env import Target, evaluate_plan, fused_within_chips, greedy_fusion, loop_roles
from go_opt.env.copies.splits import split_graph
from go_opt.env.target.definition import load_target
from go_opt.errors import InfeasibleError
from go_opt.model.graph import Graph
from go_opt.result import Request
from go_opt.search.bounds import lower_bound
from go_opt.search.splits.tensor_ways import start_by_tensor, tensor_ways
from go_opt.search.splits.ways import divisible_ops, ways_for_samples
from tests.decoders import decoder
from tests.env.random_models import random_splits
from tests.env.test_exchanges import exchanged
from tests.strategies import examples, make_plan, seeds
from tests.transformers import encoder

TARGET = load_target("h100-sxm-4")
COUNTED = {"max_evaluations": 24, "policy": None, "budget_s": None}


def layer(tokens: int = 1024, width: int = 4096, heads: int = 32) -> Graph:
    """A layer with the sizes of a model of 7 billion weights."""
    return from_onnx(encoder(1, tokens, width, heads, weights=False))


def test_collectives_of_a_layer() -> None:
    """With blocks: what each reads is gathered, its sums are scattered; by rows: keys and values gathered."""
    graph = layer()
    kinds = [Counter(exchanged(split_graph(graph, way))) for way in tensor_ways(graph, TARGET)]
    assert {"AllGather": 8} in kinds
    assert {"AllGather": 8, "ReduceScatter": 8} in kinds


@pytest.mark.parametrize(("replicates", "chips"), [(False, [0, 1]), (True, [0, 2])])
def test_parts_of_the_first_plan(replicates: bool, chips: list[int]) -> None:
    graph = layer()
    way = next(way for way in tensor_ways(graph, TARGET) if way[0].parts == 2)
    split = split_graph(graph, way)
    chip, replication, *_ = start_by_tensor(graph, way, TARGET, replicates=replicates).on(split)
    assert np.unique(chip).tolist() == chips
    assert replication.tolist() == [1 + replicates] * split.num_ops
    crosses = chip[split.edge_src] != chip[split.edge_dst]
    to = np.array(split.op_types)[split.edge_dst[crosses]]
    assert set(to) <= {"AllGather", "ReduceScatter", "Slice"}  # a slice of an input of the model


def test_layers_are_shared_where_that_pays() -> None:
    graph = layer()
    whole, shared = (
        go_opt.optimize(graph, TARGET, objective="latency", splits=splits, **COUNTED)
        for splits in (False, True)
    )
    assert shared.objective_s < 0.7 * whole.objective_s
    assert any(one.collective for one in shared.plan.splits)
    assert go_opt.verify(graph, TARGET, shared.plan) == []
    assert shared.lower_bound_s <= shared.objective_s


@pytest.mark.parametrize("limit", [None, 0.9])
def test_a_step_of_a_decoder_is_shared(limit: float | None) -> None:
    """On slow memories reading the weights takes long; ops that touch the cache stay whole."""
    slow = replace(TARGET, kinds=(replace(TARGET.kinds[0], sram_bytes_per_s=3.35e9),))
    graph = from_onnx(decoder(layers=2, heads=8, width=16, past=20))
    whole = go_opt.optimize(graph, slow, objective="latency", splits=False, **COUNTED)
    asked = {"max_latency_s": limit * whole.metrics.latency_s} if limit else {"objective": "latency"}
    shared = go_opt.optimize(graph, slow, **asked, **COUNTED | {"max_evaluations": 60})
    assert shared.metrics.latency_s < 0.9 * whole.metrics.latency_s
    assert any(one.collective for one in shared.plan.splits)
    assert go_opt.verify(graph, slow, shared.plan) == []
    assert shared.lower_bound_s <= shared.objective_s


def test_a_latency_that_no_chip_keeps_alone() -> None:
    graph = layer()
    limit = {"max_latency_s": 0.55e-3} | COUNTED
    with pytest.raises(InfeasibleError, match="no plan has a latency of at most"):
        go_opt.optimize(graph, TARGET, splits=False, **limit)
    found = go_opt.optimize(graph, TARGET, **limit)
    assert found.metrics.latency_s <= 0.55e-3
    assert any(one.collective for one in found.plan.splits)
    assert found.metrics.interval_s < 0.7 * found.metrics.latency_s  # its parts are replicated
    assert go_opt.verify(graph, TARGET, found.plan) == []


def test_layers_stay_whole_where_launches_take_longer() -> None:
    graph = go_opt.load("zoo:bert_base")
    assert tensor_ways(graph, TARGET) == ()
    assert not divisible_ops(graph, TARGET, Request(objective="latency")).any()
    large = layer()
    assert tensor_ways(large, replace(TARGET, collectives=())) == ()
    assert ways_for_samples(large, TARGET, Request(objective="latency"), {})
    assert not ways_for_samples(large, TARGET, Request(), {})  # copies of a plan have the shortest interval
    assert not ways_for_samples(large, TARGET, Request(objective="latency", splits=False), {})


def tiny(seed: int) -> tuple[Graph, Target]:
    """A layer on two GPUs whose kernels and links start at once, so that work counts."""
    rng = np.random.default_rng(seed)
    tokens, heads = (int(rng.integers(low, 40)) for low in (4, 2))
    graph = from_onnx(encoder(1, tokens, 32 * heads, heads, causal=bool(rng.random() < 0.5), weights=False))
    target = load_target("h100-sxm-2")
    (kind,) = target.kinds
    assert kind.kernels is not None
    start_s = float(10.0 ** rng.uniform(-10, -6))
    kernels = replace(kind.kernels, start_s=start_s, split_overhead_s=start_s)
    kinds = (replace(kind, kernels=kernels, kernel_overhead_s=start_s),)
    simulator = replace(target.simulator, kinds=tuple(one.simulator for one in kinds))
    return graph, replace(target, kinds=kinds, simulator=simulator)


@given(seed=seeds)
@settings(max_examples=examples(30), deadline=None)
def test_no_plan_with_parts_beats_the_bounds(seed: int) -> None:
    """Random parts of a layer whose attention is a pattern, on random chips."""
    graph, target = tiny(seed)
    rng = np.random.default_rng(seed)
    splits = random_splits(rng, graph)
    assume(splits)
    split = split_graph(graph, splits)
    divisible = np.isin(graph.op_names, [one.op for one in splits])
    roles = loop_roles(split, target.kernel_patterns)
    order = np.arange(split.num_ops, dtype=np.int32)
    placements = [rng.integers(0, 2, split.num_ops).astype(np.int32), np.zeros(split.num_ops, np.int32)]
    for chips in placements:
        for kernels in (fused_within_chips(roles, order, chips), greedy_fusion(roles, order) * 0 + order):
            metrics = evaluate_plan(
                split, target, make_plan(split, target, chips.tolist(), fusion_group=kernels.tolist())
            )
            for objective, seconds in (("latency", metrics.makespan_s), ("throughput", metrics.interval_s)):
                request = Request(objective=objective)
                bound = lower_bound(graph, target, request, divisible)
                assert bound.seconds <= seconds * (1 + 1e-9), (objective, bound.reason)
