"""Whether one state may follow another in a chain, and the extra cost of the segment between them."""

from __future__ import annotations

from go_opt.common.arrays import LongArray
from go_opt.common.compiling import int64, uncounted_inner
from go_opt.solver.certify.problem.problem import UnitGraph
from go_opt.solver.certify.states.states import StatePool
from go_opt.solver.problem.forwarding_mode import RELAYED


@uncounted_inner
def may_follow(
    before: LongArray, outside: LongArray, state: int, after: int, first_word: int, last_word: int
) -> bool:
    """Returns whether some down-set of ``after`` may follow some down-set of ``state``.

    The arguments are arrays, because passing the pool costs more than the test.
    """
    for word in range(first_word, last_word + 1):  # noqa: SIM110 - compiled to a loop of its own
        if before[state, word] & outside[after, word]:
            return False
    return True


@uncounted_inner
def extra_ticks(graph: UnitGraph, pool: StatePool, state: int, after: int) -> int:
    """Returns the least ticks of any segment between the two for copies and for shared inputs."""
    extra = int64(0)
    if graph.passing == RELAYED:
        for word in range(pool.crosses.shape[1]):
            passed = pool.crosses[state, word] & pool.ends[after, word]
            if passed != 0:
                for bit in range(64):
                    if (passed >> bit) & 1:
                        extra += graph.relay_ticks[64 * word + bit]
    for i in range(len(graph.input_ticks)):
        begin = graph.input_reader_ptr[i]
        end = graph.input_reader_ptr[i + 1]
        is_read = False
        may_read = 0
        for r in range(begin, end):
            unit = graph.input_reader[r]
            word = unit >> 6
            bit = unit & 63
            is_done = (pool.inside[state, word] >> bit) & 1
            is_later = (pool.outside[after, word] >> bit) & 1
            if is_done or is_later:
                continue
            may_read += 1
            is_read |= ((pool.outside[state, word] >> bit) & 1) and ((pool.inside[after, word] >> bit) & 1)
        if is_read:
            extra += graph.input_ticks[i] - may_read * (graph.input_ticks[i] // (end - begin))
    return extra
