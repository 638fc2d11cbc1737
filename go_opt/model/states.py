"""How a state gets its next value, and the order of ops that this needs.

The next value may replace the old one when every other reader of the old value has read it. Where a path of
the graph does not ensure that, a tensor without elements does: it makes the reader come before the op that
writes. Only where a reader of the old value needs the next value, both are kept.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Final, NamedTuple, get_args

import numpy as np

from go_opt.common.arrays import frozen
from go_opt.errors import GraphError, PlanError
from go_opt.model.dtypes import costed_dtype, size_bytes
from go_opt.model.graph import INPUT, NO_PRODUCER, Graph, NamedState, Scope, State

# Ops that change a part of a buffer that they read, and leave the rest where it is.
WRITES_A_PART: Final = frozenset(
    {
        "Concat",
        "ScatterND",
        "ScatterElements",
        "Scatter",
        "TensorScatter",
        "Attention",
        "GroupQueryAttention",
        "MultiHeadAttention",
    }
)
# Of these, those that compute with all of the old value.
READS_ALL: Final = frozenset({"Attention", "GroupQueryAttention", "MultiHeadAttention"})


class SizedState(NamedTuple):
    """A state by the names of its tensors, with its size: of one sequence, or of the model."""

    read: str
    next: str
    scope: Scope
    bytes: int  # of the longer of the two
    where: str  # "chip", or "host": an input and an output of each step


def check_scope(scope: str, what: str) -> None:
    """Raise GraphError if ``scope`` is not a Scope."""
    if scope not in get_args(Scope):
        raise GraphError(f"{what}: scope must be 'sequence' or 'model', not {scope!r}.", field="states")


def sized_states(graph: Graph, native_dtype: str | None = None) -> tuple[SizedState, ...]:
    """The states of a graph; without the native type of a target, sizes are in the model's own types."""
    codes = graph.tensor_dtype
    if native_dtype is not None:
        codes = costed_dtype(codes, native_dtype, graph.precision)
    sizes, place = size_bytes(graph.tensor_elements, codes), graph.tensor_index

    def sized(state: NamedState, where: str) -> SizedState:
        # The parts of a split op may make up the next value, which then is no tensor.
        pair = [place[name] for name in (state.read, state.next) if name in place]
        return SizedState(*state, int(sizes[pair].max()), where)

    on_chips = (sized(named_state(graph, state), "chip") for state in graph.states)
    return (*on_chips, *(sized(state, "host") for state in graph.host_states))


def named_state(graph: Graph, state: State) -> NamedState:
    """A state of a graph by the names of its tensors."""
    return NamedState(graph.tensor_names[state.read], graph.tensor_names[state.next], state.scope)


def without_states(graph: Graph, is_left_out: Callable[[str], bool]) -> Graph:
    """The graph with some states, by name, as inputs and outputs that it does not know to be states."""
    out = [state for state in graph.states if is_left_out(graph.tensor_names[state.read])]
    if not out:
        return graph
    names = (graph.tensor_names[state.read] for state in out)
    return replace(_as_inputs(graph, out), unpaired_states=(*graph.unpaired_states, *names))


@lru_cache(maxsize=64)
def with_host_states(graph: Graph, names: tuple[str, ...]) -> Graph:
    """The graph with some states, by the name of what is read, kept by the host.

    Raises:
      PlanError: the graph has no such state; the message names it.
    """
    known = {state.read for state in graph.host_states}
    moved = set(names) - known
    out = [state for state in graph.states if graph.tensor_names[state.read] in moved]
    if len(out) < len(moved):
        unknown = min(moved - {graph.tensor_names[state.read] for state in out})
        raise PlanError(f"plan: host_states: the graph has no state {unknown[:80]!r}.", field="host_states")
    if not out:
        return graph
    return replace(
        _as_inputs(graph, out),
        host_states=(*graph.host_states, *(named_state(graph, state) for state in out)),
        sent_fingerprint=graph.fingerprint,
    )


def _as_inputs(graph: Graph, out: Sequence[State]) -> Graph:
    """The graph with the states ``out`` as inputs that the host sends and outputs that it reads."""
    read = [state.read for state in out]
    kind, is_output = graph.tensor_kind.copy(), graph.tensor_is_output.copy()
    kind[read] = INPUT
    following = np.array([state.next for state in out])
    is_output[following[graph.tensor_producer[following] != NO_PRODUCER]] = True
    # Ops that touched a state without reading it are no readers of the input.
    keeps = (graph.reader_elements > 0) | ~np.isin(graph.reader_tensor, read)
    return replace(
        graph,
        tensor_kind=frozen(kind),
        tensor_is_output=frozen(is_output),
        reader_ptr=frozen(np.concatenate([[0], np.cumsum(keeps)])[graph.reader_ptr]),
        reader_op=frozen(graph.reader_op[keeps]),
        reader_elements=frozen(graph.reader_elements[keeps]),
        states=tuple(state for state in graph.states if state not in out),
    )


class Paths:
    """Which of the ops ``ends`` paths of a graph lead to, while edges are added.

    Args:
      successors: [N] the ops that read what each op computes.
    """

    def __init__(self, successors: Sequence[Sequence[int]], ends: Iterable[int]) -> None:
        self._bit = {op: 1 << i for i, op in enumerate(dict.fromkeys(ends))}
        self._before: list[list[int]] = [[] for _ in successors]
        for op, following in enumerate(successors):
            for reader in following:
                self._before[reader].append(op)
        self._reached = [0] * len(successors)  # bits of ends
        left = [*map(len, successors)]
        waiting = [op for op, number in enumerate(left) if number == 0]
        while waiting:  # ops of a cycle never come; the order of ops refuses them
            op = waiting.pop()
            for source in self._before[op]:
                self._reached[source] |= self._reached[op] | self._bit.get(op, 0)
                left[source] -= 1
                if left[source] == 0:
                    waiting.append(source)

    def leads(self, op: int, end: int) -> bool:
        """Whether a path leads from an op to another one, of ``ends``."""
        return bool(self._reached[op] & self._bit[end])

    def late(self, writer: int, readers: Iterable[int]) -> tuple[list[int], int]:
        """Readers that no path leads from to the writer, and 2 buffers if one lies behind the writer."""
        if any(self.leads(writer, reader) for reader in readers):
            return [], 2
        return sorted(reader for reader in readers if not self.leads(reader, writer)), 1

    def add(self, op: int, end: int) -> None:
        """Add an edge between two ops."""
        self._before[end].append(op)
        waiting, added = [op], self._reached[end] | self._bit[end]
        while waiting:
            at = waiting.pop()
            if added & ~self._reached[at]:
                self._reached[at] |= added
                waiting += self._before[at]
