"""Padding: buckets, masks, and the way between rows and ops."""

from __future__ import annotations

import numpy as np
import pytest

from go_opt.agents.inputs.features import graph_features
from go_opt.agents.inputs.padding import Bucket, ops_to_rows, pad, rows_to_ops, smallest_bucket
from tests.agents.degenerate import no_edges, one_reader_of_all
from tests.strategies import random_graph, small_mcm, toy_graph


@pytest.mark.parametrize(
    ("num_ops", "bucket"),
    [
        (2, Bucket(128, 128)),
        (129, Bucket(256, 128)),  # 128 edges
        (130, Bucket(256, 256)),  # 129 edges
        (300, Bucket(512, 512)),
    ],
)
def test_buckets_are_powers_of_two(num_ops: int, bucket: Bucket) -> None:
    assert smallest_bucket(one_reader_of_all(num_ops)) == bucket


def test_what_is_real_comes_first_and_the_rest_is_zero() -> None:
    features = graph_features(toy_graph(), small_mcm(3))
    padded = pad(features, Bucket(128, 256))
    assert [int(mask.sum()) for mask in (padded.op_mask, padded.edge_mask)] == [6, 6]
    assert padded.op_mask[:6].all()
    assert padded.edge_mask[:6].all()
    np.testing.assert_array_equal(padded.ops[:6], features.ops)
    assert not padded.ops[6:].any()
    assert padded.edge_mask.shape == (256,)


def test_edges_stand_sorted_by_either_end() -> None:
    graph = random_graph(np.random.default_rng(3), 80)
    features = graph_features(graph, small_mcm(2))
    padded = pad(features, smallest_bucket(graph))
    real = slice(0, features.num_edges)
    by_reader = set(zip(padded.read_from[real], padded.reader_of[real], strict=True))
    by_producer = set(zip(padded.producer_of[real], padded.read_by[real], strict=True))
    assert by_reader == by_producer
    assert len(by_reader) == features.num_edges
    assert (np.diff(padded.reader_of[real]) >= 0).all()
    assert (np.diff(padded.producer_of[real]) >= 0).all()


def test_rows_lead_to_ops_and_back() -> None:
    graph = random_graph(np.random.default_rng(4), 40)
    features, bucket = graph_features(graph, small_mcm(2)), smallest_bucket(graph)
    by_op = np.random.default_rng(5).standard_normal((40, 3))
    rows = ops_to_rows(features, by_op, bucket)
    assert rows.shape == (bucket.ops, 3)
    np.testing.assert_array_equal(rows[0], by_op[features.row_op[0]])
    assert not rows[40:].any()
    np.testing.assert_array_equal(rows_to_ops(features, rows), by_op)


def test_a_graph_without_edges_pads() -> None:
    features = graph_features(no_edges(), small_mcm(2))
    assert not pad(features, smallest_bucket(no_edges())).edge_mask.any()
