"""The solver: valid placements by slicing and propagation, schedules, bounds, and the verifier."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from go_opt.solver.certify.bounds import Bound as Bound
    from go_opt.solver.certify.bounds import throughput_bound as throughput_bound
    from go_opt.solver.certify.build import refinement_problem as refinement_problem
    from go_opt.solver.certify.joint_floors import (
        joint_refinement_problem as joint_refinement_problem,
    )
    from go_opt.solver.certify.problem import RefinementProblem as RefinementProblem
    from go_opt.solver.certify.refinement import Refinement as Refinement
    from go_opt.solver.constraints.problem import sample_constrained as sample_constrained
    from go_opt.solver.copies.relays import needed_relays as needed_relays
    from go_opt.solver.copies.relays import relays_of_arrays as relays_of_arrays
    from go_opt.solver.problem.forwarding_mode import ForwardingMode as ForwardingMode
    from go_opt.solver.problem.problem import PlacementProblem as PlacementProblem
    from go_opt.solver.problem.problem import most_chips_adjacent as most_chips_adjacent
    from go_opt.solver.problem.problem import placement_problem as placement_problem
    from go_opt.solver.problem.user_constraints import ChipLimit as ChipLimit
    from go_opt.solver.problem.user_constraints import Colocate as Colocate
    from go_opt.solver.problem.user_constraints import CutAfter as CutAfter
    from go_opt.solver.problem.user_constraints import Forbid as Forbid
    from go_opt.solver.problem.user_constraints import Pin as Pin
    from go_opt.solver.problem.user_constraints import Stages as Stages
    from go_opt.solver.propagation.adjacent import Placements as Placements
    from go_opt.solver.propagation.adjacent import place_adjacent as place_adjacent
    from go_opt.solver.propagation.modes import fix as fix
    from go_opt.solver.propagation.modes import sample as sample
    from go_opt.solver.propagation.propagators.tables import rule_tables as rule_tables
    from go_opt.solver.propagation.search import Solver as Solver
    from go_opt.solver.scheduling.annealing import ScheduleAnnealing as ScheduleAnnealing
    from go_opt.solver.scheduling.bounds import latency_bound as latency_bound
    from go_opt.solver.scheduling.list_scheduling import (
        earliest_finish_placement as earliest_finish_placement,
    )
    from go_opt.solver.scheduling.list_scheduling import list_scheduling as list_scheduling
    from go_opt.solver.scheduling.list_scheduling import upward_ranks as upward_ranks
    from go_opt.solver.slicing.slice import greedy_slicing as greedy_slicing
    from go_opt.solver.slicing.slice import slice_order as slice_order
    from go_opt.solver.slicing.slice import slice_order_streamed as slice_order_streamed
    from go_opt.solver.verify.rule_check import broken_rules as broken_rules
    from go_opt.solver.verify.verifier import Violation as Violation
else:
    from go_opt.lazy_imports import lazy_imports

    __getattr__, __dir__, __all__ = lazy_imports(__name__)
