"""The solver: slicing, the greedy heuristic, lower bounds, and the independent verifier."""

from go_opt.solver.bounds import Bound, latency_bound, throughput_bound
from go_opt.solver.earliest_finish import earliest_finish_placement
from go_opt.solver.slice import Slicing, greedy_slicing, slice_order, slice_order_resident
from go_opt.solver.verify import Violation, verify

__all__ = [
    "Bound",
    "Slicing",
    "Violation",
    "earliest_finish_placement",
    "greedy_slicing",
    "latency_bound",
    "slice_order",
    "slice_order_resident",
    "throughput_bound",
    "verify",
]
