"""Rows of op types: one each for known names, a stable bucket for any other."""

from __future__ import annotations

import numpy as np

from go_opt.agents.inputs.features import KNOWN_OP_TYPES, NUM_HASH_BUCKETS, NUM_OP_TYPES, op_type_rows
from go_opt.env import load_zoo
from tests.zoo import zoo_sample


def test_known_types_have_a_row_each_behind_the_buckets() -> None:
    rows = op_type_rows(KNOWN_OP_TYPES)
    assert len(set(KNOWN_OP_TYPES)) == len(KNOWN_OP_TYPES)
    np.testing.assert_array_equal(rows, np.arange(NUM_HASH_BUCKETS, NUM_OP_TYPES))


def test_unknown_types_are_hashed_alike_everywhere() -> None:
    # CRC-32 of "123456789" is 0xCBF43926, the check value of its definition; its last five bits are 6.
    rows = op_type_rows(["123456789", "MatMul", "123456789"])
    assert list(rows) == [6, NUM_HASH_BUCKETS + KNOWN_OP_TYPES.index("MatMul"), 6]
    others = op_type_rows([f"custom{i}" for i in range(1000)])
    assert set(others) == set(range(NUM_HASH_BUCKETS))


def test_nearly_all_ops_of_the_zoo_are_known() -> None:
    rows = np.concatenate([op_type_rows(load_zoo(name).op_types) for name in zoo_sample()])
    assert (rows >= NUM_HASH_BUCKETS).mean() > 0.99
