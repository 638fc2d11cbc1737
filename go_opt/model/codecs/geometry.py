"""Adds untrusted shapes of tensors and windows of ops to a graph; both are optional."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from go_opt.errors import GraphError
from go_opt.model.codecs.fields import as_integer, shown
from go_opt.model.graph import Graph, Window, checked_window


def with_geometry(graph: Graph, shapes: Mapping[str, Any], windows: Mapping[str, Any]) -> Graph:
    """The graph with shapes by tensor and windows by op, each a list of numbers.

    Raises:
      GraphError: a value is not a list of numbers, or a shape has the wrong number of elements.
    """
    elements = dict(zip(graph.tensor_names, graph.tensor_elements.tolist(), strict=True))
    sizes = {}
    for name in shapes.keys() & elements.keys():
        sizes[name] = _numbers(shapes[name], what := f"tensor {name!r}: shape")
        if math.prod(sizes[name]) != elements[name]:
            raise GraphError(
                f"{what} {shown(list(sizes[name]))} has not its {elements[name]} elements.", field="shape"
            )
    of_ops = {}
    for name in windows.keys() & graph.op_index.keys():
        numbers = _numbers(windows[name], what := f"op {name!r}: window")
        if len(numbers) != len(Window._fields):
            raise GraphError(
                f"{what} must be size, stride and padding, not {shown(list(numbers))}.", field="window"
            )
        of_ops[name] = checked_window(f"op {name!r}", Window(*numbers))
    if not sizes and not of_ops:
        return graph
    return replace(graph, shapes=MappingProxyType(sizes), windows=MappingProxyType(of_ops))


def _numbers(values: Any, what: str) -> tuple[int, ...]:
    if not isinstance(values, list | tuple):
        raise GraphError(f"{what} must be a list of whole numbers, not {shown(values)}.", field=what)
    return tuple(as_integer(value, what) for value in values)
