"""The engine as a python-constraint solver, and the placement rules as python-constraint constraints.

    problem = constraint.Problem(ChipSolver())       # or any solver of the library
    problem.addVariables(units, range(num_chips))
    post_rules(problem, rule_tables(placement_problem(graph, target)), units)
    problem.addConstraint(lambda a, b: a != b, [units[0], units[3]])
    problem.getSolution()

Variables are units, values chips. :class:`ChipSolver` propagates the rules that
:func:`post_rules` adds; any other constraint is tested once its variables are decided.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from typing import Any

import constraint
import numpy as np

from go_opt.common.arrays import BoolArray
from go_opt.errors import InvalidInputError
from go_opt.solver.problem.problem import NO_SKIP_OFF, TRIANGLE_OFF, PlacementProblem
from go_opt.solver.propagation.propagators.domains import pack_chips
from go_opt.solver.propagation.propagators.tables import RuleTables, rule_tables
from go_opt.solver.propagation.search import Solver, holds

Domains = dict[Hashable, Sequence[int]]
Posted = tuple[Any, Sequence[Hashable]]  # a constraint and its variables


class PlacementRules(constraint.Constraint):  # type: ignore[misc]
    """The rules of a placement problem; its variables are the units, in their order."""

    def __init__(self, tables: RuleTables) -> None:
        self.tables = tables

    def __call__(
        self,
        variables: Sequence[Hashable],
        domains: Domains,
        assignments: dict[Hashable, int],
        forwardcheck: Any = False,
    ) -> bool:
        """Returns whether the assignment may still be completed; exact once it is complete."""
        chips = np.array([assignments.get(variable, -1) for variable in variables])
        if (chips >= 0).all():
            return holds(self.tables, chips.astype(np.int32))
        source, reader = (chips[ends] for ends in self.tables.edges())
        is_known = (source >= 0) & (reader >= 0)
        return bool((source + self.tables.succ_rise <= reader)[is_known].all())


class ChipSolver(constraint.Solver):  # type: ignore[misc]
    """Solves a ``constraint.Problem`` whose values are chips with the propagation engine."""

    def getSolution(self, domains: Domains, constraints: list[Posted], vconstraints: Any) -> Any:
        """Returns the first solution as variable -> chip, or ``None``."""
        return next(self.getSolutionIter(domains, constraints, vconstraints), None)

    def getSolutions(self, domains: Domains, constraints: list[Posted], vconstraints: Any) -> list[Any]:
        """Returns all solutions."""
        return list(self.getSolutionIter(domains, constraints, vconstraints))

    def getSolutionIter(
        self, domains: Domains, constraints: list[Posted], vconstraints: Any
    ) -> Iterator[dict[Hashable, int]]:
        """Yields solutions one by one, the lowest chips of the smallest domains first.

        Raises:
          InvalidInputError: a value is not a chip number, or a variable is not a unit of the rules.
        """
        variables, tables = _tables(domains, constraints)
        others = [posted for posted in constraints if not isinstance(posted[0], PlacementRules)]
        rules = [posted for posted in constraints if isinstance(posted[0], PlacementRules)]
        solver = Solver(tables)
        while not solver.is_exhausted:
            decided = {
                variables[unit]: int(solver.store.low[unit])
                for unit in np.flatnonzero(solver.store.size == 1)
            }
            # Rules posted a second time are tested like any other constraint.
            if not _holds(others + rules[1:], domains, decided):
                solver.reject()
            elif solver.is_complete:
                yield decided
                solver.reject()
            else:
                open_chips = np.where(solver.store.size > 1, solver.store.size, np.iinfo(np.int64).max)
                unit = int(np.argmin(open_chips))
                solver.set_domain(unit, int(solver.get_domain(unit)[0]))


def post_rules(problem: Any, tables: RuleTables, variables: Sequence[Hashable]) -> None:
    """Adds the rules of ``tables`` to ``problem``; ``variables`` are its units, in their order."""
    if len(variables) != tables.num_units:
        raise InvalidInputError(
            f"{len(variables)} variables for {tables.num_units} units.", field="variables"
        )
    problem.addConstraint(PlacementRules(tables), list(variables))


def _tables(domains: Domains, constraints: list[Posted]) -> tuple[list[Hashable], RuleTables]:
    """Returns the variables in the order of units, and tables with their domains."""
    rules = [posted for posted in constraints if isinstance(posted[0], PlacementRules)]
    variables = list(rules[0][1]) if rules else list(domains)
    missing = set(domains) - set(variables)
    if missing:
        name = min(map(repr, missing))
        raise InvalidInputError(f"variable {name} is no unit of the posted rules.", field="variables")
    values = [value for variable in variables for value in domains[variable]]
    if not all(isinstance(value, int | np.integer) and value >= 0 for value in values):
        raise InvalidInputError("every value must be a chip number.", field="values")
    num_chips = rules[0][0].tables.num_chips if rules else max(values) + 1
    open_chips = np.zeros((len(variables), num_chips), np.bool_)
    for unit, variable in enumerate(variables):
        open_chips[unit, [value for value in domains[variable] if value < num_chips]] = True
    if not rules:
        return variables, _free_tables(open_chips)
    tables = rules[0][0].tables
    return variables, tables._replace(allowed=tables.allowed & pack_chips(open_chips))


def _free_tables(open_chips: BoolArray) -> RuleTables:
    """Returns tables of units without edges and rules, each on one of its chips ([U, D])."""
    num_units, num_chips = open_chips.shape
    units, none = np.arange(num_units, dtype=np.int32), np.zeros(0, np.int32)
    ptr = np.zeros(num_units + 1, np.int64)
    free = PlacementProblem(
        num_chips=num_chips,
        unit_of_op=units,
        successor_ptr=ptr,
        successor=none,
        predecessor_ptr=ptr,
        predecessor=none,
        rise=none.astype(np.int64),
        topological=units,
        component=units,
        num_components=num_units,
        chip_kind=np.zeros(num_chips, np.int32),
        can_run=np.ones((1, num_units), np.bool_),
        acyclic=False,
        no_skip=NO_SKIP_OFF,
        triangle=TRIANGLE_OFF,
    )
    return rule_tables(free, allowed=open_chips)


def _holds(constraints: list[Posted], domains: Domains, decided: dict[Hashable, int]) -> bool:
    """Returns whether every constraint whose variables are all decided is satisfied."""
    return all(
        posted(variables, domains, decided)
        for posted, variables in constraints
        if all(variable in decided for variable in variables)
    )
