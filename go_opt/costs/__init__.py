"""Turns measurements of a runtime into seconds of ops: matches rows by name, and undoes fusions."""

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
