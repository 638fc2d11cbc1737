"""Graphs of the zoo to test with, and the plans the portfolio starts from."""

from __future__ import annotations

from functools import cache

import numpy as np

import go_opt
from go_opt.env import Target, cost_tables, greedy_fusion, loop_roles, zoo_entries
from go_opt.model.graph import Graph
from go_opt.model.plan import Plan
from go_opt.solver import greedy_slicing, slice_order
from tests.strategies import JIT_IS_ON, make_plan

MOST_SAMPLES = 20 if JIT_IS_ON else 3
MOST_OPS = 2000


def zoo_sample() -> list[str]:
    """Names of graphs unlike each other: small ones of as many families, all for ``mcm-6x6``, without states.

    What holds for every graph of the zoo is tested in ``tests/env/test_zoo.py``; tests of
    other things take these, so that their time does not grow with the zoo.
    """
    smallest: dict[str, str] = {}
    for entry in sorted(zoo_entries(), key=lambda entry: entry.ops):
        if entry.ops <= MOST_OPS and entry.target == "mcm-6x6" and not entry.state_bytes:
            smallest.setdefault(entry.family, entry.name)
    # The families come by size; equal steps through them keep small and large ones.
    steps = np.linspace(0, len(smallest) - 1, min(MOST_SAMPLES, len(smallest)))
    return [list(smallest.values())[round(step)] for step in steps]


@cache
def stateless(name: str) -> Graph:
    """A graph of the zoo whose states the host sends and reads for each inference."""
    return go_opt.load(f"zoo:{name}", states={"*": ""})


def first_plans(graph: Graph, target: Target) -> tuple[Plan, Plan | None]:
    """The greedy plan and the sliced one, default order and fusion; no slicing may fit."""
    tables = cost_tables(graph, target)
    order = np.arange(graph.num_ops, dtype=np.int32)
    group = greedy_fusion(loop_roles(graph), order)
    adjacent = target.constraints.triangle != "off"
    greedy = greedy_slicing(tables, order, group, adjacent=adjacent)
    sliced = slice_order(tables, order, group, forwarding="adjacent" if adjacent else "free")
    return (
        make_plan(graph, target, greedy.placement, fusion_group=group),
        None if sliced is None else make_plan(graph, target, sliced.placement, fusion_group=group),
    )
