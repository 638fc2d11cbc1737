"""Replicated plans to simulate: stages of a random order on random packages."""

from __future__ import annotations

import numpy as np

from go_opt.env import Target, greedy_fusion, loop_roles
from go_opt.env.relays import expand_plan
from go_opt.graph import Graph
from go_opt.plan import Plan
from tests.copies import with_legal_copies
from tests.replicated import random_stages, replicated_plan
from tests.strategies import random_graph, random_order, random_simulated_target


def random_replicated(
    rng: np.random.Generator, *, legal: bool = False, target: Target | None = None
) -> tuple[Graph, Target, Plan]:
    """Graph, target and plan, with relays and clones as ops; half of them have those that the rule needs.

    Args:
      legal: all of them have.
      target: a ring or chain; drawn by default.
    """
    if target is None:
        target = random_simulated_target(rng, topology=("ring", "chain")[int(rng.integers(2))])
    graph = random_graph(rng, int(rng.integers(1, 20)))
    order = random_order(rng, graph)
    group = greedy_fusion(loop_roles(graph), order)
    stage_of_op, sizes = random_stages(rng, order, group, target.num_chips)
    plan = replicated_plan(graph, target, stage_of_op, sizes, order=order, fusion_group=group)
    if legal or rng.random() < 0.5:
        plan = with_legal_copies(rng, graph, target, plan)
    graph, plan = expand_plan(graph, target, plan)
    return graph, target, plan
