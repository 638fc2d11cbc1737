"""Loads the common kernels before they are needed, or compiles them: each runs once, on a graph of three ops.

Searches need none of this: their clock stands while a kernel loads (:mod:`go_opt.search.shared.context`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from itertools import islice
from typing import Final

import numpy as np

from go_opt.agents.decoding.decode import neutral_outputs
from go_opt.agents.decoding.proposals import Advice, policy_plans
from go_opt.agents.inputs.features import NUM_EXPLORED, graph_features
from go_opt.common.arrays import IntArray
from go_opt.common.compiling import quick_compilation
from go_opt.env import Target, cost_tables, evaluate_plan, greedy_fusion, load_target, loop_roles
from go_opt.env.copies.relays import plan_tables
from go_opt.env.model.memory import fit_chips, holdings
from go_opt.model.builder import GraphBuilder
from go_opt.model.graph import Graph
from go_opt.model.plan import Candidate, Plan
from go_opt.solver import (
    broken_rules,
    greedy_slicing,
    needed_relays,
    placement_problem,
    relays_of_arrays,
    slice_order,
    slice_order_streamed,
)
from go_opt.solver.enumeration.plans import every_plan
from go_opt.solver.orders import fixed_orders
from go_opt.solver.orders.instance import instance
from go_opt.solver.problem.op_constraints import op_constraints
from go_opt.solver.slicing.slice import slice_order_forwarded, slice_order_replicated
from go_opt.solver.walk.walk import NUM_FEATURES

FIRST: Final = 3  # kernels that the first plan needs, the greedy one


def warm_up(*, simulator: bool = True, policy: bool = False, backwards: bool = False) -> None:
    """Load the common kernels, without those of the simulator and of a policy's plans unless asked for.

    ``backwards`` in a process that helps another one: what either has compiled the other finds
    in the cache, and they meet in the middle of what the first plan needs, then of the others.
    """
    graph, target = three_ops(), load_target("mcm-2x2")
    left_out = {"simulator": not simulator, "policy": not policy}
    names = [name for name in _COMMON if not left_out.get(name, False)]
    with quick_compilation():
        for name in [*names[:FIRST][::-1], *names[FIRST:][::-1]] if backwards else names:
            _COMMON[name](graph, target)


def three_ops(num_ops: int = 3, op_type: str = "Relu") -> Graph:
    """Three ops, or more, in a chain; from the third on each reads the results of the two before."""
    builder = GraphBuilder("warm up")
    builder.add_tensor("t0", 1, "float32", "input")
    for i in range(num_ops):
        reads = [(f"t{k}", None) for k in range(max(min(i, 1), i - 1), i + 1)]
        writes = [(f"t{i + 1}", 1, "float32")]
        builder.add_op(f"op{i}", op_type, "vector", flops=1, dtype="float32", reads=reads, writes=writes)
    builder.mark_output(f"t{num_ops}")
    return builder.build()


def _plan(graph: Graph, target: Target, placement: IntArray, group: IntArray) -> Plan:
    order = np.arange(graph.num_ops, dtype=np.int32)
    return Candidate("warm up", placement, order, group).plan(graph, target)


def _on_one_chip(graph: Graph, target: Target) -> Plan:
    order = np.arange(graph.num_ops, dtype=np.int32)
    return _plan(graph, target, np.zeros_like(order), greedy_fusion(loop_roles(graph), order))


def _fit(graph: Graph, target: Target) -> None:
    """The larger half of what an evaluation runs: beside the rest where two processes compile."""
    tables, order = cost_tables(graph, target), np.arange(graph.num_ops, dtype=np.int32)
    fit_chips(tables, holdings(tables, order, np.zeros_like(order), np.ones(target.num_chips, np.int64)))


def _relayed(graph: Graph, target: Target) -> Plan:
    """On one chip for each op."""
    order = np.arange(graph.num_ops, dtype=np.int32)
    relays = needed_relays(cost_tables(graph, target), order, target.constraints.triangle)
    return replace(_plan(graph, target, order, order), relays=relays_of_arrays(graph, *relays))


def _cut_greedily(graph: Graph, target: Target) -> None:
    order = np.arange(graph.num_ops, dtype=np.int32)
    greedy_slicing(cost_tables(graph, target), order, order, adjacent=True)


def _order(graph: Graph, target: Target) -> None:
    list(fixed_orders(graph, np.arange(graph.num_ops, dtype=np.int32)))


def _place(graph: Graph, target: Target) -> None:
    """Every placement, and whether one of them keeps the rules."""
    plans = every_plan(op_constraints(graph, target, ()), forwarding="adjacent", decides_all=False)
    assert plans is not None
    broken_rules(placement_problem(graph, target), plans[0])


def _slice(cut: Callable[..., object], graph: Graph, target: Target) -> None:
    """The second time each op fits alone but not all do together: the general slicer has to look as well."""
    tables = cost_tables(graph, target)
    alone = np.arange(graph.num_ops, dtype=np.int32)
    cut(tables, alone, alone)
    cut(tables._replace(sram_bytes=np.full(target.num_chips, 5 * tables.stored_bytes[0])), alone, alone)


def _decode(graph: Graph, target: Target) -> None:
    """The inputs of a policy, and a plan of each kind by one that has no opinion."""
    graph_features(graph, target)
    outputs = neutral_outputs(np.zeros(NUM_FEATURES), np.zeros(graph.num_ops))
    advised = Advice(outputs, np.ones((graph.num_ops, NUM_EXPLORED), dtype=np.float32))
    list(islice(policy_plans(advised, instance(graph, target), seed=0), 8))


def _simulate(graph: Graph, target: Target) -> None:
    for plan in (_on_one_chip(graph, target), _relayed(graph, target)):
        evaluate_plan(graph, target, plan, fidelity="simulated")


_COMMON: Final[dict[str, Callable[[Graph, Target], object]]] = {
    "evaluation": lambda graph, target: evaluate_plan(graph, target, _on_one_chip(graph, target)),
    "memory": _fit,
    "greedy": _cut_greedily,
    "relays": lambda graph, target: plan_tables(graph, target, _relayed(graph, target)),
    "slicing": partial(_slice, partial(slice_order, forwarding="adjacent")),
    "relayed slicing": partial(_slice, partial(slice_order, forwarding="relayed")),
    "streamed slicing": partial(_slice, partial(slice_order_streamed, forwarding="relayed")),
    "forwarded weights": partial(_slice, partial(slice_order_forwarded, forwarding="relayed", at_most_s=1.0)),
    "replicated slicing": partial(_slice, partial(slice_order_replicated, forwarding="relayed")),
    "orders": _order,
    "placements": _place,
    "policy": _decode,
    "simulator": _simulate,
}
