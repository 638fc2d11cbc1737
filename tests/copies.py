"""Plans with relays to test with, and what a graph computes."""

from __future__ import annotations

import hashlib
from dataclasses import replace

import numpy as np

from go_opt.env import Target, cost_tables
from go_opt.env.copies.relays import Relays
from go_opt.env.copies.stages import stages_of
from go_opt.env.cost.tables import COPY_TYPE
from go_opt.model.graph import NO_PRODUCER, Graph
from go_opt.model.plan import Plan, Relay
from go_opt.solver.copies.relays import needed_relays, relays_of_arrays


def with_any_relays(rng: np.random.Generator, graph: Graph, target: Target, plan: Plan) -> Plan:
    """Some sensible, some not or twice; but none before its tensor's producer."""
    relays = []
    for k in np.flatnonzero((graph.tensor_producer != NO_PRODUCER) & (rng.random(graph.num_tensors) < 0.4)):
        home = plan.placement[graph.tensor_producer[k]]
        chips = rng.integers(0, target.num_chips, int(rng.integers(1, 4)))
        relays.append(Relay(graph.tensor_names[k], tuple(chips[chips > home].tolist())))
    return replace(plan, relays=tuple(relays))


def with_legal_relays(graph: Graph, target: Target, plan: Plan) -> Plan:
    """The relays that the target's rule needs."""
    stages = stages_of(plan.placement, plan.replication)
    placement = stages.number(plan.placement)
    tensor, stage = needed_relays(cost_tables(graph, target), placement, target.constraints.triangle)
    return replace(plan, relays=relays_of_arrays(graph, tensor, stages.first_chip[stage]))


def no_relays() -> Relays:
    return Relays(*(np.empty(0, np.int32) for _ in Relays._fields))


def output_values(graph: Graph) -> dict[str, str]:
    """By output: a digest of the ops, weights and inputs it is computed from.

    A copy has the value of what it reads.
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
                computed = repr((graph.op_names[op], rank, arguments))
                values[k] = hashlib.sha256(computed.encode()).hexdigest()
    return {graph.tensor_names[k]: values[k] for k in np.flatnonzero(graph.tensor_is_output).tolist()}
