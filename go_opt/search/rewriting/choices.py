"""Which ops of a graph are rewritten: decided by cost before the rewritten graph is searched."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

import numpy as np

from go_opt.common.arrays import FloatArray
from go_opt.env import Target, cost_tables, greedy_fusion, loop_roles
from go_opt.env.evaluation import objectives_s
from go_opt.env.kernels.numbering import kernel_seconds, number_kernels
from go_opt.env.rewrites import folding
from go_opt.env.rewrites import names as made_names
from go_opt.env.rewrites.applying import possible_rewrites, with_rewrites
from go_opt.errors import PlanError
from go_opt.model.graph import NO_PRODUCER, VECTOR, Graph, Rewrite
from go_opt.model.op_costs import is_reduction
from go_opt.model.plan import Plan
from go_opt.model.start import Start
from go_opt.result import ONLY, Request
from go_opt.solver import list_scheduling, upward_ranks
from go_opt.solver.problem.op_constraints import op_constraints

LEAST_GAIN: Final = 0.005  # of the estimate of the objective, for what is chosen by it
MOST_TRIES: Final = 32  # of what else can be rewritten
OF_PRODUCTS: Final = (made_names.FOLD, made_names.BATCH, made_names.MERGE)
TAKEN_OVER: Final = (made_names.TRANSPOSE, made_names.BIAS)
IN_ORDER: Final = OF_PRODUCTS + TAKEN_OVER
Rewrites = tuple[Rewrite, ...]


def may_rewrite(request: Request) -> bool:
    """Whether plans of the request may have rewrites."""
    return request.rewrite and request.decide == "all" and request.policy != ONLY


def open_graphs(graph: Graph, target: Target, request: Request) -> tuple[Graph, ...]:
    """What is searched: the graph as sent, and with the rewrites that are chosen, if any."""
    if not may_rewrite(request):
        return (graph,)
    return tuple(dict.fromkeys((graph, with_rewrites(graph, rewrites_for(graph, target, request)))))


def rewrites_for(
    graph: Graph,
    target: Target,
    request: Request,
    must_stop: Callable[[], bool] = lambda: False,
    *,
    gives_up: bool = True,
) -> Rewrites:
    """The rewrites of the plans that are searched; none removes an op that the request names.

    Those of a start plan. Else all that products can take over on no chip kind at a loss; with it, products
    that are faster as one, if the estimate of the objective is lower by ``LEAST_GAIN``; then whatever else
    lowers it by as much.

    Args:
      must_stop: nothing else is tried then.
      gives_up: whether there are none if it must stop before that.
    """
    if given := given_rewrites(graph, target, request):
        return given
    named = _named_ops(graph, target, request)
    folded = tuple(filter(named.may_have, possible_rewrites(graph, (made_names.FOLD,))))
    folded = _no_slower(graph, target, (), folded)
    add = partial(_with_faster, graph, target, named)
    batched = add(folded, made_names.BATCH)
    joined = (folded, batched, add(folded, made_names.MERGE), add(batched, made_names.MERGE))
    ways = list[Rewrites]()
    for way in dict.fromkeys(joined):
        if gives_up and must_stop():
            return ()
        ways.append((*way, *_taken_over(graph, target, named, way)))
    seconds = {way: _estimate_s(with_rewrites(graph, way), target, request) for way in dict.fromkeys(ways)}
    best = min(seconds, key=lambda way: seconds[way])
    best = best if seconds[best] < (1.0 - LEAST_GAIN) * seconds[ways[0]] else ways[0]
    return _with_more(graph, target, request, best, seconds[best], must_stop)


def _with_more(
    graph: Graph,
    target: Target,
    request: Request,
    way: Rewrites,
    way_s: float,
    must_stop: Callable[[], bool],
) -> Rewrites:
    """``way``, and what else lowers the estimate: in the kernels that it joins, an op can cost more or less.

    Rules of products come first; what those take over is found anew. The order of rules stays.
    """
    named, tries = _named_ops(graph, target, request), MOST_TRIES
    for rules in (OF_PRODUCTS, TAKEN_OVER):
        is_last = rules == TAKEN_OVER
        given = tuple(one for one in way if is_last or one.rule in OF_PRODUCTS)
        for ones in sorted(alike(graph, named, rules, given), key=len, reverse=True)[:tries]:
            if must_stop():
                return way
            tries -= 1
            with suppress(PlanError):  # it needs another first
                more = tuple(sorted((*given, *ones), key=lambda one: IN_ORDER.index(one.rule)))
                found = more if is_last else (*more, *_taken_over(graph, target, named, more))
                seconds = _estimate_s(with_rewrites(graph, found), target, request)
                if seconds < (1.0 - LEAST_GAIN) * way_s:
                    given, way, way_s = more, found, seconds
    return way


def alike(graph: Graph, named: NamedOps, rules: tuple[str, ...], given: Rewrites) -> Iterable[Rewrites]:
    """What can be rewritten after ``given``, that of equal operators and sizes together."""
    before, found = with_rewrites(graph, given), dict[tuple[object, ...], Rewrites]()
    for one in filter(named.may_have, possible_rewrites(graph, rules, given)):
        ops = [before.op_index[name] for name in one.ops if name in before.op_index]
        sizes = [int(before.tensor_elements[k]) for op in ops for k in before.outputs_of(op)]
        key = one.rule, *(before.op_types[op] for op in ops), *sizes
        found[key] = (*found.get(key, ()), one)
    return found.values()


def _taken_over(graph: Graph, target: Target, named: NamedOps, given: Rewrites) -> Rewrites:
    """Transposes and biases that products take over at no loss.

    A bias that several ops read stays: through it they can share a kernel, as a normalisation in parts does.
    """
    found = possible_rewrites(graph, TAKEN_OVER, given)
    before = with_rewrites(graph, given)

    def is_joint(one: Rewrite) -> bool:
        (written,) = before.outputs_of(before.op_index[one.ops[-1]])
        return one.rule == made_names.BIAS and len(before.readers_of(written)) > 1

    more = (one for one in found if named.may_have(one) and not is_joint(one))
    return _no_slower(graph, target, given, tuple(more))


def given_rewrites(graph: Graph, target: Target, request: Request) -> Rewrites:
    """Those of the plan to begin with; () if one is not allowed, or it is of another version of the model."""
    plan = None if request.start is None else request.start.plan
    if plan is None or not plan.rewrites or not may_rewrite(request):
        return ()
    try:
        with_rewrites(graph, plan.rewrites)
    except PlanError:
        return ()
    named = _named_ops(graph, target, replace(request, start=None))
    return plan.rewrites if all(map(named.may_have, plan.rewrites)) else ()


def with_allowed_start(graph: Graph, target: Target, request: Request) -> Request:
    """The request, with a start as sent if its plan has rewrites that the request does not allow."""
    start = request.start
    plan = None if start is None else start.plan
    if start is None or plan is None or not plan.rewrites or given_rewrites(graph, target, request):
        return request
    try:
        made = with_rewrites(graph, plan.rewrites)
    except PlanError:
        return request
    if plan.splits or len(plan.placement) != made.num_ops:
        return request
    sent = Start.of_plan(plan_as_sent(graph, made, plan), graph.op_names)
    return replace(request, start=replace(sent, method=start.method))


@dataclass(frozen=True)
class NamedOps:
    """Ops that constraints or the start name: they stay, and those named by type keep it."""

    names: frozenset[str]
    of_types: frozenset[str]

    def may_have(self, one: Rewrite) -> bool:
        """Whether none of them is removed, or becomes an op of another type."""
        removed = one.ops[1:] if one.rule in made_names.KEEPS_NAME else one.ops
        keeps_type = one.rule == made_names.FOLD or self.of_types.isdisjoint(one.ops)
        return keeps_type and self.names.isdisjoint(removed)


def _named_ops(graph: Graph, target: Target, request: Request) -> NamedOps:
    """The ops of the graph as sent that the request names.

    Raises:
      InvalidInputError: as :func:`op_constraints` raises it.
    """
    requested = op_constraints(graph, target, request.constraints)
    each = [
        (one, [graph.op_names[op] for op in ops])
        for one, ops in zip(requested.constraints, requested.ops, strict=True)
    ]
    names = frozenset(name for _, ops in each for name in ops)
    of_types = frozenset(name for one, ops in each if getattr(one, "op_types", ()) for name in ops)
    start = request.start
    return NamedOps(names.union(start.ops if start is not None and start.names_ops else ()), of_types)


def _no_slower(graph: Graph, target: Target, given: Rewrites, more: Rewrites) -> Rewrites:
    """Products that take no longer than one kernel of them and of what they take over, on any chip kind."""
    if not more:
        return ()
    before, made = (with_rewrites(graph, way) for way in (given, (*given, *more)))
    kernel_of = np.arange(before.num_ops, dtype=np.int32)
    for one in more:
        product, *ops = (before.op_index[name] for name in one.ops)
        kernel_of[ops] = kernel_of[product]
    kernel_of = np.unique(kernel_of, return_inverse=True)[1].astype(np.int32)
    before_s, after_s = kernel_seconds(cost_tables(before, target), kernel_of), _alone_s(made, target)

    def is_slower(product: str) -> bool:
        was_s, is_s = before_s[:, kernel_of[before.op_index[product]]], after_s[:, made.op_index[product]]
        return bool((is_s > was_s * (1.0 + 1e-9)).any())

    return tuple(one for one in more if not is_slower(one.ops[0]))


def _with_faster(graph: Graph, target: Target, named: NamedOps, given: Rewrites, rule: str) -> Rewrites:
    """``given``, and those of a rule whose product, with what joins and splits, takes less time than before.

    Each op is a kernel of its own.
    """
    more = list(filter(named.may_have, possible_rewrites(graph, (rule,), given)))
    if not more:
        return given
    before, after = (with_rewrites(graph, way) for way in (given, (*given, *more)))
    before_s, after_s = (_alone_s(one, target).min(axis=0) for one in (before, after))

    def gain_s(rewrite: Rewrite) -> float:
        ops = [before.op_index[name] for name in rewrite.ops]
        products = [op for op in ops if before.op_types[op] in folding.PRODUCTS]
        made = (made_names.merged_name, made_names.split_name, made_names.concat_name)
        names = [name for one in made if (name := one(rewrite.ops[0], len(products))) in after.op_index]
        length = len(ops) // len(products)
        # What could share the kernel of a product reads a slice then.
        names += [before.op_names[op] for last in ops[length - 1 :: length] for op in _fusible(before, last)]
        return float(before_s[products].sum() - after_s[[after.op_index[name] for name in names]].sum())

    return (*given, *(one for one in more if gain_s(one) > 0.0))


def _fusible(graph: Graph, op: int) -> list[int]:
    """The op that alone reads what ``op`` writes, over the same elements, and nothing else computed."""
    (tensor,) = graph.outputs_of(op)
    readers = graph.readers_of(tensor)
    if len(readers) != 1 or graph.tensor_is_output[tensor] or graph.op_class[readers[0]] != VECTOR:
        return []
    if sum(graph.tensor_producer[k] != NO_PRODUCER for k, _ in graph.reads_of(readers[0])) > 1:
        return []  # it can share the kernel of another
    same = {int(graph.tensor_elements[k]) for k in (tensor, *graph.outputs_of(readers[0]))}
    return readers if len(same) == 1 and not is_reduction(graph.op_types[readers[0]]) else []


def _alone_s(graph: Graph, target: Target) -> FloatArray:
    """[Q, N] seconds of each op as a kernel of its own."""
    return kernel_seconds(cost_tables(graph, target), np.arange(graph.num_ops, dtype=np.int32))


def _estimate_s(graph: Graph, target: Target, request: Request) -> float:
    """The objective of the kernels that the first plans join.

    On one chip the sum of their seconds; the makespan of a list schedule on several. For the interval, all
    chips are as busy, but no kernel is in parts.
    """
    order, tables = np.arange(graph.num_ops, dtype=np.int32), cost_tables(graph, target)
    group = greedy_fusion(loop_roles(graph, target.kernel_patterns), order)
    kernel_of = number_kernels(order, group)
    kernel_s = kernel_seconds(tables, kernel_of).min(axis=0)
    if request.objective == "latency" and target.num_chips > 1:
        schedule = list_scheduling(tables, order, group, upward_ranks(tables, order, kernel_of, 1.0))
        return float(objectives_s(tables, "latency", *(row[None] for row in schedule))[0][0])
    longest_s = 0.0 if request.objective == "latency" else float(kernel_s.max())
    return max(float(kernel_s.sum()) / target.num_chips, longest_s)


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
