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

import itertools
from collections.abc import Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, Final

from go_opt.common.files import read_text
from go_opt.env.target import fields as toml
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
        found = toml.read_table(toml.parse_toml(text), "", _FIELDS)
    except InvalidInputError as error:
        raise InvalidInputError(f"constraints {source!r}: {error}", field="constraints") from None
    return tuple(itertools.chain.from_iterable(found.values()))


def _row(kind: type[UserConstraint]) -> toml.Field:
    """One constraint, a table that has no other keys."""

    def read(value: Any, path: str) -> UserConstraint:
        needs_ops = kind not in (ChipLimit, Stages) and not (isinstance(value, dict) and "op_types" in value)
        optional = {"op_types", *LIMITS, *(() if needs_ops else ("ops",))}
        names = [field.name for field in fields(kind)]
        wanted = {name: replace(_FIELD[name], is_optional=name in optional) for name in names}
        return kind(**toml.read_table(value, path, wanted))

    return toml.Field(read, {})


_FIELD: Final = {
    "ops": toml.TEXTS,
    "op_types": toml.TEXTS,
    "chip": toml.NATURAL,
    "chips": toml.NATURALS,
    "count": toml.NATURAL,
    **dict.fromkeys(LIMITS, toml.NON_NEGATIVE),
}
_FIELDS: Final = {name: replace(toml.rows(_row(kind)), is_optional=True) for name, kind in KINDS.items()}
