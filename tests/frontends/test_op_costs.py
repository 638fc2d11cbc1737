"""Every expected number is worked by hand beside it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from go_opt.model.matrix_flops import conv_flops, matmul_flops
from go_opt.model.op_costs import (
    OpCost,
    OpSignature,
    is_elementwise,
    is_reduction,
    is_view,
    op_cost,
)


def cost(op_type: str, inputs: Sequence[Any], outputs: Sequence[Any], **attributes: Any) -> OpCost:
    return op_cost(OpSignature(op_type, tuple(inputs), tuple(outputs), attributes))


@pytest.mark.parametrize(
    ("op_type", "inputs", "outputs", "attributes", "flops"),
    [
        # 3·5 outputs, each a dot product of 4: 2·15·4.
        ("MatMul", [(3, 4), (4, 5)], [(3, 5)], {}, 120),
        # Batches of 2 and 7 broadcast: 14 · 2·3·5·4.
        ("MatMul", [(7, 2, 3, 4), (2, 4, 5)], [(7, 2, 3, 5)], {}, 1680),
        ("MatMul", [(4,), (4,)], [()], {}, 8),
        # A is [k, m]: 2·3·5·4, and 15 for C.
        ("Gemm", [(4, 3), (4, 5), (5,)], [(3, 5)], {"transA": 1}, 135),
        ("Gemm", [(3, 4), (4, 5)], [(3, 5)], {}, 120),
        # 1·8·10·10 outputs of 6·3·3 products: 2·800·54, and 800 for the bias.
        ("Conv", [(1, 6, 10, 10), (8, 6, 3, 3), (8,)], [(1, 8, 10, 10)], {}, 87_200),
        # Depthwise: the weight says that each output sees one channel, 2·600·9.
        ("Conv", [(1, 6, 10, 10), (6, 1, 3, 3)], [(1, 6, 10, 10)], {"group": 6}, 10_800),
        # Every one of 1·4·5·5 inputs meets 3·2·2 weights: 2·100·12.
        ("ConvTranspose", [(1, 4, 5, 5), (4, 3, 2, 2)], [(1, 3, 10, 10)], {}, 2400),
        # x, scales and zero points come before and after the weight: 2·(2·4·4)·(3·1·1), and 32.
        (
            "QLinearConv",
            [(1, 3, 4, 4), (), (), (2, 3, 1, 1), (), (), (), (), (2,)],
            [(1, 2, 4, 4)],
            {},
            224,
        ),
        # ij,jk->ik with 3, 4, 5.
        ("Einsum", [(3, 4), (4, 5)], [(3, 5)], {"equation": "ij,jk->ik"}, 120),
        # Batch of 2 by an ellipsis: 2 · 120.
        ("Einsum", [(2, 3, 4), (2, 4, 5)], [(2, 3, 5)], {"equation": "...ij,...jk->...ik"}, 240),
        # Nothing is summed: 3·4 products.
        ("Einsum", [(3,), (4,)], [(3, 4)], {"equation": "i,j->ij"}, 12),
        # From the left: ij,jk costs 2·3·4·5, then ik,kl 2·3·5·6.
        ("Einsum", [(3, 4), (4, 5), (5, 6)], [(3, 6)], {"equation": "ij,jk,kl->il"}, 300),
        # 7 steps · 2 rows · (4·3·5 + 4·3·3 weights) · 2, and 4 per gate: 14·12·4.
        ("LSTM", [(7, 2, 5), (1, 12, 5), (1, 12, 3)], [(7, 1, 2, 3)], {}, 2 * 14 * 96 + 672),
        # 4 heads, 6 rows, 6 columns, depth 8: 2·4·36·8 twice, and 6 per score: 6·4·36.
        ("Attention", [(1, 4, 6, 8)] * 3, [(1, 4, 6, 8)], {}, 2 * 2304 + 864),
        # Causal: rows see 1 to 6 columns, 21 scores a head; the last 2 of 6 rows see 5 and 6.
        ("Attention", [(1, 4, 6, 8)] * 3, [(1, 4, 6, 8)], {"is_causal": 1}, 2 * 2 * 4 * 21 * 8 + 6 * 4 * 21),
        (
            "GroupQueryAttention",
            [(1, 2, 32), (1, 2, 16), (1, 2, 16), (1, 2, 4, 8), (1, 2, 4, 8)],
            [(1, 2, 32), (1, 2, 6, 8), (1, 2, 6, 8)],
            {"num_heads": 4, "kv_num_heads": 2},
            2 * 2 * 11 * 32 + 6 * 4 * 11,
        ),
        # The same in the packed layout, with 2 past columns: 6·8 scores per head.
        (
            "Attention",
            [(1, 6, 32), (1, 6, 32), (1, 6, 32), None, (1, 4, 2, 8), (1, 4, 2, 8)],
            [(1, 6, 32)],
            {"q_num_heads": 4, "kv_num_heads": 4},
            2 * 2 * 48 * 32 + 6 * 4 * 48,
        ),
    ],
)
def test_matrix_ops(
    op_type: str, inputs: list[Any], outputs: list[Any], attributes: dict[str, Any], flops: float
) -> None:
    answer = cost(op_type, inputs, outputs, **attributes)
    assert answer.op_class == "matrix"
    assert answer.flops == flops


@pytest.mark.parametrize(
    ("op_type", "inputs", "outputs", "attributes", "flops"),
    [
        ("Add", [(2, 3), (3,)], [(2, 3)], {}, 6),
        ("Sum", [(2, 3)] * 4, [(2, 3)], {}, 18),  # four inputs, three additions
        ("Sigmoid", [(2, 3)], [(2, 3)], {}, 18),  # exp, add, divide
        ("Softmax", [(2, 3)], [(2, 3)], {}, 30),  # maximum, subtract, exp, sum, divide
        ("ReduceMean", [(2, 30)], [(2, 1)], {}, 60),  # of the 60 inputs, not of the 2 outputs
        ("MaxPool", [(1, 2, 8, 8)], [(1, 2, 4, 4)], {"kernel_shape": [3, 3]}, 288),  # 32 · 9
        ("GlobalAveragePool", [(1, 2, 8, 8)], [(1, 2, 1, 1)], {}, 128),
        ("LRN", [(1, 4, 2, 2)], [(1, 4, 2, 2)], {"size": 5}, 160),  # 16 · 2 · 5
        ("Resize", [(1, 1, 2, 2)], [(1, 1, 4, 4)], {"mode": "linear"}, 112),  # 16 · 7
        ("NobodyKnows", [(5,)], [(2, 3), (9,)], {}, 6),
        ("NobodyKnows", [], [], {}, 0),
    ],
)
def test_vector_ops(
    op_type: str, inputs: list[Any], outputs: list[Any], attributes: dict[str, Any], flops: float
) -> None:
    answer = cost(op_type, inputs, outputs, **attributes)
    assert answer.op_class == "vector"
    assert answer.flops == flops


def test_data_movement_costs_no_flops() -> None:
    for op_type in ("Transpose", "Concat", "Pad", "Tile", "DepthToSpace", "ScatterND"):
        assert cost(op_type, [(4, 4)], [(4, 4)]) == OpCost("data_movement", 0.0, (None,))
    assert cost("Resize", [(2, 2)], [(4, 4)]).op_class == "data_movement"


def test_an_embedding_touches_its_rows_only() -> None:
    # 6 rows of 8 of a table of 1000 rows; all six indices.
    assert cost("Gather", [(1000, 8), (6,)], [(6, 8)]).touched == (48, None)
    # More is asked for than there is.
    assert cost("Gather", [(2, 8), (6,)], [(6, 8)]).touched == (16, None)


def test_selections_touch_what_they_write_and_arguments_nothing() -> None:
    assert cost("Slice", [(10, 4), (1,), (1,)], [(3, 4)]).touched == (12, 0, 0)
    assert cost("Split", [(10, 4), (2,)], [(3, 4), (2, 4)]).touched == (20, 0)
    assert cost("ReduceSum", [(10, 4), (1,)], [(10, 1)]).touched == (None, 0)


def test_roles_do_not_overlap() -> None:
    names = ["Add", "Reshape", "Softmax", "MaxPool", "Transpose", "Conv", "Where", "TopK", "Expand", "New"]
    roles = {name: (is_view(name), is_elementwise(name), is_reduction(name)) for name in names}
    assert all(sum(role) <= 1 for role in roles.values())
    assert [name for name in names if is_view(name)] == ["Reshape", "Expand"]
    assert [name for name in names if is_elementwise(name)] == ["Add", "Where"]
    assert [name for name in names if is_reduction(name)] == ["Softmax", "MaxPool"]


def test_formulas_for_other_frontends() -> None:
    assert matmul_flops(2, 3, 5, 4) == 240
    assert conv_flops(800, 54) == 86_400
