"""What callers write: options of a :class:`Request`, and constraints in a TOML file.

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

import inspect
import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, Final, TypeVar, get_type_hints

from go_opt.common.files import read_text
from go_opt.common.units import parse_duration_s
from go_opt.env.copies.splits import planned_graph
from go_opt.env.target import fields as toml
from go_opt.errors import InvalidInputError, PlanError
from go_opt.model.codecs.start_files import load_start
from go_opt.model.graph import Graph
from go_opt.model.plan import Plan
from go_opt.model.start import Start
from go_opt.result import Request
from go_opt.solver.problem.user_constraints import (
    KINDS,
    LIMITS,
    ChipLimit,
    Stages,
    UserConstraint,
    checked_constraints,
)

_F = TypeVar("_F", bound=Callable[..., Any])


def takes_options(function: _F) -> _F:
    """Shows the fields of a :class:`Request` in the signature of a function in place of ``**options``."""
    own = inspect.signature(function)
    parameters = [given for given in own.parameters.values() if given.kind is not given.VAR_KEYWORD]
    hints = get_type_hints(Request)
    for option in inspect.signature(Request).parameters.values():
        parameters.append(option.replace(annotation=hints[option.name]))
    function.__signature__ = own.replace(parameters=parameters)  # type: ignore[attr-defined]
    return function


def as_request(request: Request | None, options: Mapping[str, Any], graph: Graph | None) -> Request:
    """The request, or the default one, with ``options`` in place of its fields of the same names.

    Durations may be texts such as ``"2ms"``; constraints and the start may be paths of files, and the
    start a plan for ``graph``.

    Args:
      graph: None if this process does not know the graph.

    Raises:
      InvalidInputError: a value is out of range, or a file of constraints is malformed.
      PlanError: the file of the start is not a plan, or the plan belongs to another graph.
      TypeError: there is no such option.
    """
    return replace(
        request or Request(), **{name: _read(name, value, graph) for name, value in options.items()}
    )


def _read(name: str, value: Any, graph: Graph | None) -> Any:
    if name.endswith("_s") and isinstance(value, str):
        return parse_duration_s(value, name)
    if name == "sequences" and value == "auto":
        return None
    if name == "constraints":
        return as_constraints(value)
    return _as_start(value, graph) if name == "start" else value


def _as_start(start: Start | Plan | str | Path | None, graph: Graph | None) -> Start | None:
    if isinstance(start, str | Path):
        return load_start(start)
    if not isinstance(start, Plan):
        return start
    placed = None if graph is None else planned_graph(graph, start)
    if placed is None or start.graph_fingerprint != placed.fingerprint:
        raise PlanError("a plan of another graph is matched by names: give its file.", field="start")
    return Start.of_plan(start, placed.op_names)


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
