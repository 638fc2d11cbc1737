"""The quick check of orders against list scheduling and slicing them."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings

from go_opt.env import cost_tables, greedy_fusion, list_schedule, loop_roles
from go_opt.solver import Passing
from go_opt.solver.orders.order_screen import OrderScreen
from go_opt.solver.slicing.slice import slice_order, slice_order_relayed
from tests.solver.brute_force import plenty_of_memory
from tests.solver.test_slicing import with_shared_input
from tests.strategies import examples, kind_names, random_graph, random_target, seeds


@pytest.mark.parametrize("passing", ["adjacent", "relayed", "free"])
@settings(max_examples=examples(60), deadline=None)
@given(seed=seeds)
def test_an_order_passes_where_its_slicing_is_fast_enough(passing: Passing, seed: int) -> None:
    rng = np.random.default_rng(seed)
    target = random_target(rng, topology="ring", num_chips=int(rng.integers(1, 7)), num_kinds=1)
    graph = random_graph(rng, int(rng.integers(1, 30)), kinds=kind_names(target))
    graph = with_shared_input(graph, rng) if rng.random() < 0.3 else graph
    tables, order = plenty_of_memory(cost_tables(graph, target)), np.arange(graph.num_ops, dtype=np.int32)
    if tables.overlap:  # then the host's links are the same for all orders, and no part of the check
        tables = tables._replace(host_in_s_per_byte=0.0, host_out_s_per_byte=0.0)
    group = greedy_fusion(loop_roles(graph), order) if rng.random() < 0.7 else order
    screen = OrderScreen(tables, order, group, passing)
    if not tables.can_run.all():
        assert screen.within(rng.random((2, int(group.max()) + 1)), 0.0).all()
        return
    keys = rng.random((3, int(group.max()) + 1))
    for priority in keys:
        along = list_schedule(graph, group, priority)
        if passing == "relayed":
            slicing = slice_order_relayed(tables, along, group)
        else:
            slicing = slice_order(tables, along, group, adjacent=passing == "adjacent")
        assert slicing is not None
        for share in (0.5, 1.0 - 1e-6, 1.0 + 1e-6, 2.0):
            limit_s = slicing.interval_s * share
            is_enough = share > 1.0 or limit_s == 0.0
            within = bool(screen.within(priority[None], limit_s)[0])
            assert within == is_enough
    assert screen.within(keys, math.inf).all()
