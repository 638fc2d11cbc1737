"""Adds untrusted shapes of tensors, and windows and heads of ops, to a graph; all are optional."""

from __future__ import annotations

import math
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from go_opt.errors import GraphError
from go_opt.model.codecs.fields import Fields, as_integer, shown
from go_opt.model.graph import Graph, Heads, Window, checked_heads, checked_window


def geometry_of(graph: Graph) -> dict[str, dict[str, Any]]:
    """Shapes by tensor, and windows and heads by op, as JSON types."""
    return {
        "shapes": {name: list(shape) for name, shape in graph.shapes.items()},
        "windows": {name: list(window) for name, window in graph.windows.items()},
        "heads": {name: {"number": n, "behind": dict(behind)} for name, (n, behind) in graph.heads.items()},
    }


def with_geometry(graph: Graph, fields: Fields) -> Graph:
    """The graph with the rows of :func:`geometry_of` in ``fields``; those of unknown names are dropped.

    Raises:
      GraphError: a value is not of these types, or not of the graph's elements.
    """
    shapes, windows, heads = (fields.table(key, {}) for key in ("shapes", "windows", "heads"))
    elements = dict(zip(graph.tensor_names, graph.tensor_elements.tolist(), strict=True))
    sizes = {}
    for name in shapes.values.keys() & elements.keys():
        sizes[name] = _numbers(shapes.values[name], what := f"tensor {name!r}: shape")
        if math.prod(sizes[name]) != elements[name]:
            raise GraphError(
                f"{what} {shown(list(sizes[name]))} has not its {elements[name]} elements.", field="shape"
            )
    windows_of = {}
    for name in windows.values.keys() & graph.op_index.keys():
        numbers = _numbers(windows.values[name], what := f"op {name!r}: window")
        if len(numbers) != len(Window._fields):
            raise GraphError(
                f"{what} must be size, stride and padding, not {shown(list(numbers))}.", field="window"
            )
        windows_of[name] = checked_window(f"op {name!r}", Window(*numbers))
    heads_of = {}
    for name in heads.values.keys() & graph.op_index.keys():
        row = heads.table(name)
        heads_of[name] = checked_heads(graph, name, Heads(row.integer("number"), row.integers("behind")))
    if not sizes and not windows_of and not heads_of:
        return graph
    return replace(
        graph,
        shapes=MappingProxyType(sizes),
        windows=MappingProxyType(windows_of),
        heads=MappingProxyType(heads_of),
    )


def _numbers(values: Any, what: str) -> tuple[int, ...]:
    if not isinstance(values, list | tuple):
        raise GraphError(f"{what} must be a list of whole numbers, not {shown(values)}.", field=what)
    return tuple(as_integer(value, what) for value in values)
