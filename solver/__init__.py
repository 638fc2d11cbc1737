"""The solver: valid placements by slicing and propagation, schedules, bounds, and the verifier."""

from go_opt.solver.certify.problem.bounds import Bound, throughput_bound
from go_opt.solver.certify.problem.build import refinement_problem
from go_opt.solver.certify.problem.joint_floors import joint_refinement_problem
from go_opt.solver.certify.problem.problem import RefinementProblem
from go_opt.solver.certify.refinement import Refinement
from go_opt.solver.constraints.problem import sample_constrained
from go_opt.solver.copies.relays import needed_relays, relays_of_arrays
from go_opt.solver.problem.passing import Passing
from go_opt.solver.problem.problem import PlacementProblem, most_chips_adjacent, placement_problem
from go_opt.solver.problem.user_constraints import ChipLimit, Colocate, CutAfter, Forbid, Pin, Stages
from go_opt.solver.propagation.adjacent import fix_adjacent, sample_adjacent
from go_opt.solver.propagation.modes import Placements, fix, sample
from go_opt.solver.propagation.propagators import rule_tables
from go_opt.solver.propagation.search import Solver
from go_opt.solver.scheduling import (
    ScheduleAnnealing,
    earliest_finish_placement,
    list_scheduling,
    upward_ranks,
)
from go_opt.solver.scheduling.bounds import latency_bound
from go_opt.solver.slicing.along import Slicing
from go_opt.solver.slicing.slice import greedy_slicing, slice_order
from go_opt.solver.slicing.streamed.slice import slice_order_streamed, slice_order_streamed_replicated
from go_opt.solver.verify.rule_check import broken_rules
from go_opt.solver.verify.verifier import Violation, verify

__all__ = [
    "Bound",
    "ChipLimit",
    "Colocate",
    "CutAfter",
    "Forbid",
    "Passing",
    "Pin",
    "PlacementProblem",
    "Placements",
    "Refinement",
    "RefinementProblem",
    "ScheduleAnnealing",
    "Slicing",
    "Solver",
    "Stages",
    "Violation",
    "broken_rules",
    "earliest_finish_placement",
    "fix",
    "fix_adjacent",
    "greedy_slicing",
    "joint_refinement_problem",
    "latency_bound",
    "list_scheduling",
    "most_chips_adjacent",
    "needed_relays",
    "placement_problem",
    "refinement_problem",
    "relays_of_arrays",
    "rule_tables",
    "sample",
    "sample_adjacent",
    "sample_constrained",
    "slice_order",
    "slice_order_streamed",
    "slice_order_streamed_replicated",
    "throughput_bound",
    "upward_ranks",
    "verify",
]
