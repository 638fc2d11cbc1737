"""User constraints: the same solutions as enumeration, and sentences that name the culprit."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings

from go_opt.env import cost_tables
from go_opt.env.kernels import kernel_seconds
from go_opt.errors import InfeasibleError, InvalidInputError
from go_opt.graph import WEIGHT
from go_opt.solver.constraints import conflict_sentence, constrained_problem, sample_constrained
from go_opt.solver.problem import placement_problem
from go_opt.solver.propagators import rule_tables
from go_opt.solver.search import holds
from go_opt.solver.user_constraints import ChipLimit, Colocate, Forbid, Pin
from tests.solver.placements import rows_of
from tests.strategies import JIT_IS_ON, examples, random_graph, seeds, small_mcm, toy_graph


@given(seed=seeds)
@settings(max_examples=examples(40))
def test_three_endings_match_enumeration(seed: int) -> None:
    rng = np.random.default_rng(seed)
    num_ops, num_chips = int(rng.integers(2, 6)), int(rng.integers(2, 4))
    graph, target = random_graph(rng, num_ops), small_mcm(num_chips)
    constraints = [draw_constraint(rng, graph, target) for _ in range(int(rng.integers(1, 4)))]
    wanted = valid_under(graph, target, constraints)
    try:
        found = sample_constrained(graph, target, constraints, num_samples=300, seed=seed)
    except InfeasibleError:
        assert not wanted
        return
    except InvalidInputError:  # a cycle of groups
        return
    assert not found.limit_reached
    if found.conflict is None:
        assert rows_of(found.op_placement) <= wanted
        assert not JIT_IS_ON or len(rows_of(found.op_placement)) >= min(len(wanted), 3)
    else:
        assert not wanted
        assert not valid_under(graph, target, found.conflict)
        for left_out in found.conflict:
            rest = [other for other in found.conflict if other is not left_out]
            assert valid_under(graph, target, rest)


def draw_constraint(rng, graph, target):
    op = f"op{rng.integers(graph.num_ops)}"
    other = f"op{rng.integers(graph.num_ops)}"
    chip = int(rng.integers(target.num_chips))
    total_s = kernel_seconds(cost_tables(graph, target), np.arange(graph.num_ops, dtype=np.int32)).sum()
    return (
        Pin(op, chip),
        Forbid((op, other), (chip,)),
        Colocate((op, other)),
        ChipLimit(chip, at_most_bytes=int(rng.integers(0, 20000))),
        ChipLimit(chip, at_least_bytes=int(rng.integers(0, 10000))),
        ChipLimit(chip, at_most_s=float(rng.random() * total_s)),
        ChipLimit(chip, at_least_s=float(rng.random() * total_s / 2)),
    )[int(rng.integers(7))]


def valid_under(graph, target, constraints):
    rules = rule_tables(placement_problem(graph, target))
    every = itertools.product(range(target.num_chips), repeat=graph.num_ops)
    return {
        row
        for row in every
        if holds(rules, np.array(row, np.int32))
        and all(obeys(graph, target, np.array(row), constraint) for constraint in constraints)
    }


def obeys(graph, target, placement, constraint) -> bool:
    if isinstance(constraint, ChipLimit):
        return obeys_limit(graph, target, placement, constraint)
    names = [constraint.ops] if isinstance(constraint.ops, str) else constraint.ops
    chips = {int(placement[graph.op_index[name]]) for name in names}
    if isinstance(constraint, Pin):
        return chips == {constraint.chip}
    if isinstance(constraint, Forbid):
        return not chips & set(constraint.chips)
    return len(chips) == 1


def obeys_limit(graph, target, placement, limit) -> bool:
    tables = cost_tables(graph, target)
    seconds = kernel_seconds(tables, np.arange(graph.num_ops, dtype=np.int32))[0]
    held_s = seconds[placement == limit.chip].sum()
    held_bytes = sum(
        tables.tensor_bytes[k]
        for k in np.flatnonzero(tables.tensor_kind == WEIGHT)
        if (placement[tables.reader_op[tables.reader_ptr[k] : tables.reader_ptr[k + 1]]] == limit.chip).any()
    )
    return (
        (limit.at_most_bytes is None or held_bytes <= limit.at_most_bytes)
        and (limit.at_least_bytes is None or held_bytes >= limit.at_least_bytes)
        and (limit.at_most_s is None or held_s <= limit.at_most_s * (1 + 1e-9))
        and (limit.at_least_s is None or held_s >= limit.at_least_s * (1 - 1e-9))
    )


def test_a_conflict_is_a_small_set_of_names() -> None:
    # add reads mix, so it cannot lie below it; the other two have nothing to do with it.
    constraints = [Pin("embed", 0), Pin("mix", 1), ChipLimit(0, at_most_s=1.0), Forbid("add", [1])]
    found = sample_constrained(toy_graph(), small_mcm(2), constraints)
    assert found.conflict == (Pin("mix", 1), Forbid("add", [1]))
    assert not found.limit_reached
    assert conflict_sentence(found.conflict, small_mcm(2)) == (
        "no placement obeys pin 'mix' to chip 1 and forbid 'add' chips 1, beside the rules of small-mcm."
    )


def test_kernels_are_kept_together() -> None:
    group = np.array([0, 1, 1, 2, 2, 3], np.int32)
    found = sample_constrained(
        toy_graph(), small_mcm(3), [Pin("relu", 0), Colocate(["mix", "logits"])], fusion_group=group
    )
    placement = found.op_placement[0]
    assert placement[1] == placement[2] == 0
    assert placement[3] == placement[4] == placement[5]


@pytest.mark.parametrize(
    ("constraints", "error", "sentence"),
    [
        ([Pin("mx", 0)], InvalidInputError, "pin 'mx' to chip 0: 'mx' matches no op; did you mean 'mix'"),
        ([Pin("(", 0)], InvalidInputError, "neither an op nor a regular expression"),
        ([Pin([], 0)], InvalidInputError, "names no op"),
        ([Pin("mix", 9)], InvalidInputError, "names chip 9; chips are 0 to 1"),
        ([Forbid("mix", [])], InvalidInputError, "forbids no chip"),
        ([ChipLimit(0)], InvalidInputError, "a limit is a finite number"),
        ([ChipLimit(5, at_most_s=1)], InvalidInputError, "names chip 5"),
        ([Colocate(["embed", "logits"])], InvalidInputError, "colocate 'embed', 'logits' makes a cycle"),
        (
            [Pin("mix", 0), Pin("m.*", 1)],
            InfeasibleError,
            "pin 'mix' to chip 0 and pin 'm.*' to chip 1 leave",
        ),
        ([Forbid("mix", [0, 1])], InfeasibleError, "forbid 'mix' chips 0, 1 leave op 'mix' no chip"),
    ],
)
def test_bad_input_is_one_sentence(constraints, error, sentence: str) -> None:
    with pytest.raises(error) as caught:
        constrained_problem(toy_graph(), small_mcm(2), constraints)
    assert sentence in str(caught.value)
    assert str(caught.value).count("\n") == 0


def test_regular_expressions_match_whole_names() -> None:
    found = sample_constrained(toy_graph(), small_mcm(2), [Pin("(dense|mix|logits)", 1), Pin("embed", 0)])
    assert list(found.op_placement[0][[0, 1, 3, 5]]) == [0, 1, 1, 1]


def test_limit_reached_is_reported() -> None:
    graph = random_graph(np.random.default_rng(3), 300)
    half_s = kernel_seconds(cost_tables(graph, small_mcm(3)), np.arange(300, dtype=np.int32)).sum() / 2
    limits = [ChipLimit(chip, at_least_s=half_s * 0.66, at_most_s=half_s * 0.667) for chip in range(3)]
    found = sample_constrained(graph, small_mcm(3), limits, max_backtracks=5)
    assert found.limit_reached
    assert found.placements.statistics.backtracks <= 5
    assert (found.op_placement == -1).all()
