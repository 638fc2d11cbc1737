"""What states take on the chips, and what one more sequence in flight would cost."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from go_opt.env import Metrics, Target, cost_tables, evaluate_plan
from go_opt.model.graph import Graph, with_sequences
from go_opt.model.plan import Plan


@dataclass(frozen=True)
class StateUse:
    """The states of a graph under a plan."""

    sequences: int  # in flight
    sequence_bytes: int  # stored for each of them
    model_bytes: int  # stored once: states of scope ``model``
    fullest_chip: int  # the chip with most bytes of states
    fullest_bytes: int
    waits_s: float  # latency / sequences, below which no interval is; 0 without states of sequences
    one_more_s: float | None  # interval of the same plan with one more sequence; None: they do not fit
    one_more_reason: str  # why not; empty if they fit


def state_use(graph: Graph, target: Target, plan: Plan, metrics: Metrics) -> StateUse | None:
    """The states of ``graph``, which is costed for the plan's sequences; None if it has none."""
    if not graph.states:
        return None
    stored = cost_tables(graph, target).stored_bytes
    held = np.zeros(target.num_chips, np.int64)
    for state in graph.states:
        readers = graph.readers_of(state.read)
        if readers:
            held[plan.placement[readers[0]]] += stored[state.read]
    of_sequences = [state.read for state in graph.states if state.scope == "sequence"]
    of_model = [state.read for state in graph.states if state.scope == "model"]
    more = replace(plan, sequences=plan.sequences + 1)
    then = evaluate_plan(with_sequences(graph, more.sequences), target, more)
    has_sequences = graph.has_scope("sequence")
    return StateUse(
        sequences=plan.sequences,
        sequence_bytes=int(stored[of_sequences].sum()) // graph.sequences,
        model_bytes=int(stored[of_model].sum()),
        fullest_chip=int(held.argmax()),
        fullest_bytes=int(held.max()),
        waits_s=metrics.latency_s / plan.sequences if has_sequences else 0.0,
        one_more_s=then.interval_s if then.valid else None,
        one_more_reason=then.reason,
    )
