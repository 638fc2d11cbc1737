"""Which ops may be split, the ways to do so that are searched, and the plan that each search begins with."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import lru_cache
from itertools import chain
from typing import Final

import numpy as np

from go_opt.common.arrays import BoolArray
from go_opt.env import Target, cost_tables
from go_opt.env.copies.divisions import period_in, weight_factor
from go_opt.env.copies.pieces import part_name
from go_opt.env.copies.splits import split_graph
from go_opt.env.peak_memory import op_activation_bytes, op_sram_bytes
from go_opt.errors import PlanError
from go_opt.model.graph import INPUT, NO_PRODUCER, WEIGHT, Graph
from go_opt.model.plan import Split
from go_opt.model.start import OpStart, Start
from go_opt.result import Request
from go_opt.search.methods.events import has_static_constraints, may_replicate
from go_opt.search.splits.block_ways import (
    Block,
    block_ways,
    blocks_of,
    blocks_of_way,
    fine_ways,
    start_by_blocks,
    start_in_turn,
    tiled_ways,
)
from go_opt.search.splits.rows import (
    LEAST_BATCH,
    PARTS,
    Rows,
    reads_rows,
    row_shapes,
    row_ways,
    rows_by_op,
    rows_of_way,
    split_along,
    start_by_rows,
    steps_of,
)
from go_opt.search.splits.tensor_ways import start_by_tensor, tensor_ways

HEAVY: Final = 1 / 4  # of a chip's memory: the weight of an op that may be split
SHARES: Final = (1 / 2, 1 / 4, 1 / 8)  # of a chip's memory: the weight of a part, one way to split for each
MOST_SHARED: Final = 4  # ways that share all layers
TIGHT: Final = 1 / 2  # of all memory, at least, in weights, for blocks whose parts one chip works off in turn


def divisible_ops(graph: Graph, target: Target, request: Request) -> BoolArray:
    """[N] the ops that may be split in answers to ``request``."""
    found = np.zeros(graph.num_ops, dtype=np.bool_)
    found[[*heavy_ops(graph, target, request), *row_divisible(graph, target, request)]] = True
    found[[op for block in open_blocks(graph, target, request) for op, _ in block]] = True
    shared = chain.from_iterable(_shared_ways(graph, target, request))
    found[[graph.op_index[split.op] for split in (*shared, *given_way(graph, request))]] = True
    return found


def heavy_ops(graph: Graph, target: Target, request: Request) -> dict[int, int]:
    """The ops with heavy weights that may be split, each with the factor that divides its weights."""
    return _heavy_factors(graph, target) if _splits_are_open(request) else {}


@lru_cache(maxsize=16)
def _heavy_factors(graph: Graph, target: Target) -> dict[int, int]:
    found: dict[int, int] = {}
    tables = cost_tables(graph, target)
    sram_bytes = op_sram_bytes(tables)
    touched = graph.reader_elements / np.maximum(graph.tensor_elements[graph.reader_tensor], 1)
    read_bytes = tables.stored_bytes[graph.reader_tensor] * touched  # an embedding reads few of its rows
    is_heavy = read_bytes > HEAVY * sram_bytes[graph.reader_op]
    for op in np.unique(graph.reader_op[is_heavy]).tolist():
        factor = weight_factor(graph, op)
        weights = [] if factor is None else _divided_weights(graph, op, factor)
        if factor is not None and max(tables.stored_bytes[weights], default=0) > HEAVY * sram_bytes[op]:
            found[op] = factor
    return found


def _divided_weights(graph: Graph, op: int, factor: int) -> list[int]:
    """The weights of which each part has a slice."""
    operands = dict.fromkeys(graph.known_rule_of(op).operands)
    is_weight = graph.tensor_kind == WEIGHT
    return [k for k in operands if is_weight[k] and period_in(graph, op, factor, k)]


def _splits_are_open(request: Request) -> bool:
    return request.splits and request.decide == "all" and not request.constraints


def row_divisible(graph: Graph, target: Target, request: Request) -> Rows:
    """The ops that may be split by rows, where that may gain; for the makespan by the rows of a batch."""
    if not graph.op_rules:
        return {}
    if request.objective == "latency":
        may_gain = target.num_chips > 1 and not has_static_constraints(target) and has_batch(graph)
        is_open = may_gain and _splits_are_open(request)
    else:
        is_open = _parts_may_gain(graph, target, request)
    return rows_by_op(graph) if is_open else {}


def open_blocks(graph: Graph, target: Target, request: Request) -> list[Block]:
    """The blocks that may be split, where that may gain: also where weights fill most of the memory."""
    is_open = _parts_may_gain(graph, target, request) or (
        _splits_are_open(request)
        and target.goes_forward
        and request.objective == "throughput"
        and _weights_share(graph, target) > TIGHT
    )
    return list(blocks_of(graph)) if is_open else []


@lru_cache(maxsize=16)
def _weights_share(graph: Graph, target: Target) -> float:
    """The share of all memory that the weights fill."""
    tables = cost_tables(graph, target)
    weight_bytes = float(tables.stored_bytes[graph.tensor_kind == WEIGHT].sum())
    return weight_bytes / max(float(tables.sram_bytes.sum()), 1.0)


def _parts_may_gain(graph: Graph, target: Target, request: Request) -> bool:
    """Whether the latency is limited, replicas are closed or have states to hold, or an op fits no chip."""
    if not (_splits_are_open(request) and target.goes_forward and request.objective == "throughput"):
        return False
    fits_none = op_activation_bytes(graph, target) > op_sram_bytes(cost_tables(graph, target))
    needs_replicas = request.max_latency_s is None and may_replicate(target, request) and not graph.states
    return not needs_replicas or bool(fits_none.any())


def ways_for_samples(graph: Graph, target: Target, request: Request, rows: Rows) -> list[tuple[Split, ...]]:
    """Ways for short samples: layers shared by collectives, and for the makespan parts of a batch."""
    ways = []
    for way in _shared_ways(graph, target, request):
        with suppress(PlanError):  # too few steps for parts that have to end with others
            split_graph(graph, way)
            ways.append(way)
    return ways + (batch_ways(graph, target, rows) if request.objective == "latency" else [])


def _shared_ways(graph: Graph, target: Target, request: Request) -> Sequence[tuple[Split, ...]]:
    """Ways in which chips share all layers, where a short sample is asked for."""
    is_asked = request.objective == "latency" or request.max_latency_s is not None
    if not (_splits_are_open(request) and is_asked) or has_static_constraints(target):
        return ()
    ways = tensor_ways(graph, target)
    if request.objective == "latency":
        return ways[:MOST_SHARED]
    return sorted(
        ways, key=lambda way: way[0].parts
    )  # the interval is the shorter, the fewer parts there are


def ways_to_split(graph: Graph, target: Target, request: Request) -> list[tuple[Split, ...]]:
    """For each of some shares of a memory, the fewest parts of each op whose weights take no more of it.

    Parts are a power of two, and no more than there are chips.
    """
    tables = cost_tables(graph, target)
    sram_bytes = op_sram_bytes(tables)
    factors = heavy_ops(graph, target, request)
    ways = []
    for share in SHARES:
        way = []
        slices_of: dict[int, tuple[int, int]] = {}  # slices serve all ops that divide a weight alike
        for op, factor in factors.items():
            weights, steps = _divided_weights(graph, op, factor), steps_of(graph, op, factor)
            weight_bytes = float(tables.stored_bytes[weights].max())
            doublings = max(0, math.ceil(math.log2(weight_bytes / max(share * sram_bytes[op], 1.0))))
            parts = min(2**doublings, target.num_chips, steps)
            slices = {k: (period_in(graph, op, factor, k), steps) for k in weights}
            is_alike = all(slices_of.setdefault(k, one) == one for k, one in slices.items())
            if parts > 1 and is_alike:
                way.append(split_along(graph, op, factor, parts))
        ways.append(tuple(way))
    return [way for way in dict.fromkeys(ways) if way]


def ways_in_parts(
    graph: Graph,
    target: Target,
    rows: Rows,
    blocks: list[Block],
    under_rows: tuple[Split, ...],
    under_blocks: tuple[Split, ...],
    is_late: Callable[[], bool],
    *,
    in_turn: bool,
) -> list[tuple[Split, ...]]:
    """Ways by rows on top of ``under_rows``, which keep their ops, and ways of blocks, which take theirs.

    Once ``is_late``, only those found so far. Parts of blocks have chips of their own, or take turns on one.
    """
    names = {one.op for one in under_rows}
    left = {op: one for op, one in rows.items() if graph.op_names[op] not in names}
    ways = [(*way, *under_rows) for way in (row_ways(graph, target, left, is_late) if left else [])]
    if in_turn:
        found = (fine_ways if graph.states else tiled_ways)(graph, target, blocks)
    else:
        found = block_ways(graph, target, blocks, is_late)
    for way in found:
        names = {one.op for one in way}
        ways.append((*way, *(one for one in under_blocks if one.op not in names)))
    return ways


def given_way(graph: Graph, request: Request) -> tuple[Split, ...]:
    """The splits of the plan to begin with; () if one of them is of another graph, or not asked for.

    Those with replicas of what is split are for training steps.
    """
    plan = None if request.start is None else request.start.plan
    is_open = plan is not None and _splits_are_open(request)
    if plan is None or not is_open or any(one.level for one in plan.splits):
        return ()
    try:
        split_graph(graph, plan.splits)
    except PlanError:  # of another version of the model
        return ()
    return plan.splits


def takes_turns(graph: Graph, target: Target, request: Request) -> bool:
    """Whether the parts of a block are worked off in turn: other inferences keep the other chips busy."""
    is_busy = may_replicate(target, request) or graph.has_scope("sequence")
    return request.max_latency_s is None and is_busy


def start_of_way(
    graph: Graph, split: Graph, way: tuple[Split, ...], target: Target, request: Request, *, takes_early: bool
) -> Start | None:
    """What to begin with; that of the request for a way by columns alone.

    Args:
      graph: of whole ops; ``split`` is that with the parts of ``way``.
      takes_early: see :func:`start_by_rows`.
    """
    replicates = may_replicate(target, request)
    if any(one.collective for one in way):
        is_alone = request.objective == "latency"
        return start_by_tensor(graph, way, target, replicates=replicates and not is_alone)
    has_rows = bool(rows_of_way(graph, way))
    if has_rows and request.objective == "latency":
        return start_by_batch(split, way)
    if blocks_of_way(graph, way):
        if takes_turns(graph, target, request):
            return start_in_turn(graph, way)
        return start_by_blocks(graph, split, way, target, replicates=replicates)
    if has_rows:
        return start_by_rows(graph, split, way, target, replicates=replicates, takes_early=takes_early)
    return request.start


OF_ALL_S: Final = (1.0, 0.8, 0.5)  # of the seconds of all ops, in the ops that are divided


def has_batch(graph: Graph) -> bool:
    """Whether the rows of all inputs are those of one batch."""
    shapes = [row_shapes(graph).get(k, ()) for k, kind in enumerate(graph.tensor_kind) if kind == INPUT]
    is_batch = all(len(shape) == 2 and shape[0] == shapes[0][0] >= LEAST_BATCH for shape in shapes)
    return bool(shapes) and is_batch


def batch_ways(graph: Graph, target: Target, rows: Rows) -> list[tuple[Split, ...]]:
    """Ops of ``rows`` in as many parts as there are chips, at most 8, and in fewer: all, and the first ones.

    What follows the first ones stays whole: its branches may keep the chips busy, at less cost.
    """
    ways = []
    for parts, end in itertools.product(PARTS[::-1], _ends(graph, target)):
        divided = {op: one for op, one in rows.items() if op <= end and steps_of(graph, op, one) >= 2 * parts}
        if parts <= target.num_chips:
            ways.append(
                tuple(
                    split_along(graph, op, factor, parts, joined=not _goes_on(graph, divided, op))
                    for op, factor in divided.items()
                )
            )
    return [way for way in dict.fromkeys(ways) if way]


def _ends(graph: Graph, target: Target) -> list[int]:
    """Ops behind which about each of ``OF_ALL_S`` of the seconds is done, and one tensor is alive."""
    made = np.flatnonzero(graph.tensor_producer != NO_PRODUCER)
    made = made[graph.reader_ptr[made + 1] > graph.reader_ptr[made]]
    begun = np.bincount(graph.tensor_producer[made], minlength=graph.num_ops)
    ended = np.bincount(graph.reader_op[graph.reader_ptr[made + 1] - 1], minlength=graph.num_ops)
    ends = np.append(np.flatnonzero(np.cumsum(begun - ended) == 1), graph.num_ops - 1)
    op_s = cost_tables(graph, target).kernel_floor_s().min(axis=0)
    done = (np.cumsum(op_s) / op_s.sum())[ends]
    return [
        int(ends[np.argmin(np.abs(done - share))]) if share < 1.0 else graph.num_ops - 1 for share in OF_ALL_S
    ]


def _goes_on(graph: Graph, rows: Rows, op: int) -> bool:
    """Whether parts of other ops read the parts of an op."""
    k = graph.outputs_of(op)[0]
    return any(reads_rows(graph, rows, reader, k) for reader in graph.readers_of(k))


def start_by_batch(split: Graph, way: tuple[Split, ...]) -> Start:
    """Part i of each op on chip i; ``split`` is the graph with the parts of ``way``."""
    names = [(part_name(one.op, part, one.parts), part) for one in way for part in range(one.parts)]
    ops = {name: OpStart(part, rank=split.op_index[name]) for name, part in names}
    return Start(ops, method="parts of a batch")
