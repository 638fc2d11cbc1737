"""Searches of a rewritten graph, whose best plan is also costed without the rewrites.

Less work for a chip can be a longer interval, such as where a kernel hides less of the streaming of the next
kernel's weights. So at the end the ops as sent are put where those are that replaced them.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from typing import Final

import numpy as np

from go_opt.env import Target
from go_opt.env.rewrites import names as made_names
from go_opt.env.rewrites.applying import with_rewrites
from go_opt.errors import InfeasibleError
from go_opt.model.graph import Graph
from go_opt.model.plan import Plan
from go_opt.model.start import Start
from go_opt.result import OptimizeResult, Request
from go_opt.search.rewriting.choices import rewrites_for
from go_opt.search.shared.context import Context
from go_opt.search.shared.watch import Watch
from go_opt.search.trials.trials import Answer, Trials

SHARE: Final = 1 / 64  # of the time limit, for the plan without rewrites


def search_rewritten(
    graph: Graph, target: Target, request: Request, context: Context, answer: Answer, watch: Watch
) -> OptimizeResult:
    """The best plan that ``answer`` finds of the graph with the rewrites that its cost suggests.

    The bound is that of the graph with the rewrites of the plan.

    Raises:
      InfeasibleError: no valid plan was found.
    """
    with context.compiling():
        made = with_rewrites(graph, rewrites_for(graph, target, request))
    if made is graph:
        return answer(graph, request, watch)
    return _Undoing(graph, target, request, context, answer, watch).answer(made)


class _Undoing(Trials):
    def answer(self, made: Graph) -> OptimizeResult:
        """The best plan, with the rewrites or without."""
        request, limit = self._request, self._request.max_evaluations
        if limit is not None:
            request = replace(request, max_evaluations=max(limit - 1, 1))
        if request.budget_s is not None:
            request = replace(request, budget_s=request.budget_s * (1.0 - SHARE))
        self._keep_better(self._answer(made, request, self._watching()))
        found = self._best
        assert found is not None, "an answer is a plan"
        if not (self._is_over or found.plan.splits or found.status == "OPTIMAL"):
            plan = plan_as_sent(self._graph, made, found.plan)
            start = replace(Start.of_plan(plan, self._graph.op_names), method="as sent")
            request = replace(self._request_of(1.0), start=start, max_evaluations=1, splits=False)
            with suppress(InfeasibleError):  # the ops that were removed do not fit
                self._keep_better(self._answer(self._graph, request, self._watching()))
        return self._complete(self._best or found)

    def _watching(self) -> Watch:
        return Watch(self._take_step, self._keep_better, self._must_stop, self._stop)

    def _keep_better(self, found: OptimizeResult) -> None:
        best = self._best
        if best is None or found.objective_s < best.objective_s:
            self._keep(found)
        elif found.plan.rewrites == best.plan.rewrites and found.objective_s <= best.objective_s:
            self._best = found  # the last answer of a search has its simulation

    @property
    def _is_proven(self) -> bool:
        return False

    def _certified(self, found: OptimizeResult) -> OptimizeResult:
        """By the bound of the graph with the rewrites of the plan."""
        return found


def plan_as_sent(graph: Graph, made: Graph, plan: Plan) -> Plan:
    """A plan of the rewritten graph ``made`` for the graph as sent: each op where that is that replaced it.

    Scales and shifts share the kernel of their product; Transposes, and products that became one, have their
    own.
    """
    where = {name: (op, 0) for name, op in made.op_index.items()}  # op of ``made``, and which of its products
    for one in reversed(plan.rewrites):
        numbers = range(len(one.ops), 1, -1)
        number = next((n for n in numbers if made_names.merged_name(one.ops[0], n) in where), 1)
        op, nth = where[one.ops[0] if number == 1 else made_names.merged_name(one.ops[0], number)]
        if one.rule == made_names.TRANSPOSE:  # each is a kernel, before or after that of the product
            ops = sorted(one.ops, key=graph.op_index.__getitem__)
            first = nth * len(ops) - ops.index(one.ops[0])
            where |= {name: (op, first + i) for i, name in enumerate(ops)}
            continue
        length = len(one.ops) // number
        where |= {name: (op, nth * number + i // length) for i, name in enumerate(one.ops)}
    at, nth = np.array([where[name] for name in graph.op_names], np.int64).T
    rank = np.empty(made.num_ops, np.int64)
    rank[plan.order] = np.arange(made.num_ops)
    order = np.lexsort((nth, rank[at]))
    is_first = np.diff(plan.fusion_group[at][order], prepend=-1) != 0
    is_first |= np.diff(nth[order], prepend=0) != 0
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
