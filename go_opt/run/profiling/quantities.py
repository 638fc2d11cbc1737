"""The quantities that determine the seconds of ops and segments."""

from __future__ import annotations

from typing import Final

import numpy as np
import onnx_ir as ir

from go_opt.common.arrays import FloatArray
from go_opt.env.cost import CostTables, cost_tables
from go_opt.env.cost.op_quantities import bytes_out
from go_opt.env.target import Target
from go_opt.model.graph import MATRIX, VECTOR, Graph

QUANTITIES: Final = (
    "matrix FLOP",
    "depthwise FLOP",
    "vector FLOP",
    "byte moved",
    "transcendental element",
    "op",
)
_TRANSCENDENTAL: Final = frozenset(
    "Acos Acosh Asin Asinh Atan Atanh BiasGelu Celu Cos Cosh Elu Erf Exp FastGelu Gelu Log LogSoftmax Mish "  # noqa: SIM905
    "Pow Selu Sigmoid Sin Sinh Softmax Softplus Swish Tan Tanh".split()
)


def op_quantities(whole: ir.Graph, graph: Graph, target: Target) -> FloatArray:
    """[N, len(QUANTITIES)] of each op."""
    tables: CostTables = cost_tables(graph, target)
    node_of = {node.name: node for node in whole}
    is_grouped = np.array([_groups(node_of[name]) > 1 for name in graph.op_names])
    is_matrix = graph.op_class == MATRIX
    elements = bytes_out(tables) / 4.0  # float32
    is_transcendental = np.isin(graph.op_types, list(_TRANSCENDENTAL))
    return np.stack(
        [
            graph.op_flops * (is_matrix & ~is_grouped),
            graph.op_flops * (is_matrix & is_grouped),
            graph.op_flops * (graph.op_class == VECTOR),
            tables.op_bytes().astype(np.float64),
            elements * is_transcendental,
            np.ones(graph.num_ops),
        ],
        axis=1,
    )


def _groups(node: ir.Node) -> int:
    group = node.attributes.get("group")
    return 1 if group is None else int(group.as_int())
