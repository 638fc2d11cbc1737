"""The policy's features: a graph on a target as plain arrays.

Axes: ``N`` ops, ``E`` edges. Rows of ops are in canonical order
(:mod:`go_opt.agents.inputs.canonical`); ``row_op`` maps them to ops. All but the columns ``STORED`` are
the same for every storage order. Columns about ops are
standardised within the graph; the global features contain the means and spreads, so that the
policy also knows the scale.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import fsum
from typing import Final

import numpy as np
from numpy.typing import NDArray

from go_opt.agents.inputs.canonical import canonical_order
from go_opt.agents.inputs.chip_bounds import chip_bounds
from go_opt.agents.inputs.op_types import op_type_rows
from go_opt.agents.inputs.target_features import LEAST_S, package_features
from go_opt.common.arrays import FloatArray, IntArray
from go_opt.env import CostTables, Target, cost_tables, depth, height
from go_opt.env.cost.op_quantities import bytes_out, smallest_op_s, standardise, weight_bytes
from go_opt.env.model.traffic import BORDER_BUFFERS
from go_opt.model.graph import OP_CLASSES, Graph
from go_opt.solver import placement_problem
from go_opt.solver.problem.sequence import kernel_sequence

STANDARDISED: Final = (
    "log flops",
    "log bytes out",
    "log weight bytes",
    "log seconds",
    "log producers",
    "log readers",
    "depth",
    "height",
    "position",
    "cumulative seconds",
    "cumulative weight bytes",
)
# Along the order of storage, which is the one that placements cut.
STORED: Final = (
    "share of seconds before its middle in the stored order",
    "share of weight bytes before its middle in the stored order",
    "log link seconds of a cut right before it, of the seconds of a chip",
    "log bytes of a cut right before it, of a chip's SRAM",
)
OP_COLUMNS: Final = (
    *STANDARDISED,
    "share of depth",
    "share of height",
    "share of position",
    "share of cumulative seconds",
    "share of cumulative weight bytes",
    "first chip",
    "last chip",
    "share of chips that may run it",
    *STORED,
    *OP_CLASSES,
)
# Columns that may reasonably decide orders and kernels: keys are perturbed along them.
EXPLORED: Final = (*STANDARDISED, *OP_CLASSES)
NUM_EXPLORED: Final = len(EXPLORED)  # F, columns of the exploration features

_SCALE_OF_LOGS: Final = 10.0  # natural logs of sizes go up to 30
_LEAST_SHARE: Final = 1e-2  # less is as good as nothing


@dataclass(frozen=True, eq=False)
class GraphFeatures:
    """A graph on a target, for the policy."""

    row_op: IntArray  # [N] op of row i
    op_type: IntArray  # [N] row of the embedding table, below NUM_OP_TYPES
    ops: NDArray[np.float32]  # [N, len(OP_COLUMNS)]
    exploration: NDArray[np.float32]  # [N, F] directions for perturbing keys: variance 1 in all, and classes
    edge_src: IntArray  # [E] row of the producer
    edge_dst: IntArray  # [E] row of the reader, ascending, then by producer
    package: NDArray[np.float32]  # [NUM_GLOBAL] of graph and target as a whole

    @property
    def num_ops(self) -> int:
        return len(self.row_op)

    @property
    def num_edges(self) -> int:
        return len(self.edge_src)


def graph_features(graph: Graph, target: Target) -> GraphFeatures:
    """The features of ``graph`` on ``target``."""
    tables = cost_tables(graph, target)
    op_type = op_type_rows(graph.op_types)
    sizes = np.stack([graph.op_flops, bytes_out(tables), weight_bytes(tables)], axis=1)
    row_op = canonical_order(graph, op_type, sizes)
    quantities = _quantities(graph, tables, sizes, row_op)
    standardised, mean, spread = standardise(quantities)
    edge_src, edge_dst = _row_edges(graph, row_op)
    levels = quantities[:, 6:]  # depth, height, position, and amounts before the op
    classes = np.eye(len(OP_CLASSES))[graph.op_class[row_op]]
    ops = np.concatenate(
        [
            standardised,
            levels / np.maximum(levels.max(axis=0), 1e-30) * 2 - 1,
            _chip_columns(graph, target, tables, row_op),
            _stored_columns(tables, target, sizes[:, 2])[row_op],
            classes,
        ],
        axis=1,
    )
    scale = np.concatenate([mean[:4], spread[:4]]) / _SCALE_OF_LOGS
    return GraphFeatures(
        row_op=row_op,
        op_type=op_type[row_op],
        ops=ops.astype(np.float32),
        exploration=np.hstack([standardised / np.sqrt(len(STANDARDISED)), classes]).astype(np.float32),
        edge_src=edge_src,
        edge_dst=edge_dst,
        package=np.concatenate([package_features(graph, tables, target), scale]).astype(np.float32),
    )


def _quantities(graph: Graph, tables: CostTables, sizes: FloatArray, row_op: IntArray) -> FloatArray:
    """[N, len(STANDARDISED)] of the rows."""
    seconds = smallest_op_s(tables)[row_op]
    return np.column_stack(
        [
            np.log1p(sizes[row_op]),
            np.log(seconds + 1e-9),
            np.log1p(np.diff(graph.predecessors[0])[row_op]),
            np.log1p(np.diff(graph.successors[0])[row_op]),
            depth(graph)[row_op],
            height(graph)[row_op],
            np.arange(graph.num_ops),
            np.cumsum(seconds),
            np.cumsum(sizes[row_op, 2]),
        ]
    )


def _chip_columns(graph: Graph, target: Target, tables: CostTables, row_op: IntArray) -> FloatArray:
    """[N, 3] first and last chip from -1 to 1, and the share of chips that may run the op."""
    rank = np.empty(graph.num_ops, dtype=np.int32)
    rank[row_op] = np.arange(graph.num_ops)
    first, last = chip_bounds(placement_problem(graph, target), rank)
    last_chip = max(1, target.num_chips - 1)
    may_run = tables.can_run[tables.chip_kind].mean(axis=0)
    return np.column_stack([first / last_chip * 2 - 1, last / last_chip * 2 - 1, may_run])[row_op]


def _stored_columns(tables: CostTables, target: Target, weight_bytes: FloatArray) -> FloatArray:
    """[N, len(STORED)] of the ops along the order of storage."""
    seconds = smallest_op_s(tables)
    order = np.arange(tables.num_ops, dtype=np.int32)
    crossing = kernel_sequence(tables, order, order, adjacent=False).crossing_bytes[:-1]
    rates = target.topology.rate_bytes_per_s
    chip_s = fsum(seconds) / target.num_chips + LEAST_S
    link_s = crossing / (rates.mean() if len(rates) else 1e10)
    sram_bytes = BORDER_BUFFERS * crossing / tables.sram_bytes.mean()
    return np.column_stack(
        [
            _middles(seconds),
            _middles(weight_bytes),
            np.log10(link_s / chip_s + _LEAST_SHARE),
            np.log10(sram_bytes + _LEAST_SHARE),
        ]
    )


def _middles(amount: FloatArray) -> FloatArray:
    """[N] the share of the whole before the middle of each, from -1 to 1."""
    before: FloatArray = np.cumsum(amount) - 0.5 * amount
    return before / max(float(amount.sum()), 1e-30) * 2 - 1


def _row_edges(graph: Graph, row_op: IntArray) -> tuple[IntArray, IntArray]:
    row_of = np.empty(graph.num_ops, dtype=np.int32)
    row_of[row_op] = np.arange(graph.num_ops)
    src, dst = row_of[graph.edge_src], row_of[graph.edge_dst]
    by_reader = np.lexsort((src, dst))
    return src[by_reader], dst[by_reader]
