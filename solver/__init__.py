"""The solver: valid placements by slicing and propagation, bounds, and the verifier."""

from go_opt.solver.adjacent import fix_adjacent, sample_adjacent
from go_opt.solver.annealing import Annealing, anneal
from go_opt.solver.bounds import Bound, latency_bound, throughput_bound
from go_opt.solver.clones import improve_with_clones
from go_opt.solver.constraints import constrained_problem, sample_constrained
from go_opt.solver.earliest_finish import earliest_finish_placement
from go_opt.solver.joint_floors import joint_refinement_problem
from go_opt.solver.likelihood import likelihood_slicing
from go_opt.solver.modes import Placements, fix, sample
from go_opt.solver.passing import Passing
from go_opt.solver.problem import PlacementProblem, most_chips_adjacent, placement_problem
from go_opt.solver.propagators import rule_tables
from go_opt.solver.refinement import Refinement
from go_opt.solver.refinement_problem import RefinementProblem, refinement_problem
from go_opt.solver.relay_slicing import slice_order_relayed
from go_opt.solver.relays import clones_of_arrays, needed_relays, relays_of_arrays
from go_opt.solver.rule_check import broken_rules
from go_opt.solver.search import Solver
from go_opt.solver.segment_bound import segment_bound
from go_opt.solver.slice import Slicing, greedy_slicing, slice_order
from go_opt.solver.streamed_slicing import slice_order_streamed, slice_order_streamed_replicated
from go_opt.solver.user_constraints import ChipLimit, Colocate, CutAfter, Forbid, Pin
from go_opt.solver.verify import Violation, verify

__all__ = [
    "Annealing",
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
    "Slicing",
    "Solver",
    "Violation",
    "anneal",
    "broken_rules",
    "clones_of_arrays",
    "constrained_problem",
    "earliest_finish_placement",
    "fix",
    "fix_adjacent",
    "greedy_slicing",
    "improve_with_clones",
    "joint_refinement_problem",
    "latency_bound",
    "likelihood_slicing",
    "most_chips_adjacent",
    "needed_relays",
    "placement_problem",
    "refinement_problem",
    "relays_of_arrays",
    "rule_tables",
    "sample",
    "sample_adjacent",
    "sample_constrained",
    "segment_bound",
    "slice_order",
    "slice_order_relayed",
    "slice_order_streamed",
    "slice_order_streamed_replicated",
    "throughput_bound",
    "verify",
]
