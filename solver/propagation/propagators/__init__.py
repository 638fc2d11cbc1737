"""Propagators, one a file, each with the same functions.

``propagate(tables, store, unit)`` takes away chips that no valid placement has, given that
the domain of ``unit`` changed, and returns ``FAILED``, ``UNCHANGED`` or ``NARROWED``. It never
takes away a chip of a valid placement that lies within the domains, and once every unit is
decided it fails unless its rule holds. ``holds(tables, placement)`` is the rule itself.
"""

from __future__ import annotations

from go_opt.solver.propagation.propagators.tables import RuleTables, rule_tables

__all__ = ["RuleTables", "rule_tables"]
