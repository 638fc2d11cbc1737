"""Stages as the chips of a ring: plans there and back."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from go_opt.env import greedy_fusion, loop_roles
from go_opt.result import Request
from go_opt.search.methods.stage_search import StageRing
from go_opt.search.state import Search
from tests.replicated import random_stages, replicated_plan
from tests.strategies import examples, random_graph, random_order, seeds, small_mcm


@settings(max_examples=examples(60))
@given(seed=seeds, num_ops=st.integers(1, 20))
def test_rings_lead_back_to_plans_that_keep_the_rules(seed: int, num_ops: int) -> None:
    rng = np.random.default_rng(seed)
    graph, target = random_graph(rng, num_ops), small_mcm(int(rng.integers(1, 9)), sram_bytes=10**7)
    order = random_order(rng, graph)
    group = greedy_fusion(loop_roles(graph), order)
    stage_of_op, sizes = random_stages(rng, order, group, target.num_chips)
    plan = replicated_plan(graph, target, stage_of_op, sizes, order=order, fusion_group=group)
    several = np.flatnonzero((plan.replication > 1) & (rng.random(num_ops) < 0.5))
    plan = replace(plan, forwards=tuple(np.unique(plan.placement[several]).tolist()))
    search = Search(graph, target, Request(max_evaluations=1))
    ring = StageRing(search, plan)
    back = ring.as_it_stands("back")
    np.testing.assert_array_equal(back.placement, plan.placement)
    assert back.replication is None or back.replication.tolist() == plan.replication.tolist()
    faster = ring.allotted()
    assert faster.stages.size.sum() == target.num_chips
    assert faster.tables.num_chips >= int(faster.placement.max()) + 1
    judged = Search(graph, target, search.request)
    assert judged.take(faster.as_it_stands("allotted"))  # verified, or it would not count
