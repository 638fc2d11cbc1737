"""Sizes of an exported program: numbers, or expressions of symbols that the user may bind."""

from __future__ import annotations

import ast
import math
from collections.abc import Callable, Mapping
from typing import Any, Final

from go_opt.errors import ModelError

# Sizes are written as SymPy's `srepr`: Add(Integer(1), Symbol('s0', integer=True)).
_FUNCTIONS: Final[Mapping[str, Callable[..., float]]] = {
    "Add": lambda *terms: sum(terms),
    "CeilToInt": math.ceil,
    "CleanDiv": lambda a, b: a // b,
    "FloorDiv": lambda a, b: a // b,
    "FloorToInt": math.floor,
    "Integer": lambda value: value,
    "IntTrueDiv": lambda a, b: a / b,
    "Max": max,
    "Min": min,
    "Mod": lambda a, b: a % b,
    "Mul": lambda *factors: math.prod(factors),
    "Pow": lambda a, b: a**b,
    "PythonMod": lambda a, b: a % b,
    "Rational": lambda a, b: a / b,
}


class Sizes:
    """Numbers for the sizes of a program: the user's for bound dimensions, else those of the example."""

    def __init__(self, program: Mapping[str, Any], dims: Mapping[str, int]) -> None:
        """Bind ``dims``, by ``input[axis]`` or by the name of a symbol.

        Raises:
          ModelError: a dimension that the program does not have, or a size out of its range.
        """
        graph = program["graph_module"]["graph"]
        self._is_bound = bool(dims)
        self._symbols = dict[str, int]()  # symbol -> size
        for size in _all_sizes(graph):
            symbol = _symbol(size)
            if symbol and size["as_expr"].get("hint"):
                self._symbols[symbol] = int(size["as_expr"]["hint"]["as_int"])
        names = _names(program)
        ranges = program.get("range_constraints", {})
        for name, value in dims.items():
            symbol = names.get(name, name)
            if symbol not in ranges:
                known = ", ".join(names) or "none"
                raise ModelError(f"the model has no dimension {name!r}; it has {known}.", field="dims")
            limits = ranges.get(symbol, {})
            least, most = limits.get("min_val"), limits.get("max_val")
            if (least is not None and value < least) or (most is not None and value > most):
                raise ModelError(
                    f"dimension {name!r} is {value}, where the model was exported for {least} to {most}.",
                    field="dims",
                )
            self._symbols[symbol] = value

    def size(self, size: Mapping[str, Any], where: str) -> int:
        """The number for a size of the program.

        Raises:
          ModelError: the size depends on tensor values, or on an unknown function.
        """
        if "as_int" in size:
            return int(size["as_int"])
        expression = size["as_expr"]
        if expression.get("hint") and not self._is_bound:
            return int(expression["hint"]["as_int"])
        return int(self._value(ast.parse(expression["expr_str"], mode="eval").body, where))

    def _value(self, node: ast.expr, where: str) -> float:
        if isinstance(node, ast.Constant) and isinstance(node.value, int):
            return node.value
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
            return -self._value(node.operand, where)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            if node.func.id == "Symbol" and isinstance(node.args[0], ast.Constant):
                return self._symbol_value(str(node.args[0].value), where)
            if node.func.id in _FUNCTIONS:
                return _FUNCTIONS[node.func.id](*(self._value(argument, where) for argument in node.args))
        raise ModelError(f"{where} has the size {ast.unparse(node)}, which from_torch cannot compute.")

    def _symbol_value(self, symbol: str, where: str) -> int:
        if symbol not in self._symbols:
            raise ModelError(
                f"{where} has a size that depends on values: bind dimension {symbol!r}.", field="dims"
            )
        return self._symbols[symbol]


def _all_sizes(graph: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    sizes = [size for meta in graph["tensor_values"].values() for size in meta["sizes"]]
    return [size for size in (*sizes, *graph["sym_int_values"].values()) if "as_expr" in size]


def _symbol(size: Mapping[str, Any]) -> str:
    """The symbol of a size; empty for a number or an expression."""
    text = size["as_expr"]["expr_str"] if "as_expr" in size else ""
    return text.split("'")[1] if text.startswith("Symbol('") and text.count("(") == 1 else ""


def _names(program: Mapping[str, Any]) -> dict[str, str]:
    """``input[axis]`` -> symbol."""
    graph = program["graph_module"]["graph"]
    names = {}
    for spec in program["graph_module"]["signature"]["input_specs"]:
        tensor = spec.get("user_input", {}).get("arg", {}).get("as_tensor")
        if tensor is not None:
            for axis, size in enumerate(graph["tensor_values"][tensor["name"]]["sizes"]):
                if _symbol(size):
                    names[f"{tensor['name']}[{axis}]"] = _symbol(size)
    return names
