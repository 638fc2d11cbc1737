"""CP-SAT with a limit: every solution it finds is evaluated as a plan, and its bound is reported.

Up to ``MOST_UNITS`` units the model is the placement itself (:mod:`tests.benchmarks.cp_sat_model`);
above that, units are contracted along chains. No bound is reported then, because it would
hold only for the coarser problem.
"""

from __future__ import annotations

import math
from typing import Any, Final

import numpy as np

from go_opt.bench.rivals.searches import evaluate_units, slice_along
from go_opt.bench.rivals.trial import SpentError, Trial, unit_problem
from go_opt.common.processes import num_cores
from go_opt.solver import PlacementProblem
from tests.benchmarks.cp_sat_model import RingModel, cp_model
from tests.benchmarks.metis_rival import coarsened
from tests.benchmarks.rival_units import unit_seconds

MOST_UNITS: Final = 400
BLOCKS_EACH: Final = 8.0  # at least this many blocks per chip after contraction, if the chains allow it
TICKS: Final = 10**7  # per starting interval
# Deterministic time per evaluation if evaluations are limited; equal on every machine.
DETERMINISTIC_S_EACH: Final = 0.01


def cp_sat(trial: Trial, seed: int) -> None:
    """Slice the default order, then let CP-SAT improve the plan."""
    problem = trial.problem
    if not (problem.instance.tables.is_ring and problem.target.constraints.acyclic):
        trial.notes.append("the model is of rings and chains with acyclic dataflow only")
        return
    slice_along(trial, problem.order)
    if trial.best_s == 0:
        trial.notes.append("optimal")
        return
    units = unit_problem(problem)
    seconds = unit_seconds(problem, units.unit_of_op).max(axis=0)
    is_exact = units.num_units <= MOST_UNITS
    if not is_exact:
        most_s = float(seconds.sum()) / units.num_chips / BLOCKS_EACH
        units = unit_problem(problem, coarsened(units, seconds, MOST_UNITS, most_s))
        trial.notes.append(f"{len(seconds)} kernels contracted to {units.num_units} units")
    reached_s = trial.best_s if math.isfinite(trial.best_s) else float(seconds.sum())
    at_most_s = trial.best_s if is_exact and trial.best is not None else _no_more_s(trial)
    ring = RingModel(problem, units, reached_s / TICKS, at_most_s, trial.check)
    if trial.best is not None:
        start = np.zeros(units.num_units, np.int32)
        start[units.unit_of_op] = trial.best.placement
        ring.hint(start)
    trial.check()
    solver = cp_model().CpSolver()
    _limit(solver.parameters, trial, seed)
    status = solver.solve(ring.model, _plans(trial, ring, units))
    if is_exact and _is_relaxation(trial):
        trial.bound_s = max(0.0, solver.best_objective_bound) * ring.seconds_per_tick
    trial.notes.append(solver.status_name(status).lower())


def _is_relaxation(trial: Trial) -> bool:
    """Whether the model is a lower bound of every plan's cost.

    The model relays a tensor at every chip it passes. Only the adjacent form of the triangle rule
    needs that many relays.
    """
    return trial.problem.forwarding != "relayed" or trial.problem.target.constraints.triangle == "adjacent"


def _no_more_s(trial: Trial) -> float:
    """An upper bound [s] on the interval of every placement."""
    tables = trial.problem.instance.tables
    seconds = unit_seconds(trial.problem, unit_problem(trial.problem).unit_of_op).max(axis=0)
    dearest = max(
        float(tables.link_s_per_byte.max(initial=0.0)),
        tables.host_in_s_per_byte,
        tables.host_out_s_per_byte,
        2.0 * float(tables.sram_s_per_byte.max()),
    )
    moved = 6.0 * float(tables.tensor_bytes.sum()) * dearest
    overheads = len(tables.tensor_bytes) * float(tables.kernel_overhead_s.max())
    return float(seconds.sum()) + moved + overheads


def _limit(parameters: Any, trial: Trial, seed: int) -> None:
    """Limits by time on all cores; if only evaluations are limited, one reproducible worker."""
    parameters.random_seed = seed % 2**31
    if math.isfinite(trial.limits.budget_s):
        parameters.max_time_in_seconds = max(trial.left_s, 0.01)
        parameters.num_workers = num_cores()
    else:
        parameters.num_workers = 1
        parameters.max_deterministic_time = DETERMINISTIC_S_EACH * trial.left


def _plans(trial: Trial, ring: RingModel, units: PlacementProblem) -> Any:
    """A callback that evaluates every solution."""

    class Plans(cp_model().CpSolverSolutionCallback):  # type: ignore[misc]
        def on_solution_callback(self) -> None:
            try:
                evaluate_units(trial, units, ring.placement(self.boolean_value)[None])
            except SpentError:  # an exception must not pass through the solver
                self.stop_search()

    return Plans()
