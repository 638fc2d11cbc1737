"""Chains through states with several labels: what is merged never rules out a plan.

A label of a state says how much work is done, how many bytes were streamed and how many weight
bytes are resident. Each may be better in another label; from the third on they are merged.
"""

from __future__ import annotations

import numpy as np

from go_opt.env import CostTables, cost_tables, evaluate_batch
from go_opt.model.builder import GraphBuilder
from go_opt.model.graph import Graph
from go_opt.solver.certify.build import refinement_problem
from go_opt.solver.certify.chains import ChainSearch, chain_search, find_chain
from go_opt.solver.certify.problem import UnitGraph
from go_opt.solver.certify.states import ANYTHING, EVERYTHING, NOTHING, StatePool, state_pool
from tests.solver.placement_oracle import monotone_placements
from tests.strategies import examples, small_mcm

NEVER_DEAD = 2**60
Sides = tuple[frozenset[int], frozenset[int]]  # units forced in, and units forced out


def add_op(b: GraphBuilder, name: str, us: float, weight_bytes: int, read: str | None = None) -> None:
    reads = [(read, None)] if read else []
    if weight_bytes:
        b.add_tensor(f"w_{name}", weight_bytes, "int8", "weight")
        reads.append((f"w_{name}", None))
    b.add_op(
        name, "Gather", "data_movement", flops=0, dtype="int8", reads=reads,
        writes=[(f"t_{name}", 1, "int8")], measured_s={"chip": us * 1e-6},
    )  # fmt: skip


def tight_units(graph: Graph, tables: CostTables) -> tuple[UnitGraph, float]:
    """One unit per op, whose memory counts, and the seconds of a tick."""
    problem = refinement_problem(graph, tables, forwarding="free", tight=True)
    assert problem.tight is not None
    return problem.tight, problem.tick_s


def pool_of(units: UnitGraph, states: list[Sides]) -> StatePool:
    """A pool of nothing, everything and ``states``, over links that take no time."""
    pool = state_pool(units, ANYTHING + len(states))
    total = int(units.unit_ticks.sum())
    for state, (inside, outside) in enumerate(states, ANYTHING):
        pool.inside[state, 0] = sum(1 << unit for unit in inside)
        pool.outside[state, 0] = sum(1 << unit for unit in outside)
        pool.last_inside[state] = 0 if inside else -1
        pool.first_outside[state] = 0 if outside else 1
        pool.low[state] = units.unit_ticks[list(inside)].sum()
        pool.high[state] = total - units.unit_ticks[list(outside)].sum()
        pool.num_free[state] = units.num_units - len(inside) - len(outside)
    pool.num_states[0] = ANYTHING + len(states)
    return pool


def split_at_random(rng: np.random.Generator, units: UnitGraph, most: int) -> list[Sides]:
    """At most ``most`` states; every down-set lies in exactly one."""
    num_units = units.num_units
    ancestors = [{unit} for unit in range(num_units)]
    for unit in range(num_units):
        for before in units.predecessor[units.predecessor_ptr[unit] : units.predecessor_ptr[unit + 1]]:
            ancestors[unit] |= ancestors[before]
    states: list[Sides] = [(frozenset(), frozenset())]
    for _ in range(3 * most):
        at = int(rng.integers(len(states)))
        inside, outside = states[at]
        free = sorted(set(range(num_units)) - inside - outside)
        if free and len(states) < most:
            pivot = int(rng.choice(free))
            readers = {unit for unit in range(num_units) if pivot in ancestors[unit]}
            states[at] = (inside | ancestors[pivot], outside)
            states.append((inside, outside | readers))
    return states


def merges_that_count(pool: StatePool, search: ChainSearch, ticks: int) -> int:
    """Labels that have more work than the label which they continue now allows."""
    labels = np.arange(1, int(search.level_end.max()))
    before = search.label_before[labels]
    reach = np.minimum(pool.high[search.label_state[labels]], search.label_work[before] + ticks)
    return int((search.label_work[labels] > reach).sum())


def test_a_merged_label_keeps_the_most_work_of_both() -> None:
    """Four chips of 1000 bytes; the link to the host carries 150 bytes in 10 us.

    Ops take 6, 2, 2, 8, 10 and 8 us, and 10 us is reached by ``a b | c d | e | f`` alone. Op a fills a
    chip, so b and c behind it stream 49 bytes each, and f streams 70: with b and c on the first chip
    too much streams. Without b, the second chip ends after 16 us, and e behind c does not fit on the
    third. All three states of the first chip lead to "a and d, not e": only the second leads on.
    """
    b = GraphBuilder("three labels")
    add_op(b, "a", 6, 996)
    add_op(b, "b", 2, 50, "t_a")
    add_op(b, "c", 2, 50, "t_b")
    add_op(b, "d", 8, 0)
    add_op(b, "e", 10, 0, "t_c")
    add_op(b, "f", 8, 1070, "t_e")
    graph = b.build()
    target = small_mcm(4, sram_bytes=1000, host_in_bytes_per_s=15e6, link_bytes_per_s=1e12)
    units, tick_s = tight_units(graph, cost_tables(graph, target))
    ticks = int(10e-6 / tick_s) + 1
    ops = frozenset(range(graph.num_ops))
    exact = [frozenset(range(last)) for last in (3, 2, 1, 5)]
    states = [(inside, ops - inside) for inside in exact]
    pool = pool_of(units, [*states, (frozenset([0, 3]), frozenset([4, 5]))])
    search = chain_search(units, len(pool.low))
    length = find_chain(units, pool, search, ticks, NEVER_DEAD)
    assert length == 5
    assert search.chain[[0, 2, 3, 4]].tolist() == [NOTHING, ANYTHING + 4, ANYTHING + 3, EVERYTHING]
    assert merges_that_count(pool, search, ticks) == 1


def test_states_that_hold_a_plan_are_not_refuted() -> None:
    """Random states of tiny graphs whose weights stream, within the least interval of all plans."""
    merges = 0
    for seed in range(examples(60)):
        rng = np.random.default_rng([seed, 47])
        num_ops = int(rng.integers(5, 9))
        b, weight_bytes = GraphBuilder("streams"), 0
        for op in range(num_ops):
            size = int(rng.integers(1, 40)) * 50
            weight_bytes += size
            read = f"t_op{op - 1}" if op and rng.random() < 0.6 else None
            add_op(b, f"op{op}", int(rng.integers(1, 20)), size, read)
        graph, num_chips = b.build(), 3 if num_ops > 6 else 4
        target = small_mcm(
            num_chips,
            sram_bytes=int(weight_bytes / num_chips * rng.uniform(0.4, 1.0)) + 100,
            host_in_bytes_per_s=float(10 ** rng.uniform(7.5, 8.4)),
            link_bytes_per_s=1e12,
        )
        tables = cost_tables(graph, target)
        placements = np.array(list(monotone_placements(graph, num_chips)), np.int32)
        default = np.tile(np.arange(num_ops, dtype=np.int32), (len(placements), 1))
        metrics = evaluate_batch(tables, placements, default, default)
        least_s = float(metrics.interval_s[metrics.fits].min())
        units, tick_s = tight_units(graph, tables)
        ticks = int(least_s / tick_s) + 1
        for _ in range(20):
            pool = pool_of(units, split_at_random(rng, units, int(rng.integers(4, 60))))
            search = chain_search(units, len(pool.low))
            assert find_chain(units, pool, search, ticks, NEVER_DEAD) > 0, seed
            merges += merges_that_count(pool, search, ticks)
    assert merges >= examples(60)
