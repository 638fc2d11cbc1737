"""Plans to begin a search with: chips for the parts of ops split by rows."""

from __future__ import annotations

import numpy as np

from go_opt.common.arrays import IntArray, LongArray
from go_opt.env import CostTables, Target, cost_tables
from go_opt.env.copies.pieces import part_name
from go_opt.env.copies.splits import JOIN
from go_opt.env.op_memory import op_sram_bytes
from go_opt.model.graph import NO_PRODUCER, Graph
from go_opt.model.plan import Split
from go_opt.model.start import OpStart, Start
from go_opt.search.splits.row_ways import FILLED, LINK_SHARES, weight_bytes_of
from go_opt.search.splits.rows import rows_of_way, waits_for
from go_opt.solver.problem.replica_allocation import allocated_chips


def start_by_rows(
    graph: Graph,
    split: Graph,
    way: tuple[Split, ...],
    target: Target,
    *,
    replicates: bool,
    takes_early: bool = False,
) -> Start:
    """A plan with a stage for each part of a run, and stages of other ops that fit a memory.

    Args:
      graph: of whole ops; ``split`` is that with the parts of ``way``.
      replicates: whether the chips of a stage are replicas; else they share its ops.
      takes_early: whether rows are always taken before links, for the least latency.
    """
    tables = cost_tables(split, target)
    stages = _stages(graph, split, way, tables)
    _place_moves(graph, split, tables, stages, takes_early)
    placed = Start({name: OpStart(stage, rank=split.op_index[name]) for name, stage in stages.items()})
    stage, *_ = placed.on(split)
    chip, size = chips_of_stages(split, stage, target, replicates=replicates)
    rows = zip(split.op_names, chip.tolist(), size.tolist(), strict=True)
    ops = {name: OpStart(first, count, rank=rank) for rank, (name, first, count) in enumerate(rows)}
    return Start(ops, method="parts by rows")


def chips_of_stages(
    split: Graph, stages: IntArray, target: Target, *, replicates: bool
) -> tuple[LongArray, LongArray]:
    """The first chip and the number of chips of each op's stage: as many as the stages [N] have work for."""
    _, stage = np.unique(stages, return_inverse=True)
    stage = np.minimum(stage, target.num_chips - 1)
    op_s = cost_tables(split, target).kernel_floor_s().min(axis=0)
    sizes = allocated_chips(np.bincount(stage, weights=op_s).astype(np.float64), target.num_chips)
    size, chip = sizes[stage], (np.cumsum(sizes) - sizes)[stage]
    if not replicates:
        for here in (stage == number for number in range(len(sizes))):
            share = np.cumsum(op_s[here]) - op_s[here]
            chip[here] += (share / op_s[here].sum() * size[here]).astype(np.int64)
        size = np.ones_like(size)
    return chip, size


def _stages(graph: Graph, split: Graph, way: tuple[Split, ...], tables: CostTables) -> dict[str, int]:
    """Of the ops that are whole or parts."""
    stages: dict[str, int] = {}
    filled_bytes = FILLED * op_sram_bytes(tables)  # [N] of ops of `split`
    stage, held_bytes = 0, 0.0
    parts = 1  # of the current run
    run: set[int] = set()
    ended: set[int] = set()  # its ops that are joined at its end
    splits, rows = {one.op: one for one in way}, rows_of_way(graph, way)
    before_pointers, before = graph.predecessors
    for op, name in enumerate(graph.op_names):
        one = splits.get(name)
        if parts > 1 and op not in rows and graph.op_flops[op] == 0:
            run.add(op)  # it follows the last part
            continue
        number = one.parts if one is not None and op in rows else 1
        waits = not ended.isdisjoint(before[before_pointers[op] : before_pointers[op + 1]].tolist())
        waits |= op in rows and not run.isdisjoint(waits_for(graph, rows, op))
        if stages and (number != parts or waits):
            # Whole ops stay with the last part.
            stage, held_bytes, run, ended = stage + parts - (number == 1 < parts), 0.0, set(), set()
        parts = number
        names = [name] if one is None else [part_name(name, part, one.parts) for part in range(one.parts)]
        for part, each in enumerate(names):
            if op not in rows:
                index = split.op_index[each]
                weight_bytes = weight_bytes_of(split, tables, [index])
                if held_bytes + weight_bytes > filled_bytes[index]:
                    stage, held_bytes = stage + 1, 0.0
                held_bytes += weight_bytes
            stages[each] = stage + part * (op in rows)
        if one is not None and op in rows:
            run.add(op)
            ended |= {op} if one.joined else set()
    return stages


def _place_moves(
    graph: Graph, split: Graph, tables: CostTables, stages: dict[str, int], takes_early: bool
) -> None:
    """Add what takes or joins rows: on the chip of its readers, or of its source where that sends less.

    What several readers take of a tensor may have rows in common; the tensor itself crosses a link once. An
    input of the model goes to each stage that takes rows of it, unless the host's link limited the interval.
    """
    out_pointers, readers = split.successors
    moves = [
        op for op, name in enumerate(split.op_names) if name not in graph.op_index and name not in stages
    ]
    for op in reversed(moves):  # the rows that a part takes may be joined before
        takers = readers[out_pointers[op] : out_pointers[op + 1]]
        stages[split.op_names[op]] = min(stages[split.op_names[taker]] for taker in takers)
    before_pointers, before = split.predecessors
    home = np.zeros(split.num_ops, np.int64)  # what joins parts of an op follows them
    for op, name in enumerate(split.op_names):
        sources = before[before_pointers[op] : before_pointers[op + 1]]
        home[op] = stages.get(name, int(home[sources].max(initial=0)))
    slices = {op: split.reads_of(op)[0] for op in moves if split.op_types[op] != JOIN}
    sent = np.zeros(split.num_tensors, np.int64)  # elements of the slices that others take of a tensor
    inputs: dict[int, set[int]] = {}  # of the model -> stages that take rows of it
    for op, (k, touched) in slices.items():
        producer = int(split.tensor_producer[k])
        if producer == NO_PRODUCER:
            inputs.setdefault(k, set()).add(int(home[op]))
        elif home[op] != home[producer]:
            sent[k] += touched
    host_s = (
        sum(float(tables.tensor_bytes[k]) * len(at) for k, at in inputs.items()) * tables.host_in_s_per_byte
    )
    shared_s = float(tables.kernel_floor_s().min(axis=0).sum()) / tables.num_chips
    is_close = takes_early or host_s > LINK_SHARES[0] * shared_s
    for op, (k, _) in slices.items():
        producer = int(split.tensor_producer[k])
        if producer == NO_PRODUCER:
            stages[split.op_names[op]] *= not is_close
        elif takes_early or sent[k] < split.tensor_elements[k]:
            stages[split.op_names[op]] = int(home[producer])
