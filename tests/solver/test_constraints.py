"""User constraints: the same solutions as enumeration, and sentences that name the culprit."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings

from go_opt.env import cost_tables
from go_opt.env.kernels.numbering import kernel_seconds
from go_opt.errors import InvalidInputError
from go_opt.solver.constraints.problem import conflict_sentence, sample_constrained
from go_opt.solver.problem.problem import placement_problem
from go_opt.solver.problem.user_constraints import ChipLimit, Colocate, CutAfter, Forbid, Pin
from go_opt.solver.propagation.propagators.tables import rule_tables
from tests.solver.placements import holds, rows_of
from tests.solver.user_constraints import draw_constraint, obeys
from tests.strategies import JIT_IS_ON, examples, random_graph, seeds, small_mcm, toy_graph


@given(seed=seeds)
@settings(max_examples=examples(40))
def test_three_endings_match_enumeration(seed: int) -> None:
    rng = np.random.default_rng(seed)
    num_ops, num_chips = int(rng.integers(2, 6)), int(rng.integers(2, 4))
    graph, target = random_graph(rng, num_ops), small_mcm(num_chips)
    constraints = [draw_constraint(rng, graph, target) for _ in range(int(rng.integers(1, 4)))]
    wanted = valid_under(graph, target, constraints)
    found = sample_constrained(graph, target, constraints, num_samples=300, seed=seed)
    assert not found.limit_reached
    if found.conflict is None:
        assert rows_of(found.placement) <= wanted
        assert not JIT_IS_ON or len(rows_of(found.placement)) >= min(len(wanted), 3)
    else:
        assert not wanted
        assert not valid_under(graph, target, found.conflict)
        for left_out in found.conflict:
            rest = [other for other in found.conflict if other is not left_out]
            assert valid_under(graph, target, rest)


def valid_under(graph, target, constraints):
    rules = rule_tables(placement_problem(graph, target))
    every = itertools.product(range(target.num_chips), repeat=graph.num_ops)
    return {
        row
        for row in every
        if holds(rules, np.array(row, np.int32))
        and all(obeys(graph, target, np.array(row), constraint) for constraint in constraints)
    }


def test_a_conflict_is_a_small_set_of_names() -> None:
    # add reads mix, so it cannot lie below it; the other two have nothing to do with it.
    constraints = [Pin("embed", 0), Pin("mix", 1), ChipLimit(0, at_most_s=1.0), Forbid("add", [1])]
    found = sample_constrained(toy_graph(), small_mcm(2), constraints)
    assert found.conflict == (Pin("mix", 1), Forbid("add", [1]))
    assert not found.limit_reached
    assert conflict_sentence(toy_graph(), small_mcm(2), found.conflict) == (
        "no placement obeys pin 'mix' to chip 1 and forbid 'add' chips 1, beside the rules of small-mcm."
    )


def test_kernels_are_kept_together() -> None:
    group = np.array([0, 1, 1, 2, 2, 3], np.int32)
    found = sample_constrained(
        toy_graph(), small_mcm(3), [Pin("relu", 0), Colocate(["mix", "logits"])], fusion_group=group
    )
    placement = found.placement[0]
    assert placement[1] == placement[2] == 0
    assert placement[3] == placement[4] == placement[5]


@pytest.mark.parametrize(
    ("constraints", "sentence"),
    [
        ([Pin("mx", 0)], "pin 'mx' to chip 0: 'mx' matches no op; did you mean 'mix'"),
        ([Pin("(", 0)], "neither an op nor a regular expression"),
        ([Pin("m{99999999999999999999}", 0)], "neither an op nor a regular expression"),
        ([Pin("(" * 5000 + ")" * 5000, 0)], "neither an op nor a regular expression"),
        ([Pin("mix", 9)], "names chip 9; chips are 0 to 1"),
        ([Forbid("mix", [1, 2])], "names chip 2"),
        ([ChipLimit(5, at_most_s=1)], "names chip 5"),
        (
            ["pin"],
            "must be one of Pin, Forbid, Colocate, CutAfter, ChipLimit, Stages, not 'pin'",
        ),
        ("pin", "constraints must be a list of constraints, not 'pin'"),
    ],
)
def test_bad_input_is_one_sentence(constraints, sentence: str) -> None:
    with pytest.raises(InvalidInputError) as caught:
        sample_constrained(toy_graph(), small_mcm(2), constraints)
    assert sentence in str(caught.value)
    assert str(caught.value).count("\n") == 0


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: Pin([], 0), "Pin names no op."),
        (lambda: Pin(3, 0), "ops must be a name or a list of names, not 3."),
        (lambda: Colocate(["a", 1]), "ops must be a name or a list of names, not ['a', 1]."),
        (lambda: Pin("a", -1), "Pin: a chip must be a whole number of 0 or more, not -1."),
        (lambda: Pin("a", True), "Pin: a chip must be a whole number of 0 or more, not True."),
        (lambda: Forbid("a", []), "forbid 'a' forbids no chip."),
        (lambda: Forbid("a", 3), "chips must be a list of chip numbers, not 3."),
        (lambda: ChipLimit(0), "limit of chip 0: give one of at_most_bytes"),
        (lambda: ChipLimit(0, at_most_s=float("nan")), "limit of chip 0: at_most_s must be a finite number"),
        (lambda: ChipLimit(0, at_least_bytes=10**400), "at_least_bytes must be a finite number of 0 or more"),
    ],
)
def test_a_constraint_that_says_nothing_is_refused(make, sentence: str) -> None:
    with pytest.raises(InvalidInputError) as caught:
        make()
    assert sentence in str(caught.value)


def test_constraints_are_values() -> None:
    assert Pin("a", 1) == Pin(["a"], np.int64(1))
    assert len({Forbid(["a", "b"], [2]), Forbid(("a", "b"), (2,)), ChipLimit(0, at_most_s=1)}) == 2
    assert str(Colocate([f"op{i}" for i in range(9)])) == (
        "colocate 'op0', 'op1', 'op2', 'op3', 'op4' and 4 more"
    )


def test_what_lies_between_colocated_ops_comes_along() -> None:
    found = sample_constrained(toy_graph(), small_mcm(3), [Colocate(["dense", "mix"])], num_samples=5)
    assert (found.placement[:, 1] == found.placement[:, 2]).all()  # relu, between them
    assert (found.placement[:, 1] == found.placement[:, 3]).all()


def test_colocated_ops_may_have_others_between_them_where_dataflow_may_go_back() -> None:
    target = small_mcm(3, topology="all_to_all")
    constraints = [Colocate(["dense", "mix"]), Pin("relu", 1), Forbid("dense", [1])]
    found = sample_constrained(toy_graph(), target, constraints, num_samples=5)
    assert found.found.all()
    assert (found.placement[:, 1] == found.placement[:, 3]).all()
    assert (found.placement[:, 2] == 1).all()


def test_a_chip_ends_at_a_cut_point() -> None:
    found = sample_constrained(toy_graph(), small_mcm(4), [CutAfter(["embed", "dense"])], num_samples=20)
    placement = found.placement
    # dense -> relu and embed -> add leave the set; embed -> dense does not.
    assert (placement[:, 2] > placement[:, 1]).all()
    assert (placement[:, 4] > placement[:, 0]).all()
    assert (placement[:, 0] == placement[:, 1]).any()


@pytest.mark.parametrize("rule", ["longest_path", "adjacent", "off"])
def test_cut_points_bind_the_fallback_too(rule: str) -> None:
    graph = random_graph(np.random.default_rng(7), 30)
    target = small_mcm(8, triangle=rule)
    found = sample_constrained(
        graph, target, [CutAfter("op4"), CutAfter("op9")], num_samples=10, max_backtracks=0
    )
    assert found.found.any()
    rows = found.placement[found.found]
    assert all(obeys(graph, target, row, CutAfter(name)) for row in rows for name in ("op4", "op9"))


def test_a_cut_within_a_unit_is_a_conflict() -> None:
    found = sample_constrained(toy_graph(), small_mcm(3), [CutAfter("relu"), Colocate(["relu", "mix"])])
    assert found.conflict == (CutAfter("relu"), Colocate(["relu", "mix"]))
    sentence = conflict_sentence(toy_graph(), small_mcm(3), found.conflict)
    assert sentence.startswith("no placement obeys cut after 'relu' and colocate 'relu', 'mix', beside")


def test_cut_points_need_chips_in_an_order() -> None:
    with pytest.raises(InvalidInputError, match="the chips of small-mcm have no order"):
        sample_constrained(toy_graph(), small_mcm(3, topology="all_to_all"), [CutAfter("relu")])


def test_a_conflict_of_pins_names_the_op() -> None:
    for constraints, names in (
        ([Pin("mix", 0), Pin("add", 1), Pin("m.*", 1)], "pin 'mix' to chip 0 and pin 'm.*' to chip 1"),
        ([Pin("add", 1), Forbid("mix", [0, 1])], "forbid 'mix' chips 0, 1"),
    ):
        found = sample_constrained(toy_graph(), small_mcm(2), constraints)
        sentence = conflict_sentence(toy_graph(), small_mcm(2), found.conflict)
        assert sentence == f"{names} leave op 'mix' no chip of small-mcm."


def test_regular_expressions_match_whole_names() -> None:
    found = sample_constrained(toy_graph(), small_mcm(2), [Pin("(dense|mix|logits)", 1), Pin("embed", 0)])
    assert list(found.placement[0][[0, 1, 3, 5]]) == [0, 1, 1, 1]


def test_limit_reached_is_reported() -> None:
    graph = random_graph(np.random.default_rng(3), 300)
    half_s = kernel_seconds(cost_tables(graph, small_mcm(3)), np.arange(300, dtype=np.int32)).sum() / 2
    limits = [ChipLimit(chip, at_least_s=half_s * 0.66, at_most_s=half_s * 0.667) for chip in range(3)]
    found = sample_constrained(graph, small_mcm(3), limits, max_backtracks=5)
    assert found.limit_reached
    assert found.backtracks <= 5
    assert (found.placement == -1).all()
