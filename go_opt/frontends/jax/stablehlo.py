"""Reads StableHLO as jaxprs: each op becomes a JAX primitive of the same cost."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, Final

from go_opt.errors import ModelError
from go_opt.frontends.jax.dimension_numbers import (
    combiner,
    convolution,
    cumulative,
    dot_dimensions,
    places,
    windows,
)
from go_opt.frontends.jax.operations import aval_of, check_readable, check_text, name_stack

# Ops of StableHLO and CHLO whose JAX primitive has another name.
_PRIMITIVES: Final[Mapping[str, str]] = {
    "abs": "abs", "add": "add", "bitcast_convert": "bitcast_convert_type", "broadcast": "broadcast_in_dim",
    "clamp": "clamp", "compare": "eq", "concatenate": "concatenate", "convert": "convert_element_type",
    "convolution": "conv_general_dilated", "cosine": "cos", "count_leading_zeros": "clz", "divide": "div",
    "dot": "dot_general", "exponential": "exp", "exponential_minus_one": "expm1", "is_inf": "is_finite",
    "is_neg_inf": "is_finite", "is_pos_inf": "is_finite", "log_plus_one": "log1p", "maximum": "max",
    "minimum": "min", "multiply": "mul", "negate": "neg", "next_after": "nextafter",
    "popcnt": "population_count", "power": "pow", "remainder": "rem", "reverse": "rev", "rng": "random_bits",
    "rng_bit_generator": "random_bits", "round_nearest_afz": "round", "round_nearest_even": "round",
    "select": "select_n", "sine": "sin", "subtract": "sub", "torch_index_select": "gather",
}  # fmt: skip
_REDUCTIONS: Final = {
    "add": "reduce_sum", "and": "reduce_and", "maximum": "reduce_max", "minimum": "reduce_min",
    "multiply": "reduce_prod", "or": "reduce_or",
}  # fmt: skip
_WINDOWS: Final = {"add": "reduce_window_sum", "maximum": "reduce_window_max", "minimum": "reduce_window_min"}
_LISTS: Final = {
    "broadcast_in_dim": ("broadcast_dimensions", "broadcast_dimensions"),
    "reduce": ("dimensions", "axes"),
    "reverse": ("dimensions", "dimensions"),
    "transpose": ("permutation", "permutation"),
}
_COMPARISONS: Final = {"EQ": "eq", "GE": "ge", "GT": "gt", "LE": "le", "LT": "lt", "NE": "ne"}
# JAX's scope names for the bodies of loops and branches.
_REGION: Final = re.compile(r"^(while|scan|cond)(/(body|cond|branch_\d+_fun)|$)/?")


@dataclass(eq=False)
class Variable:
    """An input or output of an equation; compared by identity."""

    aval: SimpleNamespace


@dataclass(eq=False)
class Literal:
    """A constant."""

    aval: SimpleNamespace
    val: Any


def parsed(text: str | bytes) -> Any:
    """The parsed module of a text, or of MLIR's bytecode.

    Raises:
      ModelError: the text is not StableHLO.
    """
    if isinstance(text, str):
        check_text(text)
    from jaxlib.mlir import ir
    from jaxlib.mlir._mlir_libs import _jax_mlir_ext
    from jaxlib.mlir.dialects import chlo, sdy, stablehlo

    registry = ir.DialectRegistry()
    _jax_mlir_ext.register_dialects(registry)
    context = ir.Context()
    context.append_dialect_registry(registry)
    context.load_all_available_dialects()
    for dialect in (chlo, sdy, stablehlo):
        dialect.register_dialect(context)
    try:
        return ir.Module.parse(text, context)
    except ir.MLIRError as error:
        reason = str(error.error_diagnostics[0].message if error.error_diagnostics else error).splitlines()[0]
        raise ModelError(f"the StableHLO text cannot be read: {reason.rstrip('.')}.") from None


def functions_of(module: Any) -> dict[str, Any]:
    """The functions of a module by name.

    Raises:
      ModelError: there is no ``main``.
    """
    operations: Iterable[Any] = (op.operation for op in module.body.operations)
    functions = {op.attributes["sym_name"].value: op for op in operations if op.name == "func.func"}
    if "main" not in functions:
        raise ModelError("the StableHLO module has no function main.")
    return functions


def argument_names(functions: Mapping[str, Any]) -> list[str]:
    """Names of the arguments of main, as JAX writes them with ``debug_info``: ``params['w']``.

    ``jax.export`` writes them at the function that main calls.
    """
    main = functions["main"].regions[0].blocks[0].arguments
    return [_name(argument, functions) or f"arg{i}" for i, argument in enumerate(main)]


def _name(argument: Any, functions: Mapping[str, Any]) -> str:
    match = re.match(r'loc\("([^"]+)"\)$', str(argument.location))
    if match is not None:
        return match[1]
    for use in argument.uses:
        if use.owner.name == "func.call":
            callee = functions[use.owner.attributes["callee"].value]
            return _name(callee.regions[0].blocks[0].arguments[use.operand_number], {})
    return ""


class Reader:
    """Reads the blocks of a module's functions as jaxprs."""

    def __init__(self, functions: Mapping[str, Any]) -> None:
        self._functions = functions

    def function(self, name: str) -> SimpleNamespace:
        """The jaxpr of a function."""
        return self._block(self._functions[name].regions[0].blocks[0])[0]

    def _block(
        self, block: Any, captured: Sequence[Any] = (), within: str = ""
    ) -> tuple[SimpleNamespace, list[Any]]:
        """A block's jaxpr, and the values it captures from outside, beginning with ``captured``.

        The inputs of the jaxpr are the captured values, then the block's own arguments.
        """
        scope = _Scope(self, list(captured), within)
        own = [scope.define(argument) for argument in block.arguments]
        *body, end = list(block.operations)
        for op in body:
            scope.add(op.operation)
        outputs = [scope.atom(value) for value in end.operands]
        invars = [*(scope.variables[value] for value in scope.captured), *own]
        jaxpr = SimpleNamespace(constvars=[], invars=invars, eqns=scope.equations, outvars=outputs)
        jaxpr.jaxpr, jaxpr.consts = jaxpr, []
        return jaxpr, scope.captured

    def regions(self, op: Any) -> tuple[list[SimpleNamespace], list[Any]]:
        """The jaxprs of an op's regions, and the outside values that all of them capture."""
        captured, within = list[Any](), name_stack(op)
        for region in op.regions:
            captured = self._block(region.blocks[0], captured, within)[1]
        return [self._block(region.blocks[0], captured, within)[0] for region in op.regions], captured


class _Scope:
    """The equations of one block, and the variables of its values."""

    def __init__(self, reader: Reader, captured: list[Any], within: str) -> None:
        self._reader = reader
        self._within = within
        self.equations: list[SimpleNamespace] = []
        self.captured = captured
        self.variables: dict[Any, Variable] = {value: Variable(aval_of(value)) for value in captured}

    def define(self, value: Any) -> Variable:
        return self.variables.setdefault(value, Variable(aval_of(value)))

    def atom(self, value: Any) -> Variable | Literal:
        """The variable or literal of a value. Outside values are captured; constants are repeated."""
        if value in self.variables:
            return self.variables[value]
        constant = _constant(value)
        if constant is not None and (not constant.aval.shape or not isinstance(constant.val, int | float)):
            return constant
        if constant is not None:  # all elements are equal
            scalar = Literal(SimpleNamespace(shape=(), dtype=constant.aval.dtype), constant.val)
            self._equation("broadcast_in_dim", {}, [scalar], [value], "")
        else:
            self.captured.append(value)
        return self.define(value)

    def add(self, op: Any) -> None:
        if op.name == "stablehlo.constant":
            return
        # Inside a loop or branch, names begin with the name of its op.
        stack = name_stack(op).removeprefix(self._within).lstrip("/")
        stack = _REGION.sub("", stack)
        dialect, _, kind = op.name.partition(".")
        if kind in ("call", "composite"):
            callee = op.attributes["callee" if kind == "call" else "decomposition"].value
            jaxpr = self._reader.function(callee)
            self._equation("jit", {"jaxpr": jaxpr}, self._atoms(op.operands), op.results, stack)
        elif kind == "while":
            (condition, body), captured = self._reader.regions(op)
            outside = self._atoms(captured)
            params = {
                "cond_jaxpr": condition,
                "cond_nconsts": len(outside),
                "body_jaxpr": body,
                "body_nconsts": len(outside),
            }
            inputs = [*outside, *outside, *self._atoms(op.operands)]
            self._equation("while", params, inputs, op.results, stack)
        elif kind in ("case", "if"):
            branches, captured = self._reader.regions(op)
            branches = branches if kind == "case" else branches[::-1]  # `if` has its true branch first
            inputs = [*self._atoms(op.operands), *self._atoms(captured)]
            self._equation("cond", {"branches": branches}, inputs, op.results, stack)
        else:
            self._plain(kind if dialect in ("stablehlo", "chlo") else op.name, op, stack)

    def _plain(self, kind: str, op: Any, stack: str) -> None:
        if kind != "broadcast_in_dim":
            kind = kind.removeprefix("broadcast_")  # CHLO's ops that broadcast their operands
        name, operands = _PRIMITIVES.get(kind, kind), list(op.operands)
        check_readable(kind, op, stack)
        params = places(kind, op)
        if kind in _LISTS:
            attribute, parameter = _LISTS[kind]
            params[parameter] = tuple(int(axis) for axis in op.attributes[attribute])
        elif kind in ("einsum", "unary_einsum"):
            params["equation"] = op.attributes["einsum_config"].value
        elif kind == "fft":
            params["fft_lengths"] = tuple(op.attributes["fft_length"])
            params["fft_type"] = 2 if "RFFT" in str(op.attributes["fft_type"]) else 0
        elif kind == "select_and_scatter":
            params["window_dimensions"] = tuple(op.attributes["window_dimensions"])
        if kind == "dot_general":
            params["dimension_numbers"] = dot_dimensions(op)
        elif kind == "dot":
            params["dimension_numbers"] = (((len(aval_of(operands[0]).shape) - 1,), (0,)), ((), ()))
        elif kind == "convolution":
            params.update(convolution(op))
        elif kind == "compare":
            name = _COMPARISONS[re.findall(r"[A-Z]{2,}", str(op.attributes["comparison_direction"]))[0]]
        elif kind == "select":
            operands = [operands[0], operands[2], operands[1]]
        elif kind in ("reduce", "reduce_window"):
            operands = operands[: len(operands) // 2]
            name = _combined(op, _REDUCTIONS if kind == "reduce" else _WINDOWS)
            if kind == "reduce_window":
                params.update(windows(op, len(aval_of(operands[0]).shape), "base_dilation"))
                name = cumulative(name, params, aval_of(operands[0]).shape)
            if name in ("argmax", "reduce_window"):
                operands = operands[:1]
        elif kind == "custom_call":
            name = "sharding_constraint"
        self._equation(name, params, self._atoms(operands), op.results, stack)

    def _atoms(self, values: Any) -> list[Variable | Literal]:
        return [self.atom(value) for value in values]

    def _equation(
        self, name: str, params: Mapping[str, Any], inputs: Sequence[Any], results: Any, stack: str
    ) -> None:
        equation = SimpleNamespace(
            primitive=SimpleNamespace(name=name),
            params=params,
            invars=inputs,
            outvars=[self.define(value) for value in results],
            source_info=SimpleNamespace(name_stack=stack),
        )
        self.equations.append(equation)


def _constant(value: Any) -> Literal | None:
    """The literal of a constant, with its number if all elements are equal; None for other values."""
    from jaxlib.mlir import ir

    owner = value.owner
    if isinstance(owner, ir.Block) or owner.name != "stablehlo.constant":
        return None
    aval, attribute = aval_of(value), owner.attributes["value"]
    if isinstance(attribute, ir.DenseElementsAttr) and attribute.is_splat:
        splat = attribute.get_splat_value()
        number = getattr(splat, "value", 0.0)  # complex numbers have no `value`
        return Literal(aval, number)
    return Literal(aval, aval)


def _combined(op: Any, names: Mapping[str, str]) -> str:
    """The primitive for a reduction's region; ``argmax`` or ``reduce_window`` if none matches."""
    return names.get(combiner(op), "argmax" if op.name == "stablehlo.reduce" else "reduce_window")
