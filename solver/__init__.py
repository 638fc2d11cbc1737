"""The solver: valid placements by slicing and propagation, bounds, and the verifier."""

from go_opt.solver.adjacent import fix_adjacent, sample_adjacent
from go_opt.solver.bounds import Bound, latency_bound, throughput_bound
from go_opt.solver.constraints import constrained_problem, sample_constrained
from go_opt.solver.earliest_finish import earliest_finish_placement
from go_opt.solver.likelihood import likelihood_slicing
from go_opt.solver.modes import Placements, fix, sample
from go_opt.solver.problem import PlacementProblem, most_chips_adjacent, placement_problem
from go_opt.solver.propagators import rule_tables
from go_opt.solver.rule_check import broken_rules
from go_opt.solver.search import Solver
from go_opt.solver.slice import Slicing, greedy_slicing, slice_order, slice_order_resident
from go_opt.solver.user_constraints import ChipLimit, Colocate, Forbid, Pin
from go_opt.solver.verify import Violation, verify

__all__ = [
    "Bound",
    "ChipLimit",
    "Colocate",
    "Forbid",
    "Pin",
    "PlacementProblem",
    "Placements",
    "Slicing",
    "Solver",
    "Violation",
    "broken_rules",
    "constrained_problem",
    "earliest_finish_placement",
    "fix",
    "fix_adjacent",
    "greedy_slicing",
    "latency_bound",
    "likelihood_slicing",
    "most_chips_adjacent",
    "placement_problem",
    "rule_tables",
    "sample",
    "sample_adjacent",
    "sample_constrained",
    "slice_order",
    "slice_order_resident",
    "throughput_bound",
    "verify",
]
