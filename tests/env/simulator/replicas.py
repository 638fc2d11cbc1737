"""Replicated plans to simulate: stages of a random order on random packages."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from go_opt.env import Target, greedy_fusion, loop_roles
from go_opt.env.copies.relays import expand_plan
from go_opt.model.graph import Graph, with_sequences
from go_opt.model.plan import Plan
from tests.copies import with_legal_relays
from tests.replicated import anywhere, keeping_states, random_forwards, random_stages, replicated_plan
from tests.strategies import (
    random_graph,
    random_order,
    random_plan,
    random_simulated_target,
    with_random_states,
)


def random_replicated(
    rng: np.random.Generator,
    *,
    legal: bool = False,
    target: Target | None = None,
    forwards: bool = False,
    sequences: bool = False,
) -> tuple[Graph, Target, Plan]:
    """Graph, target and plan, with relays as ops; half of them have those that the rule needs.

    Args:
      sequences: some graphs have states of sequences.
      legal: all of them have.
      target: a ring or chain; drawn by default.
      forwards: some stages forward the weights they stream.
    """
    if target is None:
        target = random_simulated_target(rng, topology=("ring", "chain")[int(rng.integers(2))])
    graph = random_graph(rng, int(rng.integers(1, 20)))
    if sequences:
        graph = with_random_states(rng, graph, scopes=("sequence",))
    order = random_order(rng, graph)
    group = greedy_fusion(loop_roles(graph), order)
    stage_of_op, sizes = random_stages(rng, order, group, target.num_chips)
    stage_of_op, sizes = keeping_states(graph, stage_of_op, sizes)
    if graph.states:
        graph = with_sequences(graph, int(sizes.max() + rng.integers(6)))
    plan = replicated_plan(graph, target, stage_of_op, sizes, order=order, fusion_group=group)
    if legal or rng.random() < 0.5:
        plan = with_legal_relays(graph, target, plan)
    if forwards:
        plan = random_forwards(rng, target, plan)
    graph, plan = expand_plan(graph, target, plan)
    return graph, target, plan


def random_replicated_anywhere(
    rng: np.random.Generator, *, forward: bool = False
) -> tuple[Graph, Target, Plan]:
    """The same on packages that are no rings, with stages in any order.

    Args:
      forward: no results come back to a stage.
    """
    topology = ("mesh2d", "all_to_all", "host_star", "listed")[int(rng.integers(4))]
    target = random_simulated_target(rng, num_chips=int(rng.integers(2, 8)), topology=topology)
    graph = random_graph(rng, int(rng.integers(1, 20)))
    monotone = forward or target.constraints.acyclic
    plan = random_plan(rng, graph, target, monotone=monotone, fusion="legal")
    plan = anywhere(rng, target, plan, of_one_kind=False)
    if rng.random() < 0.5:  # from the last chip to the first
        first = target.num_chips - plan.placement - plan.replication
        plan = replace(plan, placement=first.astype(np.int32))
    return graph, target, plan
