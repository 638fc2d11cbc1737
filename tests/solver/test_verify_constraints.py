"""The verifier on user constraints: by hand, and against the search's own check on random placements."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings

from go_opt.env import cost_tables, evaluate_plan, greedy_fusion, loop_roles
from go_opt.errors import InvalidInputError
from go_opt.model.plan import Relay
from go_opt.solver.copies.relays import needed_relays, relays_of_arrays
from go_opt.solver.problem.op_constraints import op_constraints
from go_opt.solver.problem.user_constraints import ChipLimit, Colocate, CutAfter, Forbid, Pin
from go_opt.solver.verify.constraints import kernel_seconds_of_chip
from go_opt.solver.verify.verifier import verify
from tests.solver.constraint_filter import ConstraintFilter
from tests.solver.user_constraints import draw_constraint
from tests.strategies import (
    examples,
    make_plan,
    random_graph,
    random_plan,
    random_target,
    seeds,
    small_mcm,
    toy_graph,
)

OURS = {"pin", "forbid", "colocate", "cut", "limit", "stages"}
# embed, dense and relu on chip 0, the others on chip 1.
HALVES = [0, 0, 0, 1, 1, 1]


def broken(constraint, placement=HALVES, **changes):
    graph, target = toy_graph(), small_mcm(3)
    plan = replace(make_plan(graph, target, placement), **changes)
    return [
        (v.constraint, v.message) for v in verify(graph, target, plan, [constraint]) if v.constraint in OURS
    ]


@pytest.mark.parametrize(
    ("constraint", "found"),
    [
        (Pin("mix", 1), []),
        (Pin("(mix|relu)", 1), [("pin", "pin '(mix|relu)' to chip 1: op 'relu' is on chip 0.")]),
        (Forbid("mix", [0, 2]), []),
        (Forbid("mix", [1]), [("forbid", "forbid 'mix' chips 1: op 'mix' is on chip 1.")]),
        (Colocate(["embed", "relu"]), []),
        (
            Colocate(["relu", "mix"]),
            [("colocate", "colocate 'relu', 'mix': op 'relu' is on chip 0, op 'mix' on chip 1.")],
        ),
        (CutAfter(["embed", "dense", "relu"]), []),
        (CutAfter("embed"), [("cut", "cut after 'embed': op 'dense' on chip 0 reads op 'embed' on chip 0.")]),
        # Weights: table 10000 and w1 2000 on chip 0; w2 2000 and table, again, on chip 1.
        (ChipLimit(0, at_most_bytes=12000, at_least_bytes=12000), []),
        (
            ChipLimit(1, at_most_bytes=11999),
            [("limit", "limit chip 1 to at most bytes 11999: it holds 12000 bytes of weights.")],
        ),
        # Kernels: 3.4 + 9 + 6 us on chip 0.
        (ChipLimit(0, at_most_s=18.4e-6, at_least_s=18.4e-6), []),
        (
            ChipLimit(0, at_least_s=2e-5),
            [("limit", "limit chip 0 to at least s 2e-05: it holds 1.84e-05 seconds of kernels.")],
        ),
        (ChipLimit(2, at_most_s=0, at_most_bytes=0, at_most_kernels=0), []),
        (ChipLimit(0, at_most_kernels=3), []),
        (
            ChipLimit(0, at_most_kernels=2),
            [("limit", "limit chip 0 to at most kernels 2: it holds 3 kernels.")],
        ),
    ],
)
def test_by_hand(constraint, found) -> None:
    assert broken(constraint) == found


def test_relays_count_on_their_chip() -> None:
    # x passes chip 1 to add on chip 2: a copy of 1000 bytes, 2 us and 1 us of overhead.
    placement = [0, 0, 0, 1, 2, 2]
    relays = (Relay("x", (1,)),)
    assert broken(ChipLimit(1, at_most_s=8e-6, at_least_s=8e-6), placement, relays=relays) == []
    assert broken(ChipLimit(1, at_most_kernels=2), placement, relays=relays) == []
    assert broken(ChipLimit(1, at_most_kernels=1), placement, relays=relays) == [
        ("limit", "limit chip 1 to at most kernels 1: it holds 2 kernels.")
    ]


def test_constraints_must_be_about_something() -> None:
    with pytest.raises(InvalidInputError, match="matches no op"):
        broken(Pin("nothing", 0))


@given(seed=seeds)
@settings(max_examples=examples(60))
def test_the_filter_says_the_same(seed: int) -> None:
    rng = np.random.default_rng(seed)
    graph, target = random_graph(rng, int(rng.integers(2, 12))), small_mcm(int(rng.integers(2, 5)))
    forwarding = ("adjacent", "relayed", "free")[int(rng.integers(3))]
    order = np.arange(graph.num_ops, dtype=np.int32)
    group = greedy_fusion(loop_roles(graph), order) if rng.random() < 0.5 else order
    constraints = [draw_constraint(rng, graph, target) for _ in range(int(rng.integers(1, 4)))]
    placements = np.sort(rng.integers(0, target.num_chips, (20, graph.num_ops)), axis=1).astype(np.int32)
    placements = placements[(placements == placements[:, first_of(group)]).all(axis=1)]
    kept = ConstraintFilter(op_constraints(graph, target, constraints), group, forwarding).are_kept(
        placements
    )
    for placement, is_kept in zip(placements, kept, strict=True):
        plan = make_plan(graph, target, placement, fusion_group=group)
        if forwarding == "relayed":
            pairs = needed_relays(cost_tables(graph, target), placement, target.constraints.triangle)
            plan = replace(plan, relays=relays_of_arrays(graph, *pairs))
        ours = [v for v in verify(graph, target, plan, constraints) if v.constraint in OURS]
        assert is_kept == (not ours)


def first_of(group: np.ndarray) -> np.ndarray:
    """[N] the first op of each op's kernel."""
    _, first, kernel = np.unique(group, return_index=True, return_inverse=True)
    return first[kernel]


@given(seed=seeds)
@settings(max_examples=examples(30))
def test_seconds_of_a_chip_are_those_of_the_evaluation(seed: int) -> None:
    rng = np.random.default_rng(seed)
    target = random_target(rng, num_kinds=2)
    graph = random_graph(rng, 12, kinds=[kind.name for kind in target.kinds])
    plan = random_plan(rng, graph, target)
    compute_s = evaluate_plan(graph, target, plan).compute_s
    for chip in range(target.num_chips):
        seconds = kernel_seconds_of_chip(cost_tables(graph, target), plan, chip)
        np.testing.assert_allclose(seconds, compute_s[chip], rtol=1e-12, atol=1e-18)
