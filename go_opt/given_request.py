"""Converts options as callers may write them to the fields of a :class:`Request`."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar, get_type_hints

from go_opt.common.units import parse_duration_s
from go_opt.constraint_file import as_constraints
from go_opt.env.copies.splits import planned_graph
from go_opt.errors import PlanError
from go_opt.model.codecs.start_files import load_start
from go_opt.model.graph import Graph
from go_opt.model.plan import Plan
from go_opt.model.start import Start
from go_opt.result import Request

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
