"""What a runtime measured, as seconds of ops: rows of a profile by names, fusions undone by the graph."""

from go_opt.costs.coverage import MOST_LISTED, Coverage, Unmapped
from go_opt.costs.mapping import mapped_rows
from go_opt.costs.remembered import check_remembered, costs_fact, costs_fingerprint
from go_opt.costs.runtime_profile import ProfileRow, is_profile, read_profile

__all__ = [
    "MOST_LISTED",
    "Coverage",
    "ProfileRow",
    "Unmapped",
    "check_remembered",
    "costs_fact",
    "costs_fingerprint",
    "is_profile",
    "mapped_rows",
    "read_profile",
]
