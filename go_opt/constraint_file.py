"""The user's constraints as TOML: from a file or a text, and back.

[[pin]]
ops = "encoder/.*"          # a name, a regular expression of whole names, or a list of them
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
at_most_bytes = 8e6         # or at_least_bytes, at_most_s, at_least_s
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

from go_opt.env.target.toml_table import TomlTable, parse_toml
from go_opt.errors import InvalidInputError
from go_opt.solver.problem.user_constraints import (
    LIMITS,
    ChipLimit,
    Colocate,
    CutAfter,
    Forbid,
    Pin,
    UserConstraint,
    checked_constraints,
)


def as_constraints(given: Sequence[UserConstraint] | str | Path) -> tuple[UserConstraint, ...]:
    """The constraints themselves, or those of the file at a path.

    Raises:
      InvalidInputError: one is no constraint; or as of :func:`load_constraints`.
    """
    return load_constraints(given) if isinstance(given, str | Path) else checked_constraints(given)


def load_constraints(path: str | Path) -> tuple[UserConstraint, ...]:
    """The constraints of a TOML file.

    Raises:
      InvalidInputError: the file cannot be read or is malformed; one sentence says why.
    """
    try:
        text = Path(path).read_bytes().decode("utf-8")
    except OSError as error:
        reason = f"cannot be read: {error.strerror or error}"
    except UnicodeDecodeError:
        reason = "is not UTF-8 text"
    except ValueError as error:  # a path with a null byte
        reason = f"cannot be read: {error}"
    else:
        return parse_constraints(text, str(path))
    raise InvalidInputError(f"constraints {str(path)!r} {reason}.", field="constraints")


def parse_constraints(text: str, source: str) -> tuple[UserConstraint, ...]:
    """The constraints of a TOML text: those of one kind in their order, kinds as listed above.

    Raises:
      InvalidInputError: as of :func:`load_constraints`; ``source`` names the text.
    """
    try:
        root = TomlTable(parse_toml(text), "")
        found = [
            read(table)
            for name, (_, read) in _TABLES.items()
            if root.has(name)
            for table in root.tables(name)
        ]
        root.finish()
    except InvalidInputError as error:
        raise InvalidInputError(f"constraints {source!r}: {error}", field="constraints") from None
    return tuple(found)


def constraints_to_toml(constraints: Sequence[UserConstraint]) -> str:
    """A text that :func:`parse_constraints` reads as the same constraints."""
    tables = []
    for name, (kind, _) in _TABLES.items():
        for constraint in constraints:
            if isinstance(constraint, kind):
                given = {key: value for key, value in vars(constraint).items() if value is not None}
                # JSON writes texts, numbers and lists of them as TOML does, but for one control character.
                rows = [f"{key} = {json.dumps(value, ensure_ascii=False)}\n" for key, value in given.items()]
                tables.append("".join([f"[[{name}]]\n", *rows]).replace("\x7f", "\\u007f"))
    return "\n".join(tables)


def _fields(table: TomlTable, **fields: Any) -> dict[str, Any]:
    """What was read of a table, which has nothing else."""
    table.finish()
    return fields


def _pin(table: TomlTable) -> Pin:
    return Pin(**_fields(table, ops=table.texts("ops"), chip=table.natural("chip")))


def _forbid(table: TomlTable) -> Forbid:
    return Forbid(**_fields(table, ops=table.texts("ops"), chips=table.naturals("chips")))


def _colocate(table: TomlTable) -> Colocate:
    return Colocate(**_fields(table, ops=table.texts("ops")))


def _cut_after(table: TomlTable) -> CutAfter:
    return CutAfter(**_fields(table, ops=table.texts("ops")))


def _limit(table: TomlTable) -> ChipLimit:
    amounts = {name: table.non_negative(name) for name in LIMITS if table.has(name)}
    return ChipLimit(**_fields(table, chip=table.natural("chip"), **amounts))


# Name, class and reader of each kind of table, in the order in which a text has them.
_TABLES: Final[dict[str, tuple[type[UserConstraint], Callable[[TomlTable], UserConstraint]]]] = {
    "pin": (Pin, _pin),
    "forbid": (Forbid, _forbid),
    "colocate": (Colocate, _colocate),
    "cut_after": (CutAfter, _cut_after),
    "limit": (ChipLimit, _limit),
}
