"""Searches for the states that the host keeps, together with the plan.

A state on the host is an input and an output of each step. It takes no memory from one step to the next, and
its ops may lie on several chips or replicas; but it crosses the host's links, and a step begins when its
sequence's last has ended all the same. With all states on the chips first; then, while a bound does not
exclude a gain, with all on the host, and with those of the chips that bind. Where states leave too little
room for a plan, or for the weights, those that free most memory for the bytes that they send go first, and
bisection finds how many.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from functools import cached_property
from typing import Final, NamedTuple

import numpy as np

from go_opt.common.arrays import IntArray
from go_opt.env import cost_tables
from go_opt.env.copies.splits import planned_graph, state_names
from go_opt.errors import InfeasibleError
from go_opt.model.graph import Graph, with_sequences
from go_opt.model.states import sized_states, with_host_states
from go_opt.result import OptimizeResult
from go_opt.search.bounds import bound_over_numbers, bound_with_host_states, sent_bytes
from go_opt.search.trials import NestedTrials
from go_opt.solver import Bound

MOST_TRIALS: Final = 8  # sets of states on the host
FIRST_SHARE: Final = 1 / 2  # of the budget, with all states on the chips, if others may be better
SHARE: Final = 1 / 8  # of the budget for each further set
CLEARLY: Final = 0.75  # of the best objective: a set is not tried if its bound is above
EQUAL: Final = 1e-6  # relative difference of objectives that are equal

Names = frozenset[str]  # of states, by what is read


class _Ranked(NamedTuple):
    """States in an order, by what is read."""

    names: list[str]
    freed: IntArray  # bytes of memory that this and those before it free
    sent: dict[str, int]  # bytes of each that cross the host's links


class HostStateSearch(NestedTrials):
    """The best plan over what the host keeps; its bound holds for every choice."""

    def __post_init__(self) -> None:
        super().__post_init__()
        graph = self._graph
        with self._context.compiling():
            self._rest = bound_with_host_states(graph, self._target, self._request)
        self._everything = Names(graph.tensor_names[state.read] for state in graph.states)
        self._bounds: dict[Names, Bound] = {}  # of the sets that were tried
        self._quick: dict[Names, Bound] = {}  # of sets without a search
        self._failures: dict[Names, InfeasibleError] = {}
        self._streaming: set[Names] = set()  # the sets with which weights take more of the links than states
        self._reached_s: dict[Names, float] = {}  # by the sets that have a plan
        with self._context.compiling():
            self._quick_bound(Names())

    def answer(self) -> OptimizeResult:
        """The best plan."""
        if self._request.start is None:
            # Of all choices this one fits the smallest memories.
            graph = with_sequences(self._with(self._everything), self._request.sequences or 1)
            self._plan_quickly(graph, replicates=False)
        if self._best is None or not self._is_over:
            self._try(Names(), FIRST_SHARE)
        given = self._request.start and self._request.start.plan
        if given and given.host_states:
            self._try(self._everything & set(given.host_states), SHARE)
        for _ in range(MOST_TRIALS):
            names = self._next()
            if names is None or self._is_over:
                break
            self._try(names, SHARE)
        names = self._most_promising()
        if names is not None and not self._is_over:
            self._try(names, 1.0)
        if self._best is None:
            raise self._failure()
        return self._complete(self._best)

    def _most_promising(self) -> Names | None:
        """The set of the best plan; else the first whose trial was too short for a plan or a proof."""
        if self._best is not None:
            return Names(self._best.plan.host_states)
        return next((names for names, error in self._failures.items() if not error.is_proven), None)

    def _try(self, names: Names, share: float) -> None:
        """Search with these states on the host for a share of the budget."""
        graph = self._with(names)
        is_late = self._context.after(share * self._request.time_limit_s)
        begun, limit = len(self._history), self._request.max_evaluations or math.inf

        def should_stop() -> bool:
            is_spent = is_late() or len(self._history) - begun >= share * limit
            return self._must_stop() or (is_spent and self._next() is not None)

        try:
            # The first goes on beyond its share if others promise no gain.
            has_tried = bool(self._bounds or self._failures)
            request = self._request_of(share if has_tried else 1.0)
            self._take(self._searched(graph, request, must_stop=should_stop))
        except InfeasibleError as error:
            self._failures[names] = error
            if error.is_proven:
                self._bounds[names] = Bound(math.inf, str(error))

    def _next(self) -> Names | None:
        """The next set of states to leave to the host; None: no further one promises a gain."""
        tried = {*self._bounds, *self._failures}
        sets = [self._everything] if Names() in self._bounds else [self._fitting(), self._everything]
        if self._best is not None and not self._is_quick:
            sets.append(self._binding())
        sets += self._between(tried)
        for names in sets:
            if names not in tried and self._may_gain(self._quick_bound(names)):
                return names
        return None

    def _may_gain(self, bound: Bound) -> bool:
        return self._best is None or bound.seconds < CLEARLY * self._best.objective_s

    def _quick_bound(self, names: Names) -> Bound:
        if names not in self._quick:
            self._quick[names] = bound_over_numbers(self._with(names), self._target, self._request)
        return self._quick[names]

    def _with(self, names: Names) -> Graph:
        """The graph with these states on the host."""
        return with_host_states(self._graph, tuple(sorted(names)))

    def _binding(self) -> Names:
        """The states that the best plan leaves to the host, and those of the chips that bind."""
        assert self._best is not None
        plan, metrics = self._best.plan, self._best.metrics
        graph = planned_graph(self._graph, plan)
        chip_of = {
            graph.tensor_names[state.read]: int(plan.placement[graph.readers_of(state.read)[0]])
            for state in graph.states
            if graph.readers_of(state.read)
        }
        if not chip_of:
            return Names(plan.host_states)
        if metrics.stream_bytes.any():
            chips = set(np.flatnonzero(metrics.stream_bytes).tolist())
        else:
            chips = {int(np.argmax(metrics.compute_s))}
        if chips.isdisjoint(chip_of.values()):
            held = {state.read: state.bytes for state in sized_states(graph, self._target.native_dtype)}
            chips = {chip_of[max(chip_of, key=held.__getitem__)]}
        whole = state_names(self._graph, plan)  # a part leaves with the others
        return Names((*plan.host_states, *(whole[name] for name, chip in chip_of.items() if chip in chips)))

    def _between(self, tried: Collection[Names]) -> list[Names]:
        """Half-way between the sets of :meth:`_ranked` that leave too little room, and those that do not."""
        names, low, high = self._ranked.names, -1, len(self._ranked.names) + 1
        least_s = math.inf
        for number in range(len(names), -1, -1):
            if (some := Names(names[:number])) in tried:
                reached_s = self._reached_s.get(some, math.inf)
                if some in self._streaming or reached_s > least_s or reached_s == math.inf:
                    low = number
                    break
                least_s, high = reached_s, number
        while low >= 0 and high - low >= 2:
            middle = Names(names[: (low + high) // 2])
            if self._may_gain(self._quick_bound(middle)):
                return [middle]
            high = len(middle)
        return []

    @cached_property
    def _ranked(self) -> _Ranked:
        """The states, those that free most memory for the bytes that they send first.

        Equal ones, such as those of all layers, are in bit-reversed order: the first ones are far apart.
        """
        graph = with_sequences(self._graph, self._request.sequences or 1)
        stored = cost_tables(graph, self._target).stored_bytes
        read = np.array([state.read for state in graph.states])
        enters, leaves = sent_bytes(graph, self._target)
        sent = (enters + leaves)[read]
        freed = np.maximum(stored[read] - 2 * sent, 0)  # inputs and outputs have two buffers
        bits = len(read).bit_length()
        apart = [int(f"{i:0{bits}b}"[::-1], 2) for i in range(len(read))]
        ranked = np.lexsort((apart, -freed, sent / np.maximum(freed, 1)))
        names = [graph.tensor_names[k] for k in read[ranked]]
        return _Ranked(names, np.cumsum(freed[ranked]), dict(zip(names, sent[ranked].tolist(), strict=True)))

    def _fitting(self) -> Names:
        """As few states as free the memory that is missing, or twice as many as in the last trial."""
        tables = cost_tables(with_sequences(self._graph, self._request.sequences or 1), self._target)
        names, freed, _ = self._ranked
        missing = tables.stored_bytes[np.diff(tables.reader_ptr) > 0].sum() - tables.sram_bytes.sum()
        most = max(map(len, self._failures), default=0)
        return Names(names[: max(int(np.searchsorted(freed, missing)) + 1, 2 * most)])

    def _take(self, found: OptimizeResult) -> None:
        best, names = self._best, Names(found.plan.host_states)
        streamed, sent = found.metrics.stream_bytes.sum(), sum(self._ranked.sent[name] for name in names)
        binds = found.metrics.link_s[-2:].max() > found.objective_s / 2  # the host's links
        (self._streaming.add if binds and streamed > sent else self._streaming.discard)(names)
        self._reached_s[names] = min(found.objective_s, self._reached_s.get(names, math.inf))
        if found.lower_bound_s >= self._bounds.get(names, Bound(0.0, "")).seconds:
            self._bounds[names] = Bound(found.lower_bound_s, found.bound_reason)
        if best is not None:
            is_same = found.plan.host_states == best.plan.host_states
            limit_s = best.objective_s * (1.0 + EQUAL if is_same else 1.0 - EQUAL)
            if found.objective_s > limit_s:
                return
        self._keep(found)

    def _bound(self) -> Bound:
        """The bound over all sets: of those that were tried their own, of the others that of the rest."""
        bounds = [*self._bounds.values()]
        if Names() not in self._bounds:
            bounds.append(self._quick_bound(Names()))
        if len(self._bounds) < 2 ** len(self._graph.states):
            bounds.append(self._rest)
        return min(bounds, key=lambda bound: bound.seconds)

    def _failure(self) -> InfeasibleError:
        """The reason with all states on the chips."""
        are_all = len(self._failures) == 2 ** len(self._graph.states)
        is_proven = are_all and all(error.is_proven for error in self._failures.values())
        first = self._failures[Names()]
        # What is proven of the chips is not so of states on the host.
        reason = str(first) if first.is_proven <= is_proven else f"with all states on the chips, {first}"
        return InfeasibleError(reason, is_proven=is_proven, conflict=first.conflict)
