"""The fewest bytes that any plan streams, against every choice of the weights that stay."""

from __future__ import annotations

import itertools

import numpy as np
from hypothesis import given, settings

from go_opt.env import CostTables, cost_tables, evaluate_plan
from go_opt.model.graph import WEIGHT
from go_opt.solver.problem.streamed_bytes import least_streamed_bytes
from tests.strategies import (
    examples,
    random_graph,
    random_plan,
    random_target,
    seeds,
    small_mcm,
    toy_graph,
)

MOST_WEIGHTS = 10  # on a chip


def least_on_chip(tables: CostTables, touched: dict[int, int], sram_bytes: int) -> int:
    """Bytes touched of the weights that stream, where those that stay are chosen best."""
    weights = list(touched)
    assert len(weights) <= MOST_WEIGHTS
    stays = (
        set(some)
        for size in range(len(weights) + 1)
        for some in itertools.combinations(weights, size)
        if sum(int(tables.stored_bytes[k]) for k in some) <= sram_bytes
    )
    return min(sum(size for k, size in touched.items() if k not in some) for some in stays)


@settings(max_examples=examples(150), deadline=None)
@given(seed=seeds)
def test_no_choice_of_resident_weights_streams_less(seed: int) -> None:
    rng = np.random.default_rng(seed)
    target = random_target(rng, num_chips=int(rng.integers(1, 4)), sram_bytes=int(10 ** rng.uniform(2.5, 5)))
    tables = cost_tables(random_graph(rng, int(rng.integers(1, 8))), target)
    least, num_chips = least_streamed_bytes(tables), tables.num_chips
    for _ in range(5):
        chip_of = rng.integers(num_chips, size=tables.num_ops)
        touched: list[dict[int, int]] = [{} for _ in range(num_chips)]
        for r, k in enumerate(tables.reader_tensor.tolist()):
            if tables.tensor_kind[k] == WEIGHT:
                here = touched[chip_of[tables.reader_op[r]]]
                here[k] = max(here.get(k, 0), int(tables.read_bytes[r]))
        room = tables.sram_bytes.copy()  # beside the double buffers of the model's outputs
        for k in np.flatnonzero(tables.tensor_is_output & (tables.tensor_producer >= 0)):
            room[chip_of[tables.tensor_producer[k]]] -= 2 * tables.tensor_bytes[k]
        streamed = sum(
            least_on_chip(tables, here, max(int(left), 0)) for here, left in zip(touched, room, strict=True)
        )
        assert least <= streamed * (1 + 1e-12)


@settings(max_examples=examples(150), deadline=None)
@given(seed=seeds)
def test_no_plan_streams_less(seed: int) -> None:
    """Large outputs take memory beside the weights of the ops that write them."""
    rng = np.random.default_rng(seed)
    target = random_target(rng, num_chips=int(rng.integers(1, 4)), sram_bytes=int(10 ** rng.uniform(3.5, 5)))
    graph = random_graph(rng, int(rng.integers(1, 8)))
    rows = [random_plan(rng, graph, target, monotone=target.goes_forward) for _ in range(8)]
    for plan in rows:
        metrics = evaluate_plan(graph, target, plan)
        if metrics.valid:
            assert least_streamed_bytes(cost_tables(graph, target)) <= metrics.stream_bytes.sum()


def test_an_output_leaves_less_room_for_the_weight_of_its_op() -> None:
    # On a chip of 12,000 bytes the output takes 2 x 2,000: of the table, 10,000 bytes, 8,000 stay at most.
    tables = cost_tables(toy_graph(), small_mcm(2, sram_bytes=12_000))
    assert least_streamed_bytes(tables) == 2_000
