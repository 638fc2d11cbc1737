"""Propagators, one per file, all with the same functions.

``propagate(tables, store, unit)`` removes chips that no valid placement uses, after the domain
of ``unit`` has changed, and returns ``FAILED``, ``UNCHANGED`` or ``NARROWED``. It never removes
a chip of a valid placement within the domains. Once every unit is decided, it fails unless its
rule holds. ``holds(tables, placement)`` checks the rule itself.
"""

from __future__ import annotations

from go_opt.solver.propagation.propagators.tables import RuleTables, rule_tables

__all__ = ["RuleTables", "rule_tables"]
