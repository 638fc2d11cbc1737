"""Blocks around states: the ops that touch a state, and those that are divided along the same elements.

From the ops that touch a state, such as the heads of a cache, a block goes on to readers of its parts, up to
products that are divided along their sums, and to the ops before, back to products that are divided by their
columns. What is divided in no such way is joined, or taken from the whole.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from functools import lru_cache

from go_opt.env.copies.divisions import divisible_factors, period_in, state_period, touched_states
from go_opt.model.graph import ACTIVATION, MATRIX, NO_PRODUCER, WEIGHT, Graph, State

Block = tuple[tuple[int, int], ...]  # ops in order, each with the factor along which it is divided


@lru_cache(maxsize=16)
def state_blocks(graph: Graph) -> tuple[Block, ...]:
    """Blocks that divide states, at most one for each state; no op is in two of them.

    Of the cuts of a state, one that divides weights comes first, then one that divides fewer ops.
    """
    found: dict[int, Block] = {}
    for state in graph.states:
        ops = graph.readers_of(state.read)
        if not ops or not found.keys().isdisjoint(ops):
            continue
        periods = {state_period(graph, ops[0], factor, state) for factor in divisible_factors(graph)[ops[0]]}
        blocks = [block for period in periods if (block := _block_around(graph, state, period))]
        blocks = [block for block in blocks if found.keys().isdisjoint(op for op, _ in block)]
        best = min(blocks, key=lambda block: (not _divides_weights(graph, block), len(block)), default=())
        found |= dict.fromkeys((op for op, _ in best), best)
    return tuple(dict.fromkeys(found.values()))


def _block_around(graph: Graph, state: State, period: int) -> Block:
    """The block of a state that is cut with a period; () if an op would be divided in two ways."""
    found: dict[int, int] = {}
    waiting = list(_touching(graph, state, period))
    while waiting:
        op, factor = waiting.pop()
        if op in found:
            if found[op] != factor:
                return ()
            continue
        found[op] = factor
        for one in touched_states(graph).get(op, ()):
            waiting += _touching(graph, one, state_period(graph, op, factor, one))
        waiting += [one for one in _divided_alike(graph, op, factor) if one[0] not in found]
    return tuple(sorted(found.items()))


def _touching(graph: Graph, state: State, period: int) -> Iterator[tuple[int, int]]:
    for op in graph.readers_of(state.read):
        open_factors = divisible_factors(graph)[op]
        yield op, next(i for i in open_factors if state_period(graph, op, i, state) == period)


def _divided_alike(graph: Graph, op: int, factor: int) -> Iterator[tuple[int, int]]:
    """Readers and producers of the parts of an op that can go on with them."""
    for k, _ in graph.reads_of(op):
        source, period = int(graph.tensor_producer[k]), period_in(graph, op, factor, k)
        if period and source != NO_PRODUCER and graph.tensor_kind[k] == ACTIVATION:
            along = _factor_with(graph, source, k, period, ("parallel",))
            if along is not None:
                yield source, along
    for k in graph.outputs_of(op):
        period = period_in(graph, op, factor, k)
        for reader in graph.readers_of(k) if period else ():
            along = _factor_with(graph, reader, k, period, ("parallel", "reduction"))
            if along is not None:
                yield reader, along


def _factor_with(graph: Graph, op: int, tensor: int, period: int, kinds: Collection[str]) -> int | None:
    """The factor of an op with this period in a tensor; of a product, one that divides its weight."""
    factors = graph.known_rule_of(op).rule.factors if divisible_factors(graph)[op] else ()
    divided = [tensor, *(_large_weights(graph, op) if graph.op_class[op] == MATRIX else ())]
    found = (
        i
        for i in divisible_factors(graph)[op]
        if factors[i].kind in kinds
        and period_in(graph, op, i, tensor) == period
        and all(period_in(graph, op, i, k) for k in divided)
    )
    return next(found, None)


def _large_weights(graph: Graph, op: int) -> list[int]:
    """The largest weight of an op, if it has any."""
    weights = [k for k, _ in graph.reads_of(op) if graph.tensor_kind[k] == WEIGHT]
    return sorted(weights, key=lambda k: int(graph.tensor_elements[k]))[-1:]


def _divides_weights(graph: Graph, block: Block) -> bool:
    return any(graph.op_class[op] == MATRIX and _large_weights(graph, op) for op, _ in block)
