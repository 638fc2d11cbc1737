"""More or fewer chips for the stages of a plan."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from go_opt.env import greedy_fusion, loop_roles
from go_opt.result import Request
from go_opt.search.methods.slices import reallocated
from go_opt.search.state import Search
from tests.replicated import random_stages, replicated_plan
from tests.strategies import examples, random_graph, random_order, seeds, small_mcm


@settings(max_examples=examples(60))
@given(seed=seeds, num_ops=st.integers(1, 20))
def test_reallocated_plans_keep_the_rules(seed: int, num_ops: int) -> None:
    rng = np.random.default_rng(seed)
    graph, target = random_graph(rng, num_ops), small_mcm(int(rng.integers(1, 9)), sram_bytes=10**7)
    order = random_order(rng, graph)
    group = greedy_fusion(loop_roles(graph), order)
    stage_of_op, sizes = random_stages(rng, order, group, target.num_chips)
    plan = replicated_plan(graph, target, stage_of_op, sizes, order=order, fusion_group=group)
    several = np.flatnonzero((plan.replication > 1) & (rng.random(num_ops) < 0.5))
    plan = replace(plan, forwards=tuple(np.unique(plan.placement[several]).tolist()))
    search = Search(graph, target, Request(max_evaluations=1))
    found = reallocated(search, plan, "reallocated")
    sizes = np.ones(num_ops, np.int32) if found.replication is None else found.replication
    stages = {(int(chip), int(size)) for chip, size in zip(found.placement, sizes, strict=True)}
    assert len(stages) == len(np.unique(plan.placement))
    assert sum(size for _, size in stages) <= target.num_chips
    assert Search(graph, target, search.request).take(found)  # verified, or it would not count
