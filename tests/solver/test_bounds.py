"""Lower bounds against the true optimum of tiny graphs, by enumeration of everything open."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings

from go_opt.env import (
    Target,
    cost_tables,
    evaluate_plan,
    greedy_fusion,
    load_target,
    load_zoo,
    loop_roles,
)
from go_opt.model.builder import GraphBuilder
from go_opt.model.graph import Graph
from go_opt.model.plan import Candidate
from go_opt.solver import Bound, latency_bound, slice_order, throughput_bound
from tests.solver.brute_force import (
    all_fusions,
    all_orders,
    all_placements,
    evaluate_placements,
    on_one_chip_each,
)
from tests.strategies import (
    JIT_IS_ON,
    TOPOLOGIES,
    examples,
    kind_names,
    random_graph,
    random_simulated_target,
    random_target,
    seeds,
    small_mcm,
    toy_graph,
)
from tests.zoo import zoo_sample


def least_interval_s(graph: Graph, target: Target, *, fusion_is_open: bool) -> float:
    """Over all placements and, with fusion open, all orders and legal fusions."""
    tables = cost_tables(graph, target)
    placements = all_placements(graph, tables)
    default = np.arange(graph.num_ops, dtype=np.int32)
    if not fusion_is_open:
        return float(evaluate_placements(tables, placements, default, default).interval_s.min())
    return min(
        float(evaluate_placements(tables, on_one_chip_each(placements, group), order, group).interval_s.min())
        for order in all_orders(graph)
        for group in all_fusions(graph, order)
    )


def least_makespan_s(graph: Graph, target: Target, *, fusion_is_open: bool) -> float:
    tables = cost_tables(graph, target)
    placements = all_placements(graph, tables)
    default = np.arange(graph.num_ops, dtype=np.int32)
    orders = all_orders(graph) if fusion_is_open else [default]
    least_s = np.inf
    for order in orders:
        for group in all_fusions(graph, order) if fusion_is_open else [default]:
            for placement in on_one_chip_each(placements, group):
                plan = Candidate("test", placement, order, group).plan(graph, target)
                least_s = min(least_s, evaluate_plan(graph, target, plan).makespan_s)
    return least_s


def tight_target(rng: np.random.Generator, **fields: object) -> Target:
    """Of a few kernels' worth of memory; makespans of rings know one rate."""
    sram_bytes = int(10 ** rng.uniform(2.5, 4.5))
    return random_simulated_target(rng, rates_differ=False, **{"sram_bytes": sram_bytes} | fields)


def tiny_case(seed: int, max_ops: int, max_chips: int, **fields: object) -> tuple[Graph, Target]:
    rng = np.random.default_rng(seed)
    topology = TOPOLOGIES[int(rng.integers(len(TOPOLOGIES)))]
    num_chips = int(rng.integers(1, max_chips + 1))
    # Half of them place buffers, in pages, set a buffer aside for streams, and know set-ups, headers, tiles.
    draw = random_target if rng.random() < 0.5 else tight_target
    target = draw(rng, num_chips=num_chips, topology=topology, **fields)
    num_ops = int(rng.integers(1, (max_ops if target.num_chips < 3 else max_ops - 1) + 1))
    graph = random_graph(rng, num_ops, kinds=kind_names(target), max_elements=int(rng.choice([50, 5000])))
    return graph, target


def interval_bound(graph: Graph, target: Target, *, fusion: bool, replication: bool) -> Bound:
    tables, roles = cost_tables(graph, target), loop_roles(graph)
    return throughput_bound(graph, tables, roles, fusion_is_open=fusion, replication_is_open=replication)


@pytest.mark.parametrize("overlap", [True, False])
@settings(max_examples=examples(100))
@given(seed=seeds)
def test_no_plan_beats_the_throughput_bound(overlap: bool, seed: int) -> None:
    graph, target = tiny_case(seed, 5, 3, overlap=overlap)
    fixed_s = least_interval_s(graph, target, fusion_is_open=False)
    open_s = least_interval_s(graph, target, fusion_is_open=True)
    for fusion, least_s in ((False, fixed_s), (True, open_s)):
        for replication in (False, True):
            bound = interval_bound(graph, target, fusion=fusion, replication=replication)
            assert 0 <= bound.seconds <= least_s * (1 + 1e-9)
            assert bound.reason


@settings(max_examples=examples(40))
@given(seed=seeds)
def test_no_plan_beats_the_latency_bound(seed: int) -> None:
    graph, target = tiny_case(seed, 4, 3)
    for fusion in (False, True):
        bound = latency_bound(graph, cost_tables(graph, target), loop_roles(graph), fusion_is_open=fusion)
        assert 0 <= bound.seconds <= least_makespan_s(graph, target, fusion_is_open=fusion) * (1 + 1e-9)
        assert bound.reason


@settings(max_examples=examples(60))
@given(seed=seeds)
def test_no_plan_beats_the_streaming_bound(seed: int) -> None:
    """Memory of a weight or two, and a slow host: what streams is what counts."""
    rng = np.random.default_rng(seed)
    graph, target = tiny_case(
        seed,
        4,
        3,
        overlap=True,
        sram_bytes=int(rng.choice([300, 3000, 10000])),
        host_in_bytes_per_s=1e6,
    )
    bound = interval_bound(graph, target, fusion=True, replication=True)
    assert bound.seconds <= least_interval_s(graph, target, fusion_is_open=True) * (1 + 1e-9)


# One kernel per op: 43.4 us in all, the longest 14 us, inputs 2 us, outputs 10 us. Fused, the
# matrix ops last max(flops, what other kernels make or read) + 1 = 9, 3 and 14 us (logits moves y, table and
# out, 13000 bytes), embed alone 3.4 us; work is 3.4, 8 + 5 + 2 + 5 of flops, 13, and 3 overheads: 39.4 us.
@pytest.mark.parametrize(
    ("num_chips", "overlap", "fusion", "replication", "bound_us", "reason"),
    [
        (2, True, False, False, 21.7, "43.4 us of work share 2 chips"),
        (4, True, False, False, 14.0, "op 'logits' takes 14 us"),
        (7, True, False, True, 10.0, "the outputs cross the host's link out"),
        (2, False, False, False, 27.7, "55.4 us of work share 2 chips"),
        (2, True, True, False, 19.7, "39.4 us of work share 2 chips"),
        (4, True, True, False, 14.0, "op 'logits' takes 14 us"),
        (3, True, True, True, 39.4 / 3, "39.4 us of work share 3 chips"),
    ],
)
def test_toy_by_hand(
    num_chips: int, overlap: bool, fusion: bool, replication: bool, bound_us: float, reason: str
) -> None:
    target = small_mcm(num_chips, overlap=overlap)
    bound = interval_bound(toy_graph(), target, fusion=fusion, replication=replication)
    assert bound.seconds == pytest.approx(bound_us * 1e-6)
    assert bound.reason == reason


def one_reader_each(*weights: tuple[int, int]) -> Graph:
    """An op for each ``(stored, touched)`` bytes of weight; nothing else costs anything."""
    b = GraphBuilder("weights")
    for i, (stored, touched) in enumerate(weights):
        b.add_tensor(f"w{i}", stored, "int8", "weight")
        b.add_op(
            f"op{i}", "Gather", "data_movement", flops=0, dtype="int8", reads=[(f"w{i}", touched)], writes=[],
            measured_s={"chip": 0.0},
        )  # fmt: skip
    return b.build()


# The host brings in 200 bytes in 1 us, the link between two chips carries 100. They hold 1000 bytes each. As
# one stage they hold the same 1000 bytes, and what they read as a whole comes once for two inferences.
@pytest.mark.parametrize(
    ("weights", "streamed_us"),
    [
        ([(1000, 1000), (1000, 1000)], 0.0),
        ([(1001, 600)], 3.0),  # fits no chip: what is touched streams
        ([(800, 800), (800, 800), (800, 800)], 2.0),  # 2400 - 2000 bytes; as one stage 1400 / 2
        ([(800, 800), (800, 200), (800, 800)], 0.5),  # … of the one of which a quarter is touched
        ([(900, 900)] * 5, 35 / 3),  # as one stage, 3500 bytes over both links
        ([(1001, 600), (800, 800), (800, 200), (800, 800)], 3.5),
    ],
)
def test_weights_that_no_memory_holds_stream(weights: list[tuple[int, int]], streamed_us: float) -> None:
    graph, target = one_reader_each(*weights), small_mcm(2, sram_bytes=1000)
    bound = interval_bound(graph, target, fusion=True, replication=True)
    assert bound.seconds == pytest.approx(streamed_us * 1e-6)
    assert streamed_us == 0 or "the weights no memory can hold cross the host's link in" in bound.reason
    assert bound.seconds <= least_interval_s(graph, target, fusion_is_open=False) * (1 + 1e-9)


def test_toy_latency_by_hand() -> None:
    # Without fusion all but nothing runs beside anything: the path is every op, 43.4 us.
    # Fused, logits lasts 13 us of bytes and its overhead: 3.4 + 9 + 5 + 3 + 5 + 14 = 39.4 us.
    graph, target = toy_graph(), small_mcm(2)
    tables, roles = cost_tables(graph, target), loop_roles(graph)
    for fusion, bound_us in ((False, 2 + 43.4 + 10), (True, 2 + 39.4 + 10)):  # ids come in, all in a row, out
        bound = latency_bound(graph, tables, roles, fusion_is_open=fusion)
        assert bound.seconds == pytest.approx(bound_us * 1e-6)
        assert bound.reason == "the critical path, on which op 'embed' is"


@pytest.mark.skipif(not JIT_IS_ON, reason="minutes where the kernels run interpreted")
@pytest.mark.parametrize("name", zoo_sample())
def test_bounds_of_the_zoo(name: str) -> None:
    graph, target = load_zoo(name), load_target("mcm-6x6")
    tables, roles = cost_tables(graph, target), loop_roles(graph)
    order = np.arange(graph.num_ops, dtype=np.int32)
    one_each = order
    for group, fusion in ((one_each, False), (greedy_fusion(roles, order), True)):
        bound = interval_bound(graph, target, fusion=fusion, replication=False)
        replicated = interval_bound(graph, target, fusion=fusion, replication=True)
        assert 0 < replicated.seconds <= bound.seconds
        slicing = slice_order(tables, order, group, forwarding="adjacent")
        if slicing is not None:
            terms = evaluate_placements(tables, slicing.placement[None], order, group)
            assert bound.seconds <= terms.interval_s[0] * (1 + 1e-9)


def test_rounding_lifts_no_bound_above_a_plan() -> None:
    bound = Bound(2.0, "work")
    assert bound.below(2.0 * (1 - 1e-15)) == 2.0 * (1 - 1e-15)
    assert bound.below(3.0) == 2.0
    assert bound.below(1.9) == 2.0  # no rounding: a wrong bound shows
