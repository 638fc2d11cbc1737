"""Loads the compiled kernels before a clock runs; right after an install it compiles them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache, partial
from itertools import islice

import numpy as np

from go_opt.agents.decoding.outputs import Outputs
from go_opt.agents.decoding.proposals import Advice, policy_plans
from go_opt.agents.inputs.features import NUM_EXPLORED
from go_opt.env import Target, cost_tables, evaluate_plan, greedy_fusion, load_target, loop_roles
from go_opt.env.model.metrics import Fidelity
from go_opt.model.graph import Graph
from go_opt.model.plan import Plan
from go_opt.search.compiling.three_ops import three_ops
from go_opt.solver import (
    needed_relays,
    relays_of_arrays,
    slice_order,
    slice_order_relayed,
    slice_order_streamed,
)
from go_opt.solver.orders import fixed_orders
from go_opt.solver.orders.instance import instance
from go_opt.solver.slicing.replicated.slice import slice_order_replicated
from go_opt.solver.slicing.split import slice_order_split


@cache
def warm_up(*, simulator: bool = True, policy: bool = False, backwards: bool = False) -> None:
    """Run every kernel of the common path once, on a graph of three ops.

    The simulator's, and those that make plans of what a policy says, where asked for.
    ``backwards`` in a process that helps another one: what either has compiled the other finds
    in the cache, and they meet in the middle.
    """
    graph, target = three_ops(), load_target("mcm-2x2")
    steps: list[Callable[[], object]] = [partial(_evaluate, graph, target, "analytical")]
    steps += _slicings(graph, target)
    if simulator:
        steps.append(partial(_evaluate, graph, target, "simulated"))
    if policy:
        steps.append(partial(_decode, graph, target))
    for step in reversed(steps) if backwards else steps:
        step()


def _evaluate(graph: Graph, target: Target, fidelity: Fidelity) -> None:
    tables = cost_tables(graph, target)
    one_each = np.arange(graph.num_ops, dtype=np.int32)
    group = greedy_fusion(loop_roles(graph), one_each)
    for placement, kernels in ((np.zeros(graph.num_ops, np.int32), group), (one_each, one_each)):
        plan = Plan.create(
            graph,
            target.source,
            target.fingerprint,
            placement=placement,
            order=one_each,
            fusion_group=kernels,
            provenance="warm up",
        )
        relays = needed_relays(tables, plan.placement, target.constraints.triangle)
        plan = replace(plan, relays=relays_of_arrays(graph, *relays))
        evaluate_plan(graph, target, plan, fidelity=fidelity)


def _slicings(graph: Graph, target: Target) -> list[Callable[[], object]]:
    tables = cost_tables(graph, target)
    alone = np.arange(graph.num_ops, dtype=np.int32)
    # The second time each op fits alone but not all do together: the general slicer has to look as well.
    tight = tables._replace(sram_bytes=np.full(target.num_chips, 9, dtype=np.int64))
    calls: list[Callable[[], object]] = [
        lambda: list(fixed_orders(graph, alone)),
        partial(slice_order_split, graph, tables, alone, alone, at_most_s=np.inf),
    ]
    for of in (tables, tight):
        calls += [
            partial(slice_order, of, alone, alone, adjacent=True),
            partial(slice_order_relayed, of, alone, alone),
            partial(slice_order_streamed, of, alone, alone, passing="relayed"),
            partial(slice_order_replicated, of, alone, alone, passing="relayed", weights_may_stream=True),
        ]
    return calls


def _decode(graph: Graph, target: Target) -> None:
    for _ in islice(policy_plans(_neutral_advice(graph, target), instance(graph, target), seed=0), 8):
        pass  # one of each kind


def _neutral_advice(graph: Graph, target: Target) -> Advice:
    neutral = np.zeros(graph.num_ops)
    logits, log_std = np.zeros((graph.num_ops, target.num_chips)), np.zeros((2, NUM_EXPLORED))
    outputs = Outputs(logits, neutral, neutral, neutral, log_std)
    return Advice(outputs, np.ones((graph.num_ops, NUM_EXPLORED), dtype=np.float32))
