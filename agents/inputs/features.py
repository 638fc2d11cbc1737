"""The policy's features: a graph on a target as plain arrays.

Axes: ``N`` ops, ``E`` edges. Rows of ops are in canonical order
(:func:`canonical_order`); ``row_op`` maps them to ops. All but the columns ``STORED`` are
the same for every storage order. Columns about ops are
standardised within the graph; the global features contain the means and spreads, so that the
policy also knows the scale.

Features of a target, of the package as a whole for the policy and of each chip for Gymnasium, are rates or
shares on a fixed logarithmic scale, so that the number of chips and all rates may differ from those in
training.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from math import fsum
from typing import Final

import numpy as np
from numpy.typing import NDArray

from go_opt.common.arrays import FloatArray, IntArray
from go_opt.env import CostTables, Target, cost_tables, depth, height
from go_opt.env.cost.tables import bytes_out, smallest_op_s, standardise, weight_bytes
from go_opt.env.model.traffic import BORDER_BUFFERS
from go_opt.model.dtypes import dtype_code
from go_opt.model.graph import NO_PRODUCER, OP_CLASSES, WEIGHT, Graph
from go_opt.solver import PlacementProblem, placement_problem
from go_opt.solver.problem.problem import span_from_sources
from go_opt.solver.problem.sequence import kernel_sequence
from go_opt.solver.propagation.adjacent import Domains, chip_runs, start_domains

_WAVES: Final = 5  # half waves over the package: 1, 2, 4, 8, 16
CHIP_COLUMNS: Final = (
    "position",
    *(f"{wave} {2**k}" for wave in ("sine", "cosine") for k in range(_WAVES)),
    "log share of the package's speed on this graph",
    "share of that speed before its middle",
    "log matrix flops per s",
    "log vector flops per s",
    "log SRAM bytes",
    "log SRAM bytes per s",
    "log overhead s",
    "pays for transfers",
)
GLOBAL_COLUMNS: Final = (
    "log chips",
    "overlap",
    "acyclic",
    "triangle",
    "ring",
    "log link bytes per s",
    "log link latency s",
    "log host in bytes per s",
    "log host out bytes per s",
    "log ops",
    "log edges per op",
    "log seconds per chip",
    "log longest op of that",
    "log seconds all tensors take on a link of that",
    "log weight bytes per SRAM byte",
    *(f"mean {name}" for name in ("log flops", "log bytes out", "log weight bytes", "log seconds")),
    *(f"spread {name}" for name in ("log flops", "log bytes out", "log weight bytes", "log seconds")),
)
LEAST_S: Final = 1e-12  # below all real times; keeps logarithms finite


def chip_features(tables: CostTables, target: Target) -> FloatArray:
    """[D, len(CHIP_COLUMNS)] features of each chip.

    Positions are also encoded as waves, as in Vaswani et al., "Attention is all you
    need", NeurIPS 2017, so that neighbours differ clearly even among many chips.
    """
    position = np.arange(target.num_chips) / max(1, target.num_chips - 1)
    angles = np.pi * position[:, None] * 2.0 ** np.arange(_WAVES)
    native = dtype_code(target.native_dtype)
    of_kinds = np.array(
        [
            (
                np.log10(kind.rates(kind.matrix_flops_per_s, target.native_dtype)[native] / 1e12),
                np.log10(kind.rates(kind.vector_flops_per_s, target.native_dtype)[native] / 1e12),
                np.log10(kind.sram_bytes / 1e7),
                np.log10(kind.sram_bytes_per_s / 1e12),
                np.log10(kind.kernel_overhead_s + 1e-9) + 7,
                float(kind.pays_transfers),
            )
            for kind in target.kinds
        ]
    )
    share = _share_of_speed(tables)
    middle = (np.cumsum(share) - 0.5 * share) * 2 - 1
    columns = [position * 2 - 1, np.sin(angles), np.cos(angles), np.log(share * target.num_chips), middle]
    return np.column_stack([*columns, of_kinds[target.chip_kind]])


def package_features(graph: Graph, tables: CostTables, target: Target) -> FloatArray:
    """The first of ``GLOBAL_COLUMNS``; the means and spreads come from the ops' features."""
    links, dependency_s = target.topology, tables.dependency_s[tables.chip_kind].mean()
    rate = _mean_log10(links.rate_bytes_per_s)
    op_s = smallest_op_s(tables)
    ideal_s = fsum(op_s) / target.num_chips + LEAST_S
    all_tensors_s = tables.tensor_bytes[tables.tensor_producer != NO_PRODUCER].sum() / 10**rate
    weight_bytes = tables.tensor_bytes[tables.tensor_kind == WEIGHT].sum()
    return np.array(
        [
            np.log2(target.num_chips) / 3,
            target.overlap,
            target.constraints.acyclic,
            target.constraints.triangle != "off",
            tables.is_ring,
            rate - 10,
            _mean_log10(links.latency_s + dependency_s + 1e-9) + 7,  # a transfer takes both
            np.log10(target.host_in_bytes_per_s) - 10,
            np.log10(target.host_out_bytes_per_s) - 10,
            np.log10(graph.num_ops) - 3,
            np.log1p(graph.num_edges / graph.num_ops),
            np.log10(ideal_s) + 5,
            np.log10((op_s.max() + LEAST_S) / ideal_s),
            np.log10((all_tensors_s + LEAST_S) / ideal_s),
            np.log10((weight_bytes + 1) / tables.sram_bytes.sum()),
        ]
    )


def _share_of_speed(tables: CostTables) -> FloatArray:
    """[D] each chip's share of the package's speed: graphs per second if its kind ran each op alone."""
    # fsum rounds once: the same for every storage order of the ops.
    speed = 1.0 / (np.array([fsum(op_s) for op_s in tables.kernel_floor_s()]) + LEAST_S)
    of_chips: FloatArray = speed[tables.chip_kind] / speed[tables.chip_kind].sum()
    return of_chips


def _mean_log10(values: FloatArray) -> float:
    """Mean logarithm of the links' figures; without links, that of a common link of 10 GB/s."""
    return float(np.log10(values).mean()) if len(values) else 10.0


# Each ONNX type that go-opt costs has its own row. Any other name (a custom op, a JAX primitive)
# shares one of a few rows, chosen by its CRC-32. Unlike Python's ``hash``, CRC-32 is the same in
# every process. Weinberger et al., "Feature hashing for large scale multitask learning", ICML 2009.


# The position of a name is its row in trained embeddings: append, never reorder.
_ONNX_TYPES: Final = (
    "Abs Acos Acosh Add AffineGrid And ArgMax ArgMin Asin Asinh Atan Atanh Attention AveragePool "
    "BatchNormalization Bernoulli BiasGelu BitShift BitwiseAnd BitwiseNot BitwiseOr BitwiseXor Cast "
    "CastLike Ceil Celu CenterCropPad Clip Col2Im Compress Concat ConcatFromSequence ConstantOfShape "
    "Conv ConvInteger ConvTranspose Cos Cosh CumProd CumSum DFT DeformConv DepthToSpace "
    "DequantizeLinear Div DynamicQuantizeLinear Einsum Elu Equal Erf Exp EyeLike FastGelu Floor "
    "FusedConv FusedGemm FusedMatMul GRU Gather GatherElements GatherND Gelu Gemm GlobalAveragePool "
    "GlobalLpPool GlobalMaxPool Greater GreaterOrEqual GridSample GroupNormalization HardSigmoid "
    "HardSwish Hardmax InstanceNormalization IsInf IsNaN LRN LSTM LayerNormalization LeakyRelu Less "
    "LessOrEqual Log LogSoftmax LpNormalization LpPool MatMul MatMulInteger MatMulNBits Max MaxPool "
    "MaxRoiPool MaxUnpool Mean MeanVarianceNormalization Min Mish Mod Mul MultiHeadAttention Neg "
    "NegativeLogLikelihoodLoss Not OneHot Or PRelu Pad Pow QLinearAdd QLinearAveragePool QLinearConv "
    "QLinearGlobalAveragePool QLinearMatMul QLinearMul QLinearSigmoid QuantizeLinear QuickGelu "
    "RMSNormalization RNN RandomNormalLike RandomUniformLike Range Reciprocal ReduceL1 ReduceL2 "
    "ReduceLogSum ReduceLogSumExp ReduceMax ReduceMean ReduceMin ReduceProd ReduceSum ReduceSumSquare "
    "Relu Resize ReverseSequence RoiAlign RotaryEmbedding Round Rsqrt Scatter ScatterElements "
    "ScatterND Selu SequenceAt Shrink Sigmoid Sign SimplifiedLayerNormalization Sin Sinh "
    "SkipLayerNormalization SkipSimplifiedLayerNormalization Slice Softmax SoftmaxCrossEntropyLoss "
    "Softplus Softsign Sort SpaceToDepth Split SplitToSequence Sqrt Sub Sum Swish Tan Tanh "
    "TensorScatter ThresholdedRelu Tile TopK Transpose Trilu Unique Upsample Where Xor"
)
KNOWN_OP_TYPES: Final[tuple[str, ...]] = tuple(_ONNX_TYPES.split())
NUM_HASH_BUCKETS: Final = 32
NUM_OP_TYPES: Final = NUM_HASH_BUCKETS + len(KNOWN_OP_TYPES)

_ROW: Final = {name: NUM_HASH_BUCKETS + place for place, name in enumerate(KNOWN_OP_TYPES)}


def op_type_rows(op_types: Sequence[str]) -> IntArray:
    """[N] row of each op type in a table of ``NUM_OP_TYPES``."""
    row_of = {name: _row(name) for name in set(op_types)}
    return np.array([row_of[name] for name in op_types], dtype=np.int32)


def _row(name: str) -> int:
    return _ROW.get(name, zlib.crc32(name.encode()) % NUM_HASH_BUCKETS)


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


# Attention over segments depends on which ops share a segment. So the policy reads ops in a
# canonical order: by depth, which makes it topological, and within a depth by their features.
# Names break the remaining ties, between ops with equal depth, height and features.


def canonical_order(graph: Graph, op_type: IntArray, sizes: NDArray) -> IntArray:
    """[N] the ops of ``graph`` in canonical order, the same for every storage order.

    Args:
      op_type: [N] row of the type's embedding.
      sizes: [N, 3] FLOPs, bytes out and weight bytes, all exact.
    """
    num_readers = np.diff(graph.successors[0])
    num_producers = np.diff(graph.predecessors[0])
    keys = (depth(graph), -height(graph), op_type, *sizes.T, num_readers, num_producers, _name_rank(graph))
    return np.lexsort(keys[::-1]).astype(np.int32)


def _name_rank(graph: Graph) -> IntArray:
    rank = np.empty(graph.num_ops, dtype=np.int32)
    rank[sorted(range(graph.num_ops), key=graph.op_names.__getitem__)] = np.arange(graph.num_ops)
    return rank


# By itself, the adjacent rule allows every op on every chip, because a whole component may be
# on one chip. Ops differ in their distance from the two ends. So a source is fixed to the first
# chip, and the op farthest from it to the last chip it can reach. The solver's bounds
# propagation gives the rest. This is a feature for the policy, not a restriction.


Bounds = tuple[IntArray, IntArray]


def chip_bounds(problem: PlacementProblem, rank: IntArray) -> Bounds:
    """[U] first and last chip of each unit; without an order of chips, the chips that may run it.

    Args:
      rank: [U] canonical rank of each unit; it breaks ties between ends, so that the result does
        not depend on how units are stored.
    """
    free = start_domains(problem, None, None) if problem.acyclic else None
    if free is None:
        first, last = chip_runs(problem)
        return first, np.maximum(first, last)
    source = _best_of_component(problem, span_from_sources(problem), rank)
    last_chip = np.full(problem.num_units, problem.num_chips - 1, dtype=np.int32)
    last_chip[source] = free.lower[source]
    reached = _narrowed(problem, None, last_chip)
    farthest = _best_of_component(problem, reached.upper, -rank)
    first_chip = np.zeros(problem.num_units, dtype=np.int32)
    first_chip[farthest] = reached.upper[farthest]
    held = _narrowed(problem, first_chip, last_chip)
    return held.lower, held.upper


def _best_of_component(problem: PlacementProblem, value: IntArray, rank: IntArray) -> IntArray:
    """[C] the unit with the largest value in each weak component; the lowest rank breaks ties."""
    best_first = np.lexsort((rank, -value, problem.component)).astype(np.int32)
    return best_first[np.unique(problem.component[best_first], return_index=True)[1]]


def _narrowed(problem: PlacementProblem, first_chip: IntArray | None, last_chip: IntArray) -> Domains:
    domains = start_domains(problem, first_chip, last_chip)
    # Propagation is complete under the adjacent rule: a chip left in a domain can be taken.
    assert domains is not None
    return domains
