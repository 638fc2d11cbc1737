"""Targets: chips, links, rates, and the rules that hold."""

from go_opt.env.target.definition import (
    PAPER,
    Target,
    Triangle,
    first_chips,
    load_target,
    parse_target,
    shipped_target,
    target_names,
    target_schema,
    target_text,
)
from go_opt.env.target.kinds import ChipKind

__all__ = [
    "PAPER",
    "ChipKind",
    "Target",
    "Triangle",
    "first_chips",
    "load_target",
    "parse_target",
    "shipped_target",
    "target_names",
    "target_schema",
    "target_text",
]
