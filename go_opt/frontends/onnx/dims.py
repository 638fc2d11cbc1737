"""Symbolic dimensions of a model and the numbers they are bound to."""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from go_opt.errors import ModelError
from go_opt.model.graph import MAX_ELEMENTS

PartialShape = tuple[int | None, ...]

_OPERATORS: Final[Mapping[type, Callable[[int, int], int]]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}


class DimTable:
    """Resolves dimensions to numbers by the bindings of the caller."""

    def __init__(self, model_name: str, bindings: Mapping[str, int]) -> None:
        self._model_name = model_name
        self._bindings = bindings
        for name, value in bindings.items():
            if isinstance(value, bool) or not isinstance(value, int) or not 0 < value <= MAX_ELEMENTS:
                raise ModelError(f"dimension {name!r} must be a positive integer, not {value!r}.")

    def resolve(self, info: Any) -> PartialShape | None:
        """The shape of a ``ValueInfoProto``; None stands for unknown sizes or an unknown shape."""
        if not info.type.tensor_type.HasField("shape"):
            return None
        return tuple(
            self._size(info.name, position, dim)
            for position, dim in enumerate(info.type.tensor_type.shape.dim)
        )

    def check(self, inputs: Iterable[Any], others: Iterable[Any]) -> None:
        """Reject bindings of unknown names, then inputs with unbound dimensions."""
        inputs = list(inputs)
        known = dict.fromkeys(name for info in inputs for name in _symbols(info))
        elsewhere = {name for info in others for name in _symbols(info)}
        for name in self.of_no_input(inputs):
            if name not in elsewhere:
                names = ", ".join(repr(other) for other in known) or "none"
                raise ModelError(
                    f"dimension {name!r} is not one of model {self._model_name!r}; it has {names}."
                )
        unbound = dict.fromkeys(name for info in inputs for name in self.unbound(info))
        if unbound:
            names = ", ".join(repr(name) for name in unbound)
            raise ModelError(
                f"model {self._model_name!r} has unbound dimensions {names}: use `{flags(unbound)}`."
            )

    def of_no_input(self, inputs: Iterable[Any]) -> tuple[str, ...]:
        """The bound dimensions that no input has; their sizes are known only at run time."""
        known = {name for info in inputs for name in _symbols(info)}
        # "past + 1" is resolved from "past", which another input may not name alone.
        known |= {part for name in known for part in _parts(name)}
        return tuple(name for name in self._bindings if name not in known)

    def shape_of_input(self, info: Any) -> tuple[int, ...]:
        """The shape of a model input after :meth:`check`."""
        shape = self.resolve(info)
        if shape is None:
            raise ModelError(f"input {info.name!r} has no shape, not even a number of dimensions.")
        return tuple(size for size in shape if size is not None)

    def unbound(self, info: Any) -> list[str]:
        """Names of the dimensions that no binding decides."""
        shape = self.resolve(info)
        dims = info.type.tensor_type.shape.dim
        return [
            _dim_name(info.name, position, dim)
            for position, (dim, size) in enumerate(zip(dims, shape or (), strict=True))
            if size is None
        ]

    def _size(self, tensor: str, position: int, dim: Any) -> int | None:
        if dim.HasField("dim_value"):
            if dim.dim_value < 0:
                raise ModelError(f"tensor {tensor!r}: dimension {position} is negative ({dim.dim_value}).")
            return int(dim.dim_value)
        name = _dim_name(tensor, position, dim)
        size = self._bindings.get(name)
        return self._evaluate(name) if size is None else size

    def _evaluate(self, expression: str) -> int | None:
        """Exporters write dimensions such as ``2*s0`` or ``past + 1``."""
        tree = _parsed(expression)
        return None if tree is None else self._evaluate_node(tree)

    def _evaluate_node(self, node: ast.expr) -> int | None:
        if isinstance(node, ast.Constant) and type(node.value) is int:
            return node.value
        if isinstance(node, ast.Name):
            return self._bindings.get(node.id)
        if isinstance(node, ast.BinOp) and type(node.op) in _OPERATORS:
            left, right = self._evaluate_node(node.left), self._evaluate_node(node.right)
            if left is None or right is None or (right == 0 and isinstance(node.op, ast.FloorDiv | ast.Mod)):
                return None
            size = _OPERATORS[type(node.op)](left, right)
            return size if 0 <= size <= MAX_ELEMENTS else None
        return None


def flags(names: Iterable[str]) -> str:
    """The options of the command line that bind the dimensions."""
    return " ".join(f"--dim {_quoted(name)}=VALUE" for name in names)


def _dim_name(tensor: str, position: int, dim: Any) -> str:
    return str(dim.dim_param) or f"{tensor}[{position}]"


def _symbols(info: Any) -> list[str]:
    return [
        _dim_name(info.name, position, dim)
        for position, dim in enumerate(info.type.tensor_type.shape.dim)
        if not dim.HasField("dim_value")
    ]


def _parsed(expression: str) -> ast.expr | None:
    if len(expression) > 200:
        return None
    try:
        return ast.parse(expression.strip(), mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def _parts(expression: str) -> set[str]:
    tree = _parsed(expression)
    return {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)} if tree else set()


def _quoted(name: str) -> str:
    return name if name.replace("_", "").isalnum() else f"'{name}'"
