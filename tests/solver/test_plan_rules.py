"""The rules of whole plans, in batches: as the verifier says, of legal plans and of broken ones."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from go_opt.common.arrays import IntArray
from go_opt.model.plan import Plan
from go_opt.solver.verify.rule_check import plan_rules
from go_opt.solver.verify.verifier import verify
from tests.strategies import (
    TOPOLOGIES,
    Fusion,
    examples,
    kind_names,
    random_graph,
    random_plan,
    random_target,
    seeds,
    small_mcm,
    toy_graph,
)

FUSIONS: tuple[Fusion, ...] = ("any", "legal", "none")


def stacked(plans: list[Plan]) -> list[IntArray]:
    return [
        np.array([getattr(plan, name) for plan in plans]) for name in ("placement", "order", "fusion_group")
    ]


@settings(max_examples=examples(80))
@given(seed=seeds, topology=st.sampled_from(TOPOLOGIES))
def test_as_the_verifier_says(seed: int, topology: str) -> None:
    rng = np.random.default_rng(seed)
    acyclic = None if topology in ("ring", "chain") else bool(rng.integers(2))
    target = random_target(rng, topology=topology, sram_bytes=10**9, acyclic=acyclic)
    graph = random_graph(rng, num_ops=int(rng.integers(1, 14)), kinds=kind_names(target))
    plans = []
    for _ in range(8):
        monotone, fusion = rng.random() < 0.7, FUSIONS[int(rng.integers(3))]
        try:
            plan = random_plan(rng, graph, target, monotone=bool(monotone), fusion=fusion)
        except AssertionError:  # no monotone placement: a kind is excluded
            continue
        fields = {name: getattr(plan, name).copy() for name in ("placement", "order", "fusion_group")}
        if rng.random() < 0.4:  # one number of it changed, or two swapped
            name = ("placement", "order", "fusion_group")[int(rng.integers(3))]
            i, j = rng.integers(graph.num_ops, size=2)
            if name == "placement":
                fields[name][i] = rng.integers(target.num_chips)
            else:
                fields[name][[i, j]] = fields[name][[j, i]]
        plans.append(Plan.create(graph, target.source, target.fingerprint, provenance="random", **fields))
    if not plans:
        return
    want = [not {v.constraint for v in verify(graph, target, plan)} - {"memory"} for plan in plans]
    got = plan_rules(graph, target).are_kept(*stacked(plans))
    np.testing.assert_array_equal(got, want)


def test_groups_may_have_any_numbers() -> None:
    graph, target = toy_graph(), small_mcm()
    order = np.arange(6, dtype=np.int32)[None]
    rules = plan_rules(graph, target)
    for groups, is_kept in (
        ([5, 4, 3, 2, 1, 0], True),
        ([9, 9, 9, 9, 9, 9], False),  # more than one loop nest
        ([0, 1, 2, 0, 3, 4], False),  # kernel 0 is no one stretch
        ([7, 3, 3, 1, 9, 8], True),  # dense and relu
    ):
        group = np.array([groups], dtype=np.int32)
        assert rules.are_kept(np.zeros_like(order), order, group).tolist() == [is_kept]
