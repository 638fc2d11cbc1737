"""The quantities that determine the seconds of ops and segments."""

from __future__ import annotations

from typing import Final

import numpy as np

from go_opt.common.arrays import FloatArray
from go_opt.env.cost import CostTables, cost_tables
from go_opt.env.cost.op_quantities import bytes_out
from go_opt.env.target import Target
from go_opt.model.graph import MATRIX, VECTOR, Graph

QUANTITIES: Final = ("matrix FLOP", "vector FLOP", "byte moved", "op", "transcendental element")
_TRANSCENDENTAL: Final = frozenset(
    "Acos Acosh Asin Asinh Atan Atanh BiasGelu Celu Cos Cosh Elu Erf Exp FastGelu Gelu LRN Log LogSoftmax "  # noqa: SIM905
    "Mish Pow Selu Sigmoid Sin Sinh Softmax Softplus Swish Tan Tanh".split()
)


def op_quantities(graph: Graph, target: Target) -> FloatArray:
    """[N, len(QUANTITIES)] of each op."""
    tables: CostTables = cost_tables(graph, target)
    is_transcendental = np.isin(graph.op_types, list(_TRANSCENDENTAL))
    return np.stack(
        [
            graph.op_flops * (graph.op_class == MATRIX),
            graph.op_flops * (graph.op_class == VECTOR),
            tables.op_bytes().astype(np.float64),
            np.ones(graph.num_ops),
            bytes_out(tables) / 4.0 * is_transcendental,  # float32
        ],
        axis=1,
    )
