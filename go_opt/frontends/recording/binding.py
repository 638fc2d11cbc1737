"""Numbers that a caller gives to what a model leaves open, what follows from them, and refusals."""

from __future__ import annotations

import ast
import math
import operator
import re
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from typing import Any, ClassVar, Final

from go_opt.errors import GoOptError, ModelError
from go_opt.model.graph import MAX_ELEMENTS


class Trips:
    """The trips of the loops whose number of trips the model does not say."""

    MOST: ClassVar[int] = 2**31  # exporters write "while" as a Loop of about 2**63 trips

    def __init__(self, bindings: Mapping[str, int]) -> None:
        self._bindings = bindings
        self._unused = dict.fromkeys(bindings)
        for name, trips in bindings.items():
            if isinstance(trips, bool) or not isinstance(trips, int) or not 0 <= trips < self.MOST:
                raise ModelError(
                    f"loop {name!r} runs 0 to {self.MOST - 1} times, not {trips!r}.", field="trips"
                )

    def of(self, name: str, op_type: str) -> int:
        """The trips given for the loop that is the op ``name``.

        Raises:
          ModelError: none are given.
        """
        if name not in self._bindings:
            raise ModelError(
                f"op {name!r} ({op_type}) has no constant trip count: "
                f"use `--trips {shlex.quote(name)}=TRIPS`."
            )
        self._unused.pop(name, None)
        return self._bindings[name]

    def check(self) -> None:
        """Reject bindings of loops that the model does not have, once all of it is read."""
        for name in self._unused:
            raise ModelError(f"the model has no loop {name!r} whose trips can be bound.", field="trips")


def check_dims(bindings: Mapping[str, int]) -> None:
    """Reject sizes of dimensions that are no numbers of elements."""
    for name, size in bindings.items():
        if isinstance(size, bool) or not isinstance(size, int) or not 0 < size <= MAX_ELEMENTS:
            raise ModelError(f"dimension {name!r} must be a positive integer, not {size!r}.", field="dims")


def flags(names: Iterable[str]) -> str:
    """The options of the command line that bind the dimensions."""
    return " ".join(f"--dim {shlex.quote(name)}=VALUE" for name in names)


_OPERATORS: Final[Mapping[type, Callable[[Fraction, Fraction], Any]]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}
# As SymPy, PyTorch and TensorFlow write them.
_FUNCTIONS: Final[Mapping[str, Callable[..., Any]]] = {
    **dict.fromkeys(("floor", "floortoint"), math.floor),
    **dict.fromkeys(("ceil", "ceiling", "ceiltoint"), math.ceil),
    **dict.fromkeys(("int", "trunc", "trunctoint"), math.trunc),
    **dict.fromkeys(("mod", "pythonmod"), operator.mod),
    **dict.fromkeys(("cleandiv", "floordiv"), operator.floordiv),
    **dict.fromkeys(("inttruediv", "rational"), operator.truediv),
    "abs": abs,
    "add": lambda *terms: sum(terms),
    "ceildiv": lambda number, by: math.ceil(number / by),
    "integer": lambda number: number,
    "max": max,
    "min": min,
    "mul": lambda *factors: math.prod(factors),
    "pow": lambda base, power: base**power if abs(power) <= _MOST_POWER else None,
    "round": round,
}
_MOST_POWER: Final = 64
_MOST_TEXT: Final = 1_000  # of an expression
_SYMBOL: Final = re.compile(r"Symbol\('(\w+)'[^()]*\)")


@dataclass(frozen=True)
class Expression:
    """A size as exporters write it, such as ``2*s0`` or ``floor(n/2 - 1/2) + 1``.

    SymPy writes ``Mul(Integer(2), Symbol('s0', integer=True))``.
    """

    text: str

    @cached_property
    def _tree(self) -> ast.expr | None:
        if len(self.text) > _MOST_TEXT:
            return None
        try:
            return ast.parse(_SYMBOL.sub(r"\1", self.text.strip()), mode="eval").body
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            return None

    @property
    def symbols(self) -> set[str]:
        """The symbols in it."""
        nodes = ast.walk(self._tree) if self._tree else ()
        names = {node.id for node in nodes if isinstance(node, ast.Name)}
        return names - {name for name in names if name.lower() in _FUNCTIONS and name != self.text}

    def value(self, symbols: Mapping[str, int]) -> Fraction | None:
        """The number that it is; None if it is none, or not known."""
        try:
            return None if self._tree is None else _evaluated(self._tree, symbols)
        except (ZeroDivisionError, OverflowError, TypeError, RecursionError):
            return None


def _evaluated(node: ast.expr, symbols: Mapping[str, int]) -> Fraction | None:
    function: Callable[..., Any] | None = None
    arguments: list[ast.expr] = []
    if isinstance(node, ast.Constant) and type(node.value) is int:
        return _limited(node.value)
    if isinstance(node, ast.Name):
        return None if node.id not in symbols else Fraction(symbols[node.id])
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub | ast.UAdd):
        function = operator.neg if isinstance(node.op, ast.USub) else operator.pos
        arguments = [node.operand]
    elif isinstance(node, ast.BinOp):
        function, arguments = _OPERATORS.get(type(node.op)), [node.left, node.right]
    elif isinstance(node, ast.Call) and not node.keywords:
        name = getattr(node.func, "id", getattr(node.func, "attr", ""))  # floor, math.floor
        function, arguments = _FUNCTIONS.get(name.lower()), node.args
    numbers = [_evaluated(argument, symbols) for argument in arguments] if function else []
    return None if function is None or None in numbers or not numbers else _limited(function(*numbers))


def _limited(number: Any) -> Fraction | None:
    """The number, unless it is larger than any size."""
    exact = Fraction(number)
    return exact if abs(exact) <= MAX_ELEMENTS and exact.denominator <= MAX_ELEMENTS else None


@contextmanager
def refused_as(what: str) -> Iterator[None]:
    """Damaged models fail in more ways than their libraries name: each is bad input, as ``what`` says."""
    try:
        yield
    except GoOptError:
        raise
    except Exception as error:
        reason = "".join(str(error).strip().splitlines()[:1]).rstrip(".")
        raise ModelError(f"{what} ({type(error).__name__}: {reason}).") from error
