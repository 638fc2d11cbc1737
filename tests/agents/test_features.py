"""Features: by hand on the toy graph, the same for every storage order, finite always."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings

from go_opt.agents.inputs.features import (
    CHIP_COLUMNS,
    GLOBAL_COLUMNS,
    NUM_EXPLORED,
    OP_COLUMNS,
    STANDARDISED,
    STORED,
    GraphFeatures,
    chip_features,
    graph_features,
)
from go_opt.env import cost_tables, load_target
from go_opt.model.graph import Graph
from tests.agents.degenerate import DEGENERATE, one_op
from tests.agents.permuted import permuted, without_storage
from tests.strategies import (
    chip_kind,
    examples,
    kind_names,
    random_graph,
    random_order,
    random_target,
    seeds,
    small_mcm,
    toy_graph,
)


def column(features: GraphFeatures, name: str) -> np.ndarray:
    return features.ops[:, OP_COLUMNS.index(name)]


def check(features: GraphFeatures) -> None:
    """Shapes as documented, all numbers finite."""
    num_ops = features.num_ops
    assert features.ops.shape == (num_ops, len(OP_COLUMNS))
    assert features.exploration.shape == (num_ops, NUM_EXPLORED)
    assert features.package.shape == (len(GLOBAL_COLUMNS),)
    for numbers in (features.ops, features.exploration, features.package):
        assert numbers.dtype == np.float32
        assert np.isfinite(numbers).all()
    np.testing.assert_array_equal(np.sort(features.row_op), np.arange(num_ops))
    assert (features.edge_src < features.edge_dst).all()  # rows stand in a topological order
    assert (np.diff(features.edge_dst) >= 0).all()


def test_toy_by_hand() -> None:
    features = graph_features(toy_graph(), small_mcm(3))
    check(features)
    # A chain but for the residual: rows stand in the order of the chain.
    assert list(features.row_op) == [0, 1, 2, 3, 4, 5]
    assert list(zip(features.edge_src, features.edge_dst, strict=True)) == [
        (0, 1),
        (1, 2),
        (2, 3),
        (0, 4),
        (3, 4),
        (4, 5),
    ]
    levels = np.linspace(-1, 1, 6)
    np.testing.assert_allclose(column(features, "share of depth"), levels, atol=1e-6)
    np.testing.assert_allclose(column(features, "share of height"), -levels, atol=1e-6)
    np.testing.assert_allclose(column(features, "share of position"), levels, atol=1e-6)
    # Kernels of 3.4, 9, 6, 5, 6 and 14 us.
    done = np.cumsum([3.4, 9, 6, 5, 6, 14]) / 43.4
    np.testing.assert_allclose(column(features, "share of cumulative seconds"), done * 2 - 1, atol=1e-6)
    # The middles of the kernels in the stored order, which is that of the chain.
    middles = (np.cumsum([3.4, 9, 6, 5, 6, 14]) - np.array([3.4, 9, 6, 5, 6, 14]) / 2) / 43.4
    np.testing.assert_allclose(column(features, STORED[0]), middles * 2 - 1, atol=1e-6)
    weights = np.array([10000, 2000, 0, 2000, 0, 10000])
    middles = (np.cumsum(weights) - weights / 2) / 24000
    np.testing.assert_allclose(column(features, STORED[1]), middles * 2 - 1, atol=1e-6)
    np.testing.assert_allclose(column(features, "first chip"), [-1, -1, -1, -1, 0, 1])
    np.testing.assert_allclose(column(features, "last chip"), [-1, 0, 0, 0, 0, 1])
    np.testing.assert_allclose(column(features, "share of chips that may run it"), 1.0)
    np.testing.assert_array_equal(column(features, "matrix"), [0, 1, 0, 1, 0, 1])
    # Weights of 10000, 2000, 2000 and 10000 bytes.
    logs = np.log1p([10000, 2000, 0, 2000, 0, 10000])
    np.testing.assert_allclose(
        column(features, "log weight bytes"), (logs - logs.mean()) / logs.std(), atol=1e-5
    )
    # log10 of 43.4 us over 3 chips, and of the longest op, 14 us, in units of it.
    package = dict(zip(GLOBAL_COLUMNS, features.package, strict=True))
    assert package["log seconds per chip"] == pytest.approx(np.log10(43.4e-6 / 3) + 5, abs=1e-5)
    assert package["log longest op of that"] == pytest.approx(np.log10(14 * 3 / 43.4), abs=1e-5)
    assert package["log link bytes per s"] == pytest.approx(-2)


def test_a_delay_of_dependencies_counts_as_latency_of_links() -> None:
    graph, links = toy_graph(), {"num_chips": 3, "topology": "all_to_all"}
    delayed = graph_features(graph, small_mcm(**links, dependency_overhead_s=2e-6, link_latency_s=1e-6))
    far = graph_features(graph, small_mcm(**links, link_latency_s=3e-6))
    np.testing.assert_allclose(delayed.package, far.package)
    assert (delayed.package != graph_features(graph, small_mcm(**links)).package).sum() == 1


def test_chips_of_two_kinds_share_the_speed() -> None:
    # All 43.4 us are a tenth on the fast kind: of the speed 1 + 1 + 10 it has 10 / 12.
    fast = {
        "sram_bytes_per_s": 1e10,
        "kernel_overhead_s": 1e-7,
        "matrix_flops_per_s": {"bfloat16": 1e10, "int8": 2e10},
        "vector_flops_per_s": {"default": 1e9},
    }
    target = small_mcm(kinds=[chip_kind("slow", 2), chip_kind("fast", 1, **fast)])
    chips = chip_features(cost_tables(toy_graph(), target), target)
    share = chips[:, CHIP_COLUMNS.index("log share of the package's speed on this graph")]
    np.testing.assert_allclose(share, np.log(np.array([1, 1, 10]) / 12 * 3), rtol=1e-5)


@settings(max_examples=examples(150))
@given(seed=seeds)
def test_finite_and_standardised_on_any_graph_and_target(seed: int) -> None:
    rng = np.random.default_rng(seed)
    target = random_target(rng)
    graph = random_graph(rng, int(rng.integers(1, 60)), kinds=kind_names(target))
    features = graph_features(graph, target)
    check(features)
    chips = chip_features(cost_tables(graph, target), target)
    assert chips.shape == (target.num_chips, len(CHIP_COLUMNS))
    assert np.isfinite(chips).all()
    by_column = features.ops[:, : len(STANDARDISED)].astype(np.float64)
    np.testing.assert_allclose(by_column.mean(axis=0), 0.0, atol=1e-5)
    spread = by_column.std(axis=0)
    assert all(s == pytest.approx(1, abs=1e-4) or s == 0 for s in spread)
    # Keys of unit normal noise have at most the variance one, less where a column says nothing.
    keys, classes = np.split(features.exploration.astype(np.float64), [len(STANDARDISED)], axis=1)
    explored = (keys**2).sum(axis=1).mean()
    assert explored == pytest.approx((spread > 0).mean(), abs=1e-4)
    np.testing.assert_array_equal(classes.sum(axis=1), 1.0)


@pytest.mark.parametrize("build", DEGENERATE)
@pytest.mark.parametrize("num_chips", [1, 2, 70])
def test_degenerate_graphs(build: Callable[[], Graph], num_chips: int) -> None:
    check(graph_features(build(), small_mcm(num_chips, kernel_overhead_s=0.0)))


def test_one_op_says_nothing_of_itself() -> None:
    features = graph_features(one_op(), small_mcm(2))
    np.testing.assert_array_equal(features.exploration[:, : len(STANDARDISED)], 0.0)


@settings(max_examples=examples(100))
@given(seed=seeds)
def test_the_order_of_storage_does_not_matter(seed: int) -> None:
    rng = np.random.default_rng(seed)
    target = random_target(rng)
    graph = random_graph(rng, int(rng.integers(1, 60)), kinds=kind_names(target))
    order = random_order(rng, graph)
    features = without_storage(graph_features(graph, target))
    again = without_storage(graph_features(permuted(graph, order), target))
    np.testing.assert_array_equal(order[again.row_op], features.row_op)
    for name in ("op_type", "ops", "exploration", "edge_src", "edge_dst", "package"):
        np.testing.assert_array_equal(getattr(again, name), getattr(features, name), err_msg=name)


@pytest.mark.parametrize("name", ["mcm-6x6", "mcm-2x2", "gpu-4"])
def test_shipped_targets(name: str) -> None:
    check(graph_features(toy_graph(), load_target(name)))
