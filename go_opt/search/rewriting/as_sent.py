"""Plans of rewritten graphs for the graphs as sent, where rewrites do not pay or tools do not know them."""

from __future__ import annotations

import numpy as np

from go_opt.env.rewrites import names as made_names
from go_opt.model.graph import Graph
from go_opt.model.plan import Plan


def plan_as_sent(graph: Graph, made: Graph, plan: Plan) -> Plan:
    """A plan of the rewritten graph ``made`` for the graph as sent: each op where that is that replaced it.

    Scales and shifts share the kernel of their product; Transposes, and products that became one, have their
    own.
    """
    where = {name: (op, 0) for name, op in made.op_index.items()}  # op of ``made``, and which of its products
    alone: set[str] = set()  # Transposes: each is a kernel
    for one in reversed(plan.rewrites):
        numbers = range(1 if one.rule in made_names.KEEPS_NAME else len(one.ops), 1, -1)
        number = next((n for n in numbers if made_names.merged_name(one.ops[0], n) in where), 1)
        op, nth = where[one.ops[0] if number == 1 else made_names.merged_name(one.ops[0], number)]
        if one.rule == made_names.TRANSPOSE:
            where |= dict.fromkeys(one.ops, (op, nth))
            alone |= {name for name in one.ops if name != one.ops[0]}
            continue
        length = len(one.ops) // number
        where |= {name: (op, nth * number + i // length) for i, name in enumerate(one.ops)}
    at, nth = np.array([where[name] for name in graph.op_names], np.int64).T
    rank = np.empty(made.num_ops, np.int64)
    rank[plan.order] = np.arange(made.num_ops)
    order = np.lexsort((nth, rank[at]))  # those of one product as in the graph
    is_first = np.diff(plan.fusion_group[at][order], prepend=-1) != 0
    is_first |= np.diff(nth[order], prepend=0) != 0
    is_alone = np.array([graph.op_names[op] in alone for op in order])
    is_first |= is_alone | np.roll(is_alone, 1)
    kernel = np.empty(graph.num_ops, np.int64)
    kernel[order] = np.cumsum(is_first)
    return Plan.create(
        graph,
        plan.target,
        plan.target_fingerprint,
        placement=plan.placement[at],
        order=order,
        fusion_group=kernel,
        provenance="as sent",
        replication=plan.replication[at],
        forwards=plan.forwards,
    )
