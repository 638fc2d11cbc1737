"""Ways to share the layers of a training step among chips: each weight is divided, or each chip has it whole.

Where weights are divided, so are the products with them, their gradients and updates: tensor parallelism
(Shoeybi et al., 2019); other ops follow what they read. With a weight that is whole, a chip computes a share
of the rows, or all of them. Which weights are divided is chosen by a descent, those that are used alike
together, by the seconds of all ops and of the collectives between them. Replicas of such a step, which have
shares of the batch, are a second level of splits.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from functools import cached_property
from itertools import combinations, product
from typing import Final, Literal, NamedTuple

import numpy as np

from go_opt.common.arrays import FloatArray
from go_opt.env import Target, cost_tables, greedy_fusion, loop_roles
from go_opt.env.copies.divisions import divisible_factors, period_in, state_period
from go_opt.env.copies.exchanges import collective_of
from go_opt.env.cost.exchanges import collective_s
from go_opt.env.kernels.numbering import kernel_seconds
from go_opt.model.graph import Graph
from go_opt.model.plan import CollectiveOp, Split
from go_opt.model.rule import Affine

# Stage 2 of ZeRO (Rajbhandari et al., 2020): a replica sums its slice of the gradients (reduce-scatter),
# updates its slice of moments and weights, and hands its slice of the new weights to all (all-gather).


def update_factors(graph: Graph, updates: Collection[int], parts: int) -> dict[int, int]:
    """The factor along which each op of updates is divided into ``parts`` slices of equal size.

    Weights, moments and gradients that ops read together are cut alike, along their first dimension or, where
    that cannot be divided, along another. Ops of others are left out: each replica computes them.

    Args:
      updates: the ops that no op along the batch waits for.
    """
    found: dict[int, int] = {}
    for state in graph.states:
        touching = [op for op in graph.readers_of(state.read) if op in updates]
        if state.scope != "model" or not touching or any(op in found for op in touching):
            continue
        elements = int(graph.tensor_elements[state.read])
        for period in cut_periods(graph, touching[0], state.read, elements):
            factors = spread_cut(graph, updates, state.read, period, parts)
            if factors and found.keys().isdisjoint(factors):
                found |= factors
                break
    return found


def cut_periods(graph: Graph, op: int, tensor: int, elements: int) -> Iterator[int]:
    """The periods of cuts of a tensor along its dimensions, the first dimension first."""
    factors = divisible_factors(graph, with_states=False)[op]
    periods = {period_in(graph, op, factor, tensor) for factor in factors} - {0}
    yield from sorted((period for period in periods if elements % period == 0), reverse=True)


def spread_cut(
    graph: Graph, updates: Collection[int], tensor: int, period: int, parts: int
) -> Mapping[int, int] | None:
    """The factors of all ops of updates that are connected with a tensor; None if one cannot be divided.

    One element, such as the number of the step, connects nothing: each replica has it.
    """
    periods, factors, waiting = {tensor: period}, dict[int, int](), [tensor]
    following = {state.read: state.next for state in graph.states} | {
        state.next: state.read for state in graph.states
    }
    while waiting:
        k = waiting.pop()
        for op in {*graph.readers_of(k), int(graph.tensor_producer[k])} & set(updates):
            row = graph.rule_of(op)
            if op in factors or (row is not None and k not in (*row.operands, *row.results)):
                continue  # or an op that only touches a state, whose next value it writes
            factor = next(
                (
                    one
                    for one in divisible_factors(graph, with_states=False)[op]
                    if period_in(graph, op, one, k) == periods[k]
                    and row is not None
                    and row.rule.factors[one].size % parts == 0
                ),
                None,
            )
            if factor is None or row is None:
                return None
            factors[op] = factor
            connected = [one for one in (*row.operands, *row.results) if graph.tensor_elements[one] > 1]
            connected += [following[one] for one in connected if one in following]
            for one in dict.fromkeys(connected):
                cut = period_in(graph, op, factor, one) if one in (*row.operands, *row.results) else 0
                cut = cut or periods.get(following.get(one, -1), 0)
                if not cut or periods.setdefault(one, cut) != cut:
                    return None
                waiting.append(one)
    return factors


WHOLE: Final = 0  # in the place of the period of a cut: each chip has all
ROWS: Final = -1  # of a weight: each chip has all of it, and a share of the rows that it is multiplied with
MOST_PAIRS: Final = 16  # of kinds of weights that are divided at once
Chosen = Mapping[int, int]  # weight -> WHOLE, ROWS or the period of its cuts


class Shared(NamedTuple):
    """A way to share layers, and its seconds by the estimate."""

    way: tuple[Split, ...]
    seconds: float


class _Along(NamedTuple):
    """A factor along which an op may be divided."""

    factor: int
    is_sum: bool
    size: int
    period: Mapping[int, int]  # of the cuts of each tensor of its rule; 0: it is not cut


class LayerWays:
    """The ways of one step.

    Args:
      along_batch: the factor along the batch of each op that has the batch.
      updates: the ops that no op along the batch waits for.
    """

    def __init__(
        self, graph: Graph, target: Target, along_batch: Mapping[int, int], updates: frozenset[int]
    ) -> None:
        self._graph, self._target = graph, target
        self._along_batch, self._updates = along_batch, updates
        self._batched = {
            k
            for op, factor in along_batch.items()
            for k in graph.known_rule_of(op).results
            if period_in(graph, op, factor, k)
        }
        self._states = {state.read: state for state in graph.states}
        self._readers = [graph.readers_of(k) for k in range(graph.num_tensors)]
        self._touched = [
            [k for k, _ in graph.reads_of(op) if k in self._states] for op in range(graph.num_ops)
        ]
        self._spreads: dict[tuple[int, int, int], Mapping[int, int] | None] = {}
        self._taken_s: dict[tuple[CollectiveOp, int, int, float], float] = {}

    def replicas_s(self, replicas: int) -> float:
        """The seconds of replicas with all layers, by the same estimate."""
        return self._seconds({}, 1, replicas)

    def best(self, parts: int, replicas: int, is_over: Callable[[], bool] = lambda: False) -> Shared | None:
        """The way among ``parts`` chips with the least seconds of a share of the batch, or None."""
        options = self._options(parts)
        kinds = list(self._kinds(options).values())
        found: dict[tuple[int, ...], float] = {}

        def seconds(values: tuple[int, ...]) -> float:
            if values not in found:
                along = self._along(_of_kinds(kinds, values), parts)
                found[values] = np.inf if along is None else self._seconds(along, parts, replicas)
            return found[values]

        of_kinds = [(WHOLE, ROWS, *options[kind[0]]) for kind in kinds]
        for start in (WHOLE, ROWS):
            _descend((start,) * len(kinds), of_kinds, seconds, is_over)
        divided = [values for values in found if any(value > 0 for value in values)]
        best = min(divided, key=lambda values: found[values], default=None)
        if best is None or not np.isfinite(found[best]):
            return None
        along = self._along(_of_kinds(kinds, best), parts)
        assert along is not None
        return Shared(tuple(self._splits(along, parts)), found[best])

    def _options(self, parts: int) -> dict[int, tuple[int, ...]]:
        """The periods of cuts of each weight that products and updates can divide alike."""
        graph, found = self._graph, dict[int, tuple[int, ...]]()
        for k, state in self._states.items():
            touching = self._readers[k]
            updating = [op for op in touching if op in self._updates]
            if state.scope == "model" and updating and len(updating) < len(touching):
                periods = cut_periods(graph, updating[0], k, int(graph.tensor_elements[k]))
                found[k] = tuple(
                    period
                    for period in dict.fromkeys(periods)
                    if self._spread(k, period, parts)
                    and all(self._dividing(op, k, period, parts) is not None for op in touching)
                )
        return found

    def _spread(self, k: int, period: int, parts: int) -> Mapping[int, int] | None:
        """The factors of the ops of the update of a weight that is cut."""
        key = k, period, parts
        if key not in self._spreads:
            self._spreads[key] = spread_cut(self._graph, self._updates, k, period, parts)
        return self._spreads[key]

    def _kinds(self, options: Mapping[int, tuple[int, ...]]) -> dict[object, list[int]]:
        """Weights of equal size that ops of equal rules touch."""
        graph, found = self._graph, dict[object, list[int]]()
        for k in options:
            rows = [(graph.op_types[op], graph.rule_of(op)) for op in self._readers[k]]
            key = tuple((kind, None if row is None else row.rule) for kind, row in rows)
            found.setdefault((int(graph.tensor_elements[k]), key, options[k]), []).append(k)
        return found

    def _dividing(self, op: int, k: int, period: int, parts: int) -> _Along | None:
        """Along what an op divides a state in slices of equal size."""
        found = (one for one in self._open[op] if one.size % parts == 0)
        state = self._states[k]
        return next(
            (one for one in found if state_period(self._graph, op, one.factor, state) == period), None
        )

    @cached_property
    def _open(self) -> list[list[_Along]]:
        """[N] along what ops can be divided, but for windows."""
        graph, found = self._graph, list[list[_Along]]()
        for op, factors in enumerate(divisible_factors(graph, with_states=False)):
            found.append([])
            if not factors:
                continue
            row = graph.known_rule_of(op)
            pieces = (piece for access in row.rule.operands for dimension in access for piece in dimension)
            through = [(one.factor, one.window) for one in pieces if isinstance(one, Affine)]
            tensors = dict.fromkeys(k for k in (*row.operands, *row.results) if k >= 0)
            for i in factors:
                one = row.rule.factors[i]
                if not any(i in pair for pair in through):
                    periods = {k: period_in(graph, op, i, k) for k in tensors}
                    found[op].append(_Along(i, one.kind == "reduction", one.size, periods))
        return found

    def _along(self, chosen: Chosen, parts: int) -> dict[int, _Along] | None:
        """Along what each op is divided, others are copied; None if weights cannot be divided so."""
        along: dict[int, _Along] = {}
        for k, period in chosen.items():
            for op, factor in (self._spread(k, period, parts) or {}).items() if period > 0 else ():
                one = next((one for one in self._open[op] if one.factor == factor), None)
                if one is None or along.setdefault(op, one) != one:
                    return None
        layout: dict[int, int] = {}  # the period of the cuts of tensors
        for op in range(self._graph.num_ops):
            if op not in self._updates:
                found = self._for_op(op, chosen, layout, parts)
                if found is False:
                    return None
                if found is not None:
                    along[op] = found
            if op in along and not along[op].is_sum:
                layout |= {k: along[op].period.get(k, 0) for k in self._graph.known_rule_of(op).results}
        return along

    def _for_op(
        self, op: int, chosen: Chosen, layout: Mapping[int, int], parts: int
    ) -> _Along | Literal[False] | None:
        """Along what an op is divided, by the weights that it touches or the tensors that it reads.

        None: it is copied. False: its weights cannot be divided as is chosen.
        """
        touched = self._touched[op]
        wanted = [chosen.get(k, WHOLE) for k in touched]
        if any(value > 0 for value in wanted):
            k, period = next((k, value) for k, value in zip(touched, wanted, strict=True) if value > 0)
            one = self._dividing(op, k, period, parts)
            is_alike = one is not None and all(one.period.get(k, 0) == max(value, 0)
                                               for k, value in zip(touched, wanted, strict=True))  # fmt: skip
            return one if one is not None and is_alike else False
        if ROWS in wanted:
            factor = self._along_batch.get(op)
            return next(
                (one for one in self._open[op] if one.factor == factor and not one.size % parts), None
            )
        row = self._graph.rule_of(op)
        read = [] if touched or row is None else [(k, layout[k]) for k in row.operands if layout.get(k)]
        if not read or row is None:
            return None
        best_s = float(self._op_s[op]) * (1.0 - 1.0 / parts) + sum(
            self._gathered_s(k, parts) for k, _ in read
        )
        best = None
        for one in self._open[op]:
            if one.size % parts or one.size < 2 * parts:
                continue
            took_s = sum(self._gathered_s(k, parts) for k, cut in read if one.period[k] != cut)
            if one.is_sum:
                took_s += self._exchanged_s(CollectiveOp.ALL_REDUCE, row.results[0], parts)
            if took_s < best_s:
                best_s, best = took_s, one
        return best

    @cached_property
    def _op_s(self) -> FloatArray:
        """[N] seconds of each op: its share of a kernel, without the start."""
        graph, target = self._graph, self._target
        tables = cost_tables(graph, target)
        kernel_of = greedy_fusion(
            loop_roles(graph, target.kernel_patterns), np.arange(graph.num_ops, dtype=np.int32)
        )
        work_s = kernel_seconds(tables, kernel_of).min(axis=0) - float(tables.kernel_overhead_s.min())
        own_s = tables.own_s().min(axis=0) + 1e-15
        of_kernel = np.bincount(kernel_of, weights=own_s)
        return np.asarray(own_s / of_kernel[kernel_of] * np.maximum(work_s, 0.0)[kernel_of], np.float64)

    @cached_property
    def _bytes(self) -> FloatArray:
        tables = cost_tables(self._graph, self._target)
        return np.maximum(tables.tensor_bytes, tables.stored_bytes).astype(np.float64)

    def _gathered_s(self, k: int, parts: int) -> float:
        return self._exchanged_s(CollectiveOp.ALL_GATHER, k, parts)

    def _exchanged_s(self, of: CollectiveOp, k: int, parts: int, share: float = 1.0) -> float:
        key = of, k, parts, share
        if key not in self._taken_s:
            self._taken_s[key] = self._collective_s(of, float(self._bytes[k]) * share, parts)
        return self._taken_s[key]

    def _collective_s(self, of: CollectiveOp, num_bytes: float, group: int) -> float:
        seconds = collective_s(self._target.collectives, of, num_bytes, group)
        return np.inf if seconds is None else seconds

    def _seconds(self, along: Mapping[int, _Along], parts: int, replicas: int) -> float:
        """Of a step of replicas that each share layers like that, without the starts of kernels."""
        graph = self._graph
        share = np.ones(graph.num_ops)
        share[list(along)] /= parts
        share[list(self._along_batch)] /= replicas
        seconds = float(share @ self._op_s)
        for op, one in along.items():
            for k in graph.known_rule_of(op).results:
                of = self._exchange(one, k, along)
                if of is not None:
                    batch = replicas if k in self._batched else 1
                    seconds += self._exchanged_s(of, k, parts, 1.0 / batch)
        summed = 0.0  # bytes of gradients
        for op, factor in self._along_batch.items():
            row = graph.known_rule_of(op)
            if row.rule.factors[factor].kind == "reduction":
                k = row.results[0]
                is_cut = op in along and bool(along[op].period.get(k))
                summed += float(self._bytes[k]) / (parts if is_cut else 1)
        if summed and replicas > 1:
            seconds += self._collective_s(CollectiveOp.ALL_REDUCE, summed, replicas)
        return seconds

    def _exchange(self, one: _Along, k: int, along: Mapping[int, _Along]) -> CollectiveOp | None:
        """The collective behind the parts of an op, if there is one."""
        wanted = {along[reader].period.get(k, 0) if reader in along else 0 for reader in self._readers[k]}
        is_output = bool(self._graph.tensor_is_output[k])
        return collective_of(one.period.get(k, 0), wanted, is_sum=one.is_sum, is_output=is_output)

    def _splits(self, along: Mapping[int, _Along], parts: int) -> Iterator[Split]:
        graph = self._graph
        for op, name in enumerate(graph.op_names):
            if op not in along:
                yield Split(name, "", parts)
                continue
            row = graph.known_rule_of(op)
            meets = any(self._exchange(along[op], k, along) is not None for k in row.results)
            factor = row.rule.factors[along[op].factor].name
            yield Split(name, factor, parts, joined=meets, collective=meets)


def _of_kinds(kinds: list[list[int]], values: tuple[int, ...]) -> Chosen:
    return {k: value for kind, value in zip(kinds, values, strict=True) for k in kind}


def _descend(
    at: tuple[int, ...],
    options: list[tuple[int, ...]],
    seconds: Callable[[tuple[int, ...]], float],
    is_over: Callable[[], bool],
) -> None:
    """Change one of the values, or divide two of the weights, as long as that is faster."""
    while not is_over():
        better = at
        for i, of in enumerate(options):
            for value in of if not is_over() else ():
                better = min(better, (*better[:i], value, *better[i + 1 :]), key=seconds)
        if better == at:
            for i, j in list(combinations(range(len(at)), 2))[:MOST_PAIRS]:
                for a, b in product(options[i], options[j]):
                    if a > 0 and b > 0:
                        pair = tuple({i: a, j: b}.get(n, value) for n, value in enumerate(better))
                        better = min(better, pair, key=seconds)
                if is_over():
                    return
        if better == at:
            return
        at = better
