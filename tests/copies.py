"""Plans with relays and clones to test with, and what a graph computes."""

from __future__ import annotations

import hashlib
from dataclasses import replace

import numpy as np

from go_opt.env import Target, cost_tables
from go_opt.env.copies.clonable import clonable_ops
from go_opt.env.copies.expanded_tables import Copies, copies_of, expanded_tables
from go_opt.env.copies.stages import stages_of
from go_opt.env.cost.tables import COPY_TYPE
from go_opt.model.graph import NO_PRODUCER, Graph
from go_opt.model.plan import Clone, Plan, Relay
from go_opt.solver.copies.relays import needed_relays, relays_of_arrays


def with_any_copies(rng: np.random.Generator, graph: Graph, target: Target, plan: Plan) -> Plan:
    """Some sensible, some not or twice; but no clone on its op's chip, no relay before its tensor's."""
    relays, clones = [], []
    for k in np.flatnonzero((graph.tensor_producer != NO_PRODUCER) & (rng.random(graph.num_tensors) < 0.4)):
        home = plan.placement[graph.tensor_producer[k]]
        chips = rng.integers(0, target.num_chips, int(rng.integers(1, 4)))
        relays.append(Relay(graph.tensor_names[k], tuple(chips[chips > home].tolist())))
    for op in np.flatnonzero(rng.random(graph.num_ops) < 0.4):
        chips = rng.integers(0, target.num_chips, int(rng.integers(1, 3)))
        clones += [Clone(graph.op_names[op], int(chip)) for chip in chips if chip != plan.placement[op]]
    return replace(plan, relays=tuple(relays), clones=tuple(clones))


def with_legal_copies(
    rng: np.random.Generator, graph: Graph, target: Target, plan: Plan, clone_share: float = 0.3
) -> Plan:
    """Clones on chips that read them, then the relays that the target's rule needs."""
    is_clonable = clonable_ops(graph)
    clones: set[tuple[int, int]] = set()
    for _ in range(2):  # the second time clones of what the first ones read
        for k in np.flatnonzero(graph.tensor_producer != NO_PRODUCER).tolist():
            op = int(graph.tensor_producer[k])
            readers = graph.reader_op[graph.reader_ptr[k] : graph.reader_ptr[k + 1]].tolist()
            chips = {int(plan.placement[v]) for v in readers} | {d for v, d in clones if v in readers}
            for chip in sorted(chips - {int(plan.placement[op])}):
                if rng.random() < clone_share and is_clonable[op] and may_run(graph, target, op, chip):
                    clones.add((op, chip))
    cloned = tuple(Clone(graph.op_names[op], chip) for op, chip in sorted(clones))
    plan = replace(plan, clones=cloned, relays=())
    tables, placement, *_ = expanded_tables(
        cost_tables(graph, target), plan.placement, plan.order, plan.fusion_group, copies_of(graph, plan)
    )
    stages = stages_of(plan.placement, plan.replication)
    tensor, stage = needed_relays(tables, stages.number(placement), target.constraints.triangle)
    return replace(plan, relays=relays_of_arrays(graph, tensor, stages.first_chip[stage]))


def may_run(graph: Graph, target: Target, op: int, chip: int) -> bool:
    """Whether the kind of the chip may run the op."""
    excluded = graph.excluded.get(target.kinds[target.chip_kind[chip]].name)
    return excluded is None or not excluded[op]


def no_copies() -> Copies:
    """Neither relays nor clones."""
    return Copies(*(np.empty(0, np.int32) for _ in Copies._fields))


def output_values(graph: Graph) -> dict[str, str]:
    """By output: a digest of the ops, weights and inputs it is computed from.

    A copy has the value of what it reads; a clone is the op it is a clone of.
    """
    values = {k: f"given {graph.tensor_names[k]}" for k in np.flatnonzero(graph.tensor_producer < 0).tolist()}
    read_ptr, reads = graph.op_reads
    out_ptr, outputs = graph.op_outputs
    for op in range(graph.num_ops):
        of_op = reads[read_ptr[op] : read_ptr[op + 1]]
        arguments = sorted(
            (values[int(graph.reader_tensor[r])], int(graph.reader_elements[r])) for r in of_op
        )
        for rank, k in enumerate(outputs[out_ptr[op] : out_ptr[op + 1]].tolist()):
            if graph.op_types[op] == COPY_TYPE:
                [(values[k], _)] = arguments
            else:
                name = graph.op_names[op].split("/clone ")[0]
                values[k] = hashlib.sha256(repr((name, rank, arguments)).encode()).hexdigest()
    return {graph.tensor_names[k]: values[k] for k in np.flatnonzero(graph.tensor_is_output).tolist()}
