"""Which ops of an update replicas can share: each updates a slice of the weights, with its moments.

Stage 2 of ZeRO (Rajbhandari et al., 2020): a replica sums its slice of the gradients (reduce-scatter),
updates its slice of moments and weights, and hands its slice of the new weights to all (all-gather).
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping

from go_opt.env.copies.divisions import divisible_factors, period_in
from go_opt.model.graph import Graph


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
