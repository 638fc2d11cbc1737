"""The whole network: what must not change its answer, what must, and what it costs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache, partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from go_opt.agents.inputs.features import NUM_EXPLORED, OP_COLUMNS, GraphFeatures, graph_features
from go_opt.agents.inputs.padding import Bucket, PaddedGraph, pad, rows_to_ops, smallest_bucket
from go_opt.agents.networks import PolicyConfig, PolicyOutput, initial_parameters, policy_outputs
from go_opt.env import Target
from go_opt.model.graph import Graph
from tests.agents.degenerate import DEGENERATE, one_op
from tests.agents.permuted import permuted, without_storage
from tests.strategies import random_graph, random_order, small_mcm, toy_graph

SMALL = PolicyConfig(width=16, graphsage_layers=1, attention_layers=1, num_heads=2, segment_ops=16)
BUCKET = Bucket(256, 512)  # of all graphs here that fit it: compiling is what takes the time
OF_OPS = ("schedule_key", "fusion_key")


_initial = cache(initial_parameters)  # a fifth of a second


def trained_parameters(config: PolicyConfig = SMALL, seed: int = 0) -> nnx.State:
    """As after training: nothing is zero any more."""
    rng = np.random.default_rng(seed)
    return jax.tree.map(
        lambda leaf: leaf + 0.3 * rng.standard_normal(leaf.shape, dtype=np.float32),
        _initial(config, seed),
    )


def graph_of(num_ops: int, seed: int = 0) -> Graph:
    return random_graph(np.random.default_rng(seed), num_ops)


def answer(features: GraphFeatures, padded: PaddedGraph) -> dict[str, np.ndarray]:
    """Outputs about real ops, in the graph's own order of ops."""
    output = policy_outputs(SMALL, trained_parameters(), padded)
    by_op = {name: rows_to_ops(features, np.asarray(getattr(output, name))) for name in OF_OPS}
    return by_op | {"exploration_log_std": np.asarray(output.exploration_log_std)}


def assert_same(got: dict[str, np.ndarray], expected: dict[str, np.ndarray]) -> None:
    for name, numbers in expected.items():
        assert np.isfinite(numbers).all()
        np.testing.assert_allclose(got[name], numbers, rtol=1e-5, atol=1e-5, err_msg=name)


def padded_of(
    graph: Graph, target: Target, seen: Callable[[GraphFeatures], GraphFeatures] = lambda features: features
) -> tuple[GraphFeatures, PaddedGraph]:
    features = seen(graph_features(graph, target))
    least = smallest_bucket(graph)
    return features, pad(features, Bucket(*map(max, least, BUCKET)))


def test_outputs_have_the_shape_of_the_bucket() -> None:
    _, padded = padded_of(graph_of(150), small_mcm(3))
    output = policy_outputs(SMALL, trained_parameters(), padded)
    assert jax.tree.map(jnp.shape, output) == PolicyOutput((256,), (256,), (2, NUM_EXPLORED))
    assert all(leaf.dtype == jnp.float32 for leaf in output)
    for name in OF_OPS:
        np.testing.assert_array_equal(getattr(output, name)[150:], 0.0)


@pytest.mark.parametrize("bucket", [Bucket(128, 256), Bucket(512, 1024)])
def test_the_bucket_does_not_matter(bucket: Bucket) -> None:
    features, padded = padded_of(graph_of(100), small_mcm(3))
    assert_same(answer(features, pad(features, bucket)), answer(features, padded))


def test_what_the_padding_holds_does_not_matter() -> None:
    features, padded = padded_of(graph_of(100), small_mcm(3))
    rng = np.random.default_rng(1)

    def litter(rows: np.ndarray, real: int) -> np.ndarray:
        rubbish = rng.integers(-1000, 1000, rows.shape).astype(rows.dtype)
        if rows.dtype == np.float32:
            rubbish = rng.choice(np.array([np.nan, np.inf, 1e30], np.float32), rows.shape)
        rubbish[:real] = rows[:real]
        return rubbish

    littered = padded._replace(
        **{name: litter(getattr(padded, name), features.num_ops) for name in ("op_type", "ops")},
        **{
            name: litter(getattr(padded, name), features.num_edges)
            for name in ("reader_of", "read_from", "producer_of", "read_by")
        },
    )
    assert_same(answer(features, littered), answer(features, padded))


@pytest.mark.parametrize("seed", range(3))
def test_the_order_of_storage_changes_nothing_but_the_order(seed: int) -> None:
    graph = graph_of(200, seed)
    order = random_order(np.random.default_rng(seed), graph)
    assert (order != np.arange(200)).any()
    expected = answer(*padded_of(graph, small_mcm(5), without_storage))
    got = answer(*padded_of(permuted(graph, order), small_mcm(5), without_storage))
    assert_same(got, {name: x[order] if name in OF_OPS else x for name, x in expected.items()})


def test_targets_are_told_apart_by_their_rates() -> None:
    slow = answer(*padded_of(toy_graph(), small_mcm(2)))
    fast = answer(*padded_of(toy_graph(), small_mcm(2, matrix_flops_per_s={"bfloat16": 1e10})))
    for name in OF_OPS:
        assert np.abs(slow[name] - fast[name]).max() > 1e-3


def test_rounds_refine() -> None:
    features, padded = padded_of(toy_graph(), small_mcm(3))
    # The same parameters serve any number of rounds.
    once = policy_outputs(replace(SMALL, rounds=1), trained_parameters(), padded)
    twice = answer(features, padded)
    assert np.abs(twice["schedule_key"] - rows_to_ops(features, np.asarray(once.schedule_key))).max() > 1e-3


def test_one_trace_for_each_bucket() -> None:
    traced = []

    @partial(jax.jit, static_argnames="config")
    def outputs(config: PolicyConfig, parameters: nnx.State, padded: PaddedGraph) -> PolicyOutput:
        traced.append(padded.ops.shape)
        return policy_outputs(config, parameters, padded)

    for num_ops, num_chips, seed in ((30, 2, 0), (200, 8, 1), (90, 5, 2), (300, 3, 0)):
        _, padded = padded_of(graph_of(num_ops), small_mcm(num_chips))
        outputs(SMALL, trained_parameters(seed=seed), padded)
    assert traced == [(256, len(OP_COLUMNS)), (512, len(OP_COLUMNS))]


@partial(jax.jit, static_argnames="config")
@jax.grad
def gradient(parameters: nnx.State, padded: PaddedGraph, config: PolicyConfig) -> jax.Array:
    """Of something of every output, as a policy gradient would want."""
    output = policy_outputs(config, parameters, padded)
    of_ops = output.schedule_key + output.fusion_key
    weight = jnp.cos(jnp.arange(len(of_ops), dtype=jnp.float32))
    return jnp.sum(jnp.where(padded.op_mask, of_ops * weight, 0.0)) + jnp.sum(output.exploration_log_std)


@pytest.mark.parametrize("rounds", [1, 2])
def test_every_parameter_has_a_gradient(rounds: int) -> None:
    config = replace(SMALL, rounds=rounds)
    _, padded = padded_of(graph_of(60), small_mcm(3))
    for path, leaf in nnx.to_flat_state(gradient(trained_parameters(config), padded, config=config)):
        numbers = np.asarray(leaf[...])
        assert np.isfinite(numbers).all(), path
        # The first round knows of no decisions before it.
        assert (np.abs(numbers).max() > 1e-7) == (rounds > 1 or path != ("decided", "kernel")), path


def test_the_padding_has_no_gradient() -> None:
    features, padded = padded_of(graph_of(60), small_mcm(3))
    wide = pad(features, Bucket(512, 512))
    gradients = [gradient(trained_parameters(), batch, config=SMALL) for batch in (padded, wide)]
    for narrow_leaf, wide_leaf in zip(*map(jax.tree.leaves, gradients), strict=True):
        scale = np.abs(narrow_leaf).max()
        np.testing.assert_allclose(wide_leaf / scale, narrow_leaf / scale, atol=1e-3)  # sums of float32


@pytest.mark.parametrize("build", DEGENERATE)
def test_degenerate_graphs_have_answers_and_gradients(build: Callable[[], Graph]) -> None:
    features, padded = padded_of(build(), small_mcm(2))
    for numbers in answer(features, padded).values():
        assert np.isfinite(numbers).all()
    of_parameters = gradient(trained_parameters(), padded, config=SMALL)
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(of_parameters))


def test_superposition_adds_nothing_but_scales_that_begin_at_one() -> None:
    _, padded = padded_of(graph_of(100), small_mcm(3))
    plain = replace(SMALL, superposition=False)
    shared = dict(nnx.to_flat_state(trained_parameters(plain)))
    with_scales = dict(nnx.to_flat_state(initial_parameters(SMALL, 0)))
    assert all(path[-2] == "scale" for path in with_scales.keys() - shared.keys())
    assert len(with_scales) - len(shared) == 2 * (SMALL.attention_layers + 2)  # kernels and biases
    parameters = nnx.from_flat_state(list((with_scales | shared).items()))
    conditioned = policy_outputs(SMALL, parameters, padded)
    for output, expected in zip(
        conditioned, policy_outputs(plain, nnx.from_flat_state(list(shared.items())), padded), strict=True
    ):
        np.testing.assert_allclose(output, expected, rtol=1e-6, atol=1e-5)


def test_same_input_same_answer() -> None:
    features, padded = padded_of(graph_of(100), small_mcm(3))
    first, again = answer(features, padded), answer(features, padded)
    for name, numbers in first.items():
        np.testing.assert_array_equal(again[name], numbers)


def test_cost_is_linear_in_ops() -> None:
    # All segments in one chunk: XLA counts the body of a loop once, whatever its length.
    config = replace(SMALL, chunk_segments=1024, rounds=1)
    features = graph_features(one_op(), small_mcm(2))

    def flops(num_ops: int) -> float:
        padded = pad(features, Bucket(num_ops, num_ops))
        compiled = policy_outputs.lower(config, initial_parameters(config, 0), padded).compile()
        return float(compiled.cost_analysis()["flops"])

    # Four times, less what the package costs whatever the ops.
    assert 3.5 < flops(8192) / flops(2048) <= 4.0


@pytest.mark.parametrize(
    "sizes",
    [{"segment_ops": 48}, {"segment_ops": 256}, {"chunk_segments": 0}, {"width": 100, "num_heads": 8}],
)
def test_sizes_that_do_not_fit_are_refused(sizes: dict[str, int]) -> None:
    with pytest.raises(ValueError, match=next(iter(sizes))):
        PolicyConfig(**sizes)
