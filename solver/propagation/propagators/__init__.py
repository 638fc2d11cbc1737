"""Propagators, one per file, all with the same function.

``propagate`` removes chips that no valid placement uses, given the domains (of ``edges`` and ``between``:
after the domain of ``unit`` has changed), and notes a contradiction in the store. It never removes
a chip of a valid placement within the domains. Once every unit is decided, there is a contradiction unless
the rule holds.
"""

from __future__ import annotations

from go_opt.solver.propagation.propagators.tables import RuleTables, rule_tables

__all__ = ["RuleTables", "rule_tables"]
