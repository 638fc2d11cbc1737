"""Orders in which few bytes are alive."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import pytest

from go_opt.common.arrays import LongArray
from go_opt.env import cost_tables
from go_opt.model.graph import ACTIVATION, Graph
from go_opt.search.methods.first_plans import least_memory_order
from tests.solver.brute_force import all_orders
from tests.strategies import random_graph, small_mcm


def peak_bytes(graph: Graph, tensor_bytes: LongArray, order: Iterable[int]) -> int:
    """Of activations, each alive from its producer to its last reader."""
    place = {op: i for i, op in enumerate(order)}
    live = np.zeros(graph.num_ops, np.int64)
    for k in np.flatnonzero(graph.tensor_kind == ACTIVATION).tolist():
        begin = place[int(graph.tensor_producer[k])]
        end = max((place[op] for op in graph.readers_of(k)), default=begin)
        live[begin : (graph.num_ops if graph.tensor_is_output[k] else end + 1)] += tensor_bytes[k]
    return int(live.max())


@pytest.mark.parametrize("seed", range(12))
def test_the_least_peak_of_all_orders(seed: int) -> None:
    """Four ops have at most six sets of ops of a size, which are all followed."""
    graph = random_graph(np.random.default_rng(seed), 4)
    tensor_bytes = cost_tables(graph, small_mcm()).tensor_bytes
    order = least_memory_order(graph, np.arange(4), tensor_bytes)
    assert any((order == one).all() for one in all_orders(graph))
    least = min(peak_bytes(graph, tensor_bytes, one.tolist()) for one in all_orders(graph))
    assert peak_bytes(graph, tensor_bytes, order.tolist()) == least
