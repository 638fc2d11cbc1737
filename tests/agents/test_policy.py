"""A policy asked about one graph: op by op, whatever the padding."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from go_opt.agents.decoding.decode import Outputs
from go_opt.agents.inputs.features import NUM_EXPLORED, graph_features
from go_opt.agents.inputs.padding import Bucket
from go_opt.agents.networks import PolicyOutput
from go_opt.agents.policy.network import to_ops, to_rows, untrained
from tests.agents.permuted import permuted, without_storage
from tests.agents.training.small import (
    BUCKET,
    CONFIG,
    random_outputs,
    small_case,
    trained_parameters,
    trained_policy,
)
from tests.strategies import random_order

CASE = small_case(0)


@pytest.mark.parametrize("bucket", [BUCKET, Bucket(256, 512)])
def test_by_op_and_by_row_are_the_same_numbers(bucket: Bucket) -> None:
    """Rows stand in canonical order, which is not that of storage; the padding is zero."""
    order = random_order(np.random.default_rng(1), CASE.instance.graph)
    features = graph_features(permuted(CASE.instance.graph, order), CASE.instance.target)
    assert (features.row_op != np.arange(features.num_ops)).any()
    by_op = random_outputs(np.random.default_rng(0), CASE)
    rows = to_rows(features, by_op, bucket)
    assert [rows_of.shape for rows_of in rows] == [
        *[(bucket.ops,)] * 2, (2, NUM_EXPLORED),
    ]  # fmt: skip
    assert {rows_of.dtype for rows_of in rows} == {np.dtype(np.float32)}
    for key, of_ops in zip(rows[:2], by_op[2:4], strict=True):
        np.testing.assert_allclose(key[0], of_ops[features.row_op[0]], rtol=1e-6)
        assert not key[features.num_ops :].any()
    for got, expected in zip(to_ops(features, rows, *by_op[:2]), by_op, strict=True):
        np.testing.assert_allclose(got, expected, atol=1e-6)


def test_gradients_by_row_weigh_what_they_weigh_by_op() -> None:
    """One map is the other's transpose: Σ outputs * gradient is the same, padding and all."""
    rng = np.random.default_rng(0)
    gradient = random_outputs(rng, CASE)
    shapes = ((128,), (128,), (2, NUM_EXPLORED))
    rows = PolicyOutput(*(rng.standard_normal(shape) for shape in shapes))  # type: ignore[arg-type]
    by_op = to_ops(CASE.features, rows, gradient.walk_weights, gradient.walk_head)
    by_row = to_rows(CASE.features, gradient, BUCKET)
    of_ops = sum((x * y).sum() for x, y in zip(by_op[2:], gradient[2:], strict=True))
    of_rows = sum((x * y).sum() for x, y in zip(rows, by_row, strict=True))
    assert of_ops == pytest.approx(of_rows, rel=1e-5)


def test_an_untrained_policy_prefers_nothing() -> None:
    said = untrained(CONFIG, 0)(CASE.features)
    assert isinstance(said, Outputs)
    assert said.walk_head.shape == said.schedule_key.shape == (50,)
    assert not any(numbers.any() for numbers in said)


def test_answers_follow_the_ops_not_their_storage() -> None:
    policy = trained_policy()
    order = random_order(np.random.default_rng(0), CASE.instance.graph)
    said = policy(without_storage(CASE.features))
    again = graph_features(permuted(CASE.instance.graph, order), CASE.instance.target)
    of_permuted = policy(without_storage(again))
    for got, expected in zip(of_permuted[1:4], said[1:4], strict=True):
        np.testing.assert_allclose(got, expected[order], atol=1e-5)
    np.testing.assert_allclose(of_permuted.exploration_log_std, said.exploration_log_std, atol=1e-5)
    np.testing.assert_array_equal(said.walk_weights, of_permuted.walk_weights.astype(np.float32))


def test_parameters_make_the_policy() -> None:
    policy = trained_policy(0)
    other = replace(policy, parameters=trained_parameters(1))
    assert np.abs(policy(CASE.features).schedule_key - other(CASE.features).schedule_key).max() > 1e-3
