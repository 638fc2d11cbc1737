"""python-constraint and CP-SAT as oracles of the engine, and the engine as their rival."""

from __future__ import annotations

import constraint
import numpy as np
import pytest
from hypothesis import given, settings

from go_opt.errors import InvalidInputError
from go_opt.solver.problem.problem import NO_SKIP_ALL, NO_SKIP_OFF
from go_opt.solver.propagation.propagators.tables import rule_tables
from go_opt.solver.propagation.python_constraint import ChipSolver, post_rules
from tests.solver.placements import ON_A_RING, RULES, random_problem, valid_placements
from tests.strategies import examples, seeds


def solutions(problem, solver):
    """With all rules, and a constraint of the library that the engine does not know."""
    tables = rule_tables(problem)
    units = [f"u{unit}" for unit in range(problem.num_units)]
    posed = constraint.Problem(solver)
    posed.addVariables(units, range(problem.num_chips))
    post_rules(posed, tables, units)
    posed.addConstraint(lambda first, last: last != first + 1, [units[0], units[-1]])
    found = [tuple(solution[unit] for unit in units) for solution in posed.getSolutions()]
    assert len(found) == len(set(found))
    return set(found)


@pytest.mark.parametrize("rules", RULES)
@given(seed=seeds)
@settings(max_examples=examples(6))
def test_the_library_and_the_engine_agree(rules, seed: int) -> None:
    problem = random_problem(np.random.default_rng(seed), rules, max_units=5)
    wanted = {row for row in valid_placements(rule_tables(problem)) if row[-1] != row[0] + 1}
    assert solutions(problem, ChipSolver()) == wanted
    assert solutions(problem, constraint.BacktrackingSolver()) == wanted


def test_a_problem_without_our_rules() -> None:
    posed = constraint.Problem(ChipSolver())
    posed.addVariables("abc", [0, 2, 70])
    posed.addConstraint(constraint.AllDifferentConstraint())
    posed.addConstraint(lambda a, b: a < b, "ab")
    found = {(s["a"], s["b"], s["c"]) for s in posed.getSolutionIter()}
    assert found == {(0, 2, 70), (0, 70, 2), (2, 70, 0)}
    assert posed.getSolution() in posed.getSolutions()
    posed.addConstraint(lambda a: a > 70, "a")
    assert posed.getSolution() is None


def test_values_must_be_chips() -> None:
    posed = constraint.Problem(ChipSolver())
    posed.addVariables("ab", ["red"])
    with pytest.raises(InvalidInputError, match="chip number"):
        posed.getSolution()


def test_variables_must_be_units() -> None:
    problem = random_problem(np.random.default_rng(0), ON_A_RING)
    units = list(range(problem.num_units))
    posed = constraint.Problem(ChipSolver())
    posed.addVariables([*units, "more"], range(problem.num_chips))
    post_rules(posed, rule_tables(problem), units)
    with pytest.raises(InvalidInputError, match="'more' is no unit"):
        posed.getSolution()
    with pytest.raises(InvalidInputError, match="variables for"):
        post_rules(posed, rule_tables(problem), units[:-1])


# ------------------------------------------------------------------ needs ortools ---------

TRIANGLE = ("off", "longest_path", "three_chip", "adjacent")


@pytest.mark.parametrize("rules", RULES)
def test_cp_sat_agrees(rules) -> None:
    cp_model = pytest.importorskip("ortools.sat.python.cp_model")
    for seed in range(examples(10)):
        problem = random_problem(np.random.default_rng(seed), rules, max_units=5)
        found = cp_sat_placements(cp_model, problem)
        assert found == valid_placements(rule_tables(problem))


def cp_sat_placements(cp_model, problem):
    """Every solution of a model that shares nothing with the engine."""
    model = cp_model.CpModel()
    num_units, num_chips = problem.num_units, problem.num_chips
    chip = [model.new_int_var(0, num_chips - 1, f"f{u}") for u in range(num_units)]
    on = [[model.new_bool_var(f"on{u},{c}") for c in range(num_chips)] for u in range(num_units)]
    for u in range(num_units):
        model.add_exactly_one(on[u])
        model.add(chip[u] == sum(c * on[u][c] for c in range(num_chips)))
    edges = [
        (u, int(v))
        for u in range(num_units)
        for v in problem.successor[problem.successor_ptr[u] : problem.successor_ptr[u + 1]]
    ]
    if problem.acyclic:
        for u, v in edges:
            model.add(chip[u] <= chip[v])
    used = [either(model, [on[u][c] for u in range(num_units)]) for c in range(num_chips)]
    for c in range(num_chips):
        if problem.no_skip == NO_SKIP_ALL:
            model.add(used[c] == 1)
        elif problem.no_skip != NO_SKIP_OFF and c:
            model.add_implication(used[c], used[c - 1])
    depends = {
        (a, b): either(model, [both(model, on[u][a], on[v][b]) for u, v in edges])
        for a in range(num_chips)
        for b in range(a + 1, num_chips)
    }
    forbid_detours(model, depends, num_chips, TRIANGLE[problem.triangle])
    collector = collect(cp_model, chip)
    solver = cp_model.CpSolver()
    solver.parameters.enumerate_all_solutions = True
    solver.solve(model, collector)
    return collector.found


def forbid_detours(model, depends, num_chips, rule) -> None:
    path = dict(depends)  # of any length
    for length in range(2, num_chips):
        for a in range(num_chips - length):
            b = a + length
            past = [both(model, depends[a, c], path[c, b]) for c in range(a + 1, b)]
            path[a, b] = either(model, [depends[a, b], *past])
            if rule == "longest_path":
                for detour in past:
                    model.add_bool_or([depends[a, b].negated(), detour.negated()])
            if rule == "three_chip":
                for c in range(a + 1, b):
                    ends = (depends[a, b], depends[a, c], depends[c, b])
                    model.add_bool_or([end.negated() for end in ends])
            if rule == "adjacent":
                model.add(depends[a, b] == 0)


def either(model, literals):
    result = model.new_bool_var("")
    model.add_max_equality(result, [*literals, model.new_constant(0)])
    return result


def both(model, first, second):
    result = model.new_bool_var("")
    model.add_multiplication_equality(result, [first, second])
    return result


def collect(cp_model, chips):
    class Collector(cp_model.CpSolverSolutionCallback):
        def __init__(self) -> None:
            super().__init__()
            self.found: set[tuple[int, ...]] = set()

        def on_solution_callback(self) -> None:
            self.found.add(tuple(self.value(chip) for chip in chips))

    return Collector()
