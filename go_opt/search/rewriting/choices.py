"""Which ops of a graph are rewritten: sets of rewrites that are worth a search."""

from __future__ import annotations

from typing import Final

import numpy as np

from go_opt.common.arrays import FloatArray
from go_opt.env import Target, cost_tables
from go_opt.env.kernels.numbering import kernel_seconds
from go_opt.env.rewrites import columns, folding, siblings
from go_opt.env.rewrites.applying import possible_rewrites, with_rewrites
from go_opt.errors import PlanError
from go_opt.model.graph import VECTOR, Graph, Rewrite
from go_opt.model.op_costs import is_reduction
from go_opt.result import ONLY, Request

LEAST_GAIN: Final = 0.005  # of the time of all ops, for products that become one to be tried
Rewrites = tuple[Rewrite, ...]


def rewrites_are_open(request: Request) -> bool:
    """Whether plans may rewrite ops."""
    return request.rewrite and request.decide == "all" and request.policy != ONLY


def ways_to_rewrite(graph: Graph, target: Target, request: Request) -> list[Rewrites]:
    """Sets of rewrites, most first; none of them removes an op that the request names.

    All constants that products can take over; with them, products that are faster as one.
    """
    names = _named_ops(graph, request)
    if given := _given_rewrites(graph, request):
        return [given]
    folded = tuple(one for one in possible_rewrites(graph, (folding.FOLD,)) if names.isdisjoint(one.ops[1:]))
    merges = possible_rewrites(graph, (siblings.MERGE,), folded)
    merges = tuple(one for one in merges if names.isdisjoint(one.ops))
    merges = _faster(graph, target, folded, merges) if merges else ()
    ways = [(*folded, *merges), folded]
    return [way for way in dict.fromkeys(ways) if way]


def _given_rewrites(graph: Graph, request: Request) -> Rewrites:
    """Those of the plan to begin with; () if it is of another version of the model."""
    plan = None if request.start is None else request.start.plan
    if plan is None:
        return ()
    try:
        with_rewrites(graph, plan.rewrites)
    except PlanError:
        return ()
    return plan.rewrites


def _named_ops(graph: Graph, request: Request) -> set[str]:
    """Ops that constraints or the start name: they stay."""
    constrained = {name for one in request.constraints for name in getattr(one, "ops", ())}
    types = {name for one in request.constraints for name in getattr(one, "op_types", ())}
    of_types = {name for name, kind in zip(graph.op_names, graph.op_types, strict=True) if kind in types}
    return constrained | of_types | (set() if request.start is None else {*request.start.ops})


def _faster(graph: Graph, target: Target, folded: Rewrites, merges: Rewrites) -> Rewrites:
    """Merges whose product and split take less time than the products, each as a kernel of its own.

    None, if together they are no ``LEAST_GAIN``: another graph to search costs evaluations.
    """
    before, after = (with_rewrites(graph, way) for way in (folded, (*folded, *merges)))
    before_s, after_s = (_least_s(one, target) for one in (before, after))

    def gain_s(merge: Rewrite) -> float:
        ops = [before.op_index[name] for name in merge.ops]
        products = [op for op in ops if before.op_types[op] in columns.PRODUCTS]
        names = [name(merge.ops[0], len(products)) for name in (siblings.merged_name, siblings.split_name)]
        length = len(ops) // len(products)
        # What could share the kernel of a product reads a slice then.
        names += [before.op_names[op] for last in ops[length - 1 :: length] for op in _fusible(before, last)]
        return float(before_s[products].sum() - after_s[[after.op_index[name] for name in names]].sum())

    gains = {merge: gain for merge in merges if (gain := gain_s(merge)) > 0.0}
    return tuple(gains) if sum(gains.values()) >= LEAST_GAIN * before_s.sum() else ()


def _fusible(graph: Graph, op: int) -> list[int]:
    """The op that alone reads what ``op`` writes, if it goes over the same elements."""
    (tensor,) = graph.outputs_of(op)
    readers = graph.readers_of(tensor)
    if len(readers) != 1 or graph.tensor_is_output[tensor] or graph.op_class[readers[0]] != VECTOR:
        return []
    same = {int(graph.tensor_elements[k]) for k in (tensor, *graph.outputs_of(readers[0]))}
    return readers if len(same) == 1 and not is_reduction(graph.op_types[readers[0]]) else []


def _least_s(graph: Graph, target: Target) -> FloatArray:
    """[N] seconds of each op as a kernel of its own, on the kind of chip where it is fastest."""
    alone = np.arange(graph.num_ops, dtype=np.int32)
    least: FloatArray = kernel_seconds(cost_tables(graph, target), alone).min(axis=0)
    return least
