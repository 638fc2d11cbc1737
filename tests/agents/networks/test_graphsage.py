"""GraphSAGE: aggregation against its twin, direction, and what padding may hold."""

from __future__ import annotations

import jax
import numpy as np
import pytest
from flax import nnx
from hypothesis import given, settings

from go_opt.agents.inputs.features import graph_features
from go_opt.agents.inputs.padding import pad, smallest_bucket
from go_opt.agents.networks import GraphSageLayer, aggregate
from tests.agents.networks import numpy_twin
from tests.strategies import examples, seeds, small_mcm, toy_graph


@settings(max_examples=examples(50))
@given(seed=seeds)
def test_aggregation_is_that_of_its_twin(seed: int) -> None:
    rng = np.random.default_rng(seed)
    num_ops, num_edges, num_real = 12, 20, int(rng.integers(0, 21))
    messages = rng.random((num_ops, 3), dtype=np.float32)
    edge_mask = np.arange(num_edges) < num_real
    destination = rng.integers(0, num_ops, num_edges).astype(np.int32)
    destination[:num_real].sort()
    source = rng.integers(-5, 2 * num_ops, num_edges).astype(np.int32)  # padding: anything
    source[:num_real] %= num_ops
    np.testing.assert_allclose(
        jax.jit(aggregate)(messages, source, destination, edge_mask),
        numpy_twin.aggregate(messages, source, destination, edge_mask),
        atol=1e-6,
    )


def test_by_hand() -> None:
    # 0 -> 2 <- 1: op 2 receives [1, 4] and [3, 2], mean [2, 3], maximum [3, 4].
    messages = np.array([[1, 4], [3, 2], [9, 9]], np.float32)
    source, destination = np.array([0, 1], np.int32), np.array([2, 2], np.int32)
    received = aggregate(messages, source, destination, np.array([True, True]))
    np.testing.assert_array_equal(received, [[0, 0, 0, 0], [0, 0, 0, 0], [2, 3, 3, 4]])


@pytest.mark.parametrize(
    ("layer_part", "changed"),
    # Of the toy's embed -> dense, add and add -> logits: what a change of `add` reaches.
    [("to_producers", [5]), ("to_readers", [0, 3])],
)
def test_producers_and_readers_are_told_apart(layer_part: str, changed: list[int]) -> None:
    padded = pad(graph_features(toy_graph(), small_mcm(2)), smallest_bucket(toy_graph()))
    layer = GraphSageLayer(8, rngs=nnx.Rngs(0))
    # With one direction silent, only the other carries the change.
    silent = getattr(layer, layer_part)
    silent.kernel[...] = silent.kernel[...] * 0
    ops = np.random.default_rng(0).standard_normal((len(padded.op_mask), 8)).astype(np.float32)
    other = ops.copy()
    other[4] *= -2
    difference = np.abs(np.asarray(layer(other, padded) - layer(ops, padded))).max(axis=1)
    assert sorted(set(np.flatnonzero(difference)) - {4}) == changed
