"""What states take on the chips, why others stay on the host, and the cost of one more sequence in flight."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from go_opt.env import Metrics, Target, cost_tables, evaluate_plan
from go_opt.model.graph import NO_PRODUCER, Graph, NamedState, with_sequences
from go_opt.model.plan import Plan

_Because = Literal["chips", "memory", "choice"]


@dataclass(frozen=True)
class HostState:
    """A state that the host keeps: an input and an output of each inference."""

    state: str
    in_bytes: int  # that the host sends for each inference
    out_bytes: int  # that it receives
    # Why the plan as it stands cannot keep it: its ops lie on several "chips", or the "memory" of their chip
    # is too small. "choice": it could.
    because: _Because
    chips: tuple[int, ...]  # of the ops that touch it
    free_bytes: int  # on the first of these chips, beside the plan's tensors
    needed_bytes: int  # of the state, for all sequences


@dataclass(frozen=True)
class StateUse:
    """The states of a graph under a plan."""

    sequences: int  # in flight
    sequence_bytes: int  # stored on the chips for each of them
    model_bytes: int  # stored on the chips once: states of scope ``model``
    fullest_chip: int  # the chip with most bytes of states
    fullest_bytes: int
    waits_s: float  # latency / sequences, below which no interval is; 0 without states of sequences
    one_more_s: float | None  # interval of the same plan with one more sequence; None: they do not fit
    one_more_reason: str  # why not; empty if they fit
    on_host: tuple[HostState, ...] = ()


def state_use(graph: Graph, target: Target, plan: Plan, metrics: Metrics) -> StateUse | None:
    """The states of ``graph``, which is costed for the plan's sequences; None if it has none."""
    if not (graph.states or graph.host_states):
        return None
    stored = cost_tables(graph, target).stored_bytes
    held = np.zeros(target.num_chips, np.int64)
    for state in graph.states:
        readers = graph.readers_of(state.read)
        if readers:
            sequences = graph.sequences if state.scope == "sequence" else 1
            # The first chip of a replicated stage has the most sequences.
            busiest = -(-sequences // int(plan.replication[readers[0]]))
            held[plan.placement[readers[0]]] += stored[state.read] // sequences * busiest
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
        on_host=tuple(host_states(graph, target, plan, metrics)),
    )


def host_states(graph: Graph, target: Target, plan: Plan, metrics: Metrics) -> Iterator[HostState]:
    """The states that the host keeps, and why; ``graph`` is costed for the plan's sequences."""
    tables = cost_tables(graph, target)
    for state in graph.host_states:
        pair = [graph.tensor_index.get(name) for name in (state.read, state.next)]
        sizes = [0 if k is None else int(tables.tensor_bytes[k]) for k in pair]
        chips = _chips_of(graph, plan, state)
        needed = max(0 if k is None else int(tables.stored_bytes[k]) for k in pair)
        needed *= graph.sequences if state.scope == "sequence" else 1
        chip = chips[0] if chips else 0
        free = int(tables.sram_bytes[chip] - metrics.peak_bytes[chip] - metrics.weight_bytes[chip])
        is_small: _Because = "memory" if needed > max(free, 0) else "choice"
        yield HostState(
            state=state.read,
            in_bytes=sizes[0],
            out_bytes=0 if state.next == state.read else sizes[1],
            because="chips" if len(chips) > 1 else is_small,
            chips=chips,
            free_bytes=free,
            needed_bytes=needed,
        )


def _chips_of(graph: Graph, plan: Plan, state: NamedState) -> tuple[int, ...]:
    """The chips of the ops that read a state or compute its next value, all of their stages."""
    ops = []
    for name in (state.read, state.next):
        if (k := graph.tensor_index.get(name)) is not None:
            ops += graph.readers_of(k) if name == state.read else []
            ops += [int(graph.tensor_producer[k])] if graph.tensor_producer[k] != NO_PRODUCER else []
    stages = {(int(plan.placement[op]), int(plan.replication[op])) for op in ops}
    return tuple(sorted(chip + i for chip, size in stages for i in range(size)))
