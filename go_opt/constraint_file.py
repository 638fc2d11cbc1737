"""Reads the user's constraints from a TOML file or text.

[[pin]]
ops = "encoder/.*"          # a name, a regular expression of whole names, or a list of them
op_types = "LSTM"           # likewise of types; in place of ops, or beside them
chip = 3
[[forbid]]
ops = ["head", "pool"]
chips = [0, 1]
[[colocate]]
ops = "block4/.*"
[[cut_after]]
ops = "block3/.*"
[[limit]]
chip = 0
at_most_bytes = 8e6         # or at_least_bytes, at_most_s, at_least_s, at_most_ops, at_most_kernels
[[stages]]
count = 3
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any, Final

from go_opt.common.files import read_text
from go_opt.env.target.toml_table import TomlTable, parse_toml
from go_opt.errors import InvalidInputError
from go_opt.solver.problem.user_constraints import (
    KINDS,
    LIMITS,
    ChipLimit,
    Stages,
    UserConstraint,
    checked_constraints,
)


def as_constraints(given: Sequence[UserConstraint] | str | Path) -> tuple[UserConstraint, ...]:
    """Returns the given constraints, or reads them from the file at the given path.

    Raises:
      InvalidInputError: an item is not a constraint, or :func:`load_constraints` raises it.
    """
    return load_constraints(given) if isinstance(given, str | Path) else checked_constraints(given)


def load_constraints(path: str | Path) -> tuple[UserConstraint, ...]:
    """Reads the constraints of a TOML file.

    Raises:
      InvalidInputError: the file cannot be read or is malformed; one sentence says why.
    """
    return parse_constraints(read_text(path, "constraints"), str(path))


def parse_constraints(text: str, source: str) -> tuple[UserConstraint, ...]:
    """Parses TOML text. Kinds come in the order listed above, constraints of one kind in file order.

    Raises:
      InvalidInputError: the text is malformed; the message names it by ``source``.
    """
    try:
        root = TomlTable(parse_toml(text), "")
        found = [
            _read(kind, table)
            for name, kind in KINDS.items()
            if root.has(name)
            for table in root.tables(name)
        ]
        root.finish()
    except InvalidInputError as error:
        raise InvalidInputError(f"constraints {source!r}: {error}", field="constraints") from None
    return tuple(found)


def _read(kind: type[UserConstraint], table: TomlTable) -> UserConstraint:
    """Reads one constraint from a table that has no other keys."""
    required = [] if kind in (ChipLimit, Stages) or table.has("op_types") else ["ops"]
    optional = (field.name for field in fields(kind))
    names = required + [name for name in optional if name not in _OPTIONAL or table.has(name)]
    given = {name: _READERS[name](table, name) for name in names}
    table.finish()
    return kind(**given)


_OPTIONAL: Final = ("ops", "op_types", *LIMITS)
_READERS: Final[dict[str, Callable[[TomlTable, str], Any]]] = {
    "ops": TomlTable.texts,
    "op_types": TomlTable.texts,
    "chip": TomlTable.natural,
    "chips": TomlTable.naturals,
    "count": TomlTable.natural,
    **dict.fromkeys(LIMITS, TomlTable.non_negative),
}
