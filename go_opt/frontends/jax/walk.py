"""Walks a jaxpr and records the cost of each equation.

Reads only the fields of a jaxpr, so that this module loads without JAX.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

import numpy as np

from go_opt.errors import InvalidInputError, ModelError
from go_opt.frontends.jax.control import CONTROL_FLOW
from go_opt.frontends.jax.primitives import (
    CALLS,
    COMBINERS,
    VIEWS,
    normal_name,
    onnx_type,
    primitive_cost,
)
from go_opt.frontends.jax.rules import rule_attributes
from go_opt.frontends.recording.binding import Trips
from go_opt.frontends.recording.recorder import Recorder, Result, Value, joined
from go_opt.model.dtypes import DTYPE_BITS, DTYPES, IS_FLOATING, costs_the_same, dtype_code
from go_opt.model.graph import Precision
from go_opt.model.op_costs import is_elementwise

# The equation does not determine the cost: it has its own kernel or program, or state.
_REFUSED: Final = frozenset({
    "addupdate", "array_ref", "custom_call", "ffi_call", "freeze", "get", "infeed", "io_callback",
    "new_ref", "outfeed", "pallas_call", "pure_callback", "ref", "run_state", "shard_map", "swap",
    "xla_pmap",
})  # fmt: skip
# Of a function that each of several devices runs on its part.
_COLLECTIVES: Final = re.compile(
    r"(unreduced_)?(all_gather|all_to_all|axis_index|pbroadcast|pmax|pmin|ppermute|psum|reduce_scatter"
    r"|ragged_all_to_all|precv|psend)(_\w+)?"
)
# Without results, and dropped.
_SILENT: Final = frozenset({"debug_callback", "debug_print", "dce_sink"})

_TRANSFORM: Final = re.compile(r"\b(?:jvp|transpose|vmap)\(([^()]*)\)")
_TRANSFORM_SCOPES: Final = frozenset({"checkpoint", "rematted_computation"})

# Arithmetic on scalars known at import time, so that loop counters stay known.
_SCALARS: Final[Mapping[str, Callable[..., Any]]] = {
    "add": operator.add,
    "convert_element_type": operator.pos,
    "eq": operator.eq,
    "ge": operator.ge,
    "gt": operator.gt,
    "le": operator.le,
    "lt": operator.lt,
    "mul": operator.mul,
    "ne": operator.ne,
    "select_n": lambda which, *cases: cases[int(which)],
    "sub": operator.sub,
}


class Walker:
    """Turns equations into recorded ops; constants are folded, views and calls add no op."""

    def __init__(
        self,
        recorder: Recorder,
        *,
        max_scan_length: int,
        precision: Precision,
        constant_names: Mapping[int, str],
        trips: Trips,
    ) -> None:
        self.recorder = recorder
        self.trips = trips
        self.loops = set[str]()  # scopes, which the steps follow
        self._constant_names = constant_names  # by id; arrays that the function closes over
        self.max_scan_length = max_scan_length
        self._precision = precision

    def run(self, jaxpr: Any, arguments: Sequence[Value], scope: str) -> list[Value]:
        """Walk a jaxpr, closed or open, and return the values of its outputs."""
        consts = [self._constant(const) for const in getattr(jaxpr, "consts", ())]
        jaxpr = getattr(jaxpr, "jaxpr", jaxpr)
        env = dict(zip([*jaxpr.constvars, *jaxpr.invars], [*consts, *arguments], strict=True))
        for equation in jaxpr.eqns:
            inputs = [self._atom(env, atom) for atom in equation.invars]
            env.update(zip(equation.outvars, self._equation(equation, inputs, scope), strict=True))
        return [self._atom(env, atom) for atom in jaxpr.outvars]

    def _constant(self, const: Any) -> Value:
        result = tuple(np.shape(const)), dtype_name(const.dtype, "a constant")
        name = self._constant_names.get(id(const), "const")
        return self.recorder.folded(name, ("const", id(const)), [result])[0]

    def _atom(self, env: Mapping[Any, Value], atom: Any) -> Value:
        if not hasattr(atom, "val"):
            return env[atom]
        if atom.aval.shape:
            return self._constant(atom.val)
        return Value(
            (), dtype_name(atom.aval.dtype, "a literal"), "literal", None, scalar=_python_scalar(atom.val)
        )

    def _equation(self, equation: Any, inputs: list[Value], scope: str) -> list[Value]:
        name, params = normal_name(equation.primitive.name), equation.params
        scope = joined(scope, clean_stack(str(equation.source_info.name_stack)))
        if name in CALLS:
            return self.run(params[CALLS[name]], inputs, scope)
        if name == "custom_linear_solve":
            return self.run(params["jaxprs"].solve, _solve_arguments(params["const_lengths"], inputs), scope)
        if name in _SILENT and not equation.outvars:
            return []
        if name not in CONTROL_FLOW:
            _check_importable(name, equation, scope)
        results = results_of(equation.outvars, f"op {joined(scope, name)!r}")
        if name in CONTROL_FLOW:
            return CONTROL_FLOW[name](self, params, inputs, results, scope)
        if self._is_view(name, inputs, results):
            how = f"{name} {params}"
            return [
                value.viewed(result, how, _places(name, params, value, result[0]))
                for value, result in zip(inputs, results, strict=False)
            ]
        if all(value.is_constant for value in inputs):
            return self._fold(name, params, inputs, results, scope)
        return self._op(name, params, inputs, results, scope)

    def _is_view(self, name: str, inputs: Sequence[Value], results: Sequence[Result]) -> bool:
        if name in VIEWS and inputs:
            return True
        if name not in ("convert_element_type", "bitcast_convert_type"):
            return False
        source, target = inputs[0].dtype, results[0][1]
        if name == "bitcast_convert_type":
            return bool(DTYPE_BITS[dtype_code(source)] == DTYPE_BITS[dtype_code(target)])
        return costs_the_same(source, target, self._precision)

    def _fold(
        self, name: str, params: Any, inputs: Sequence[Value], results: Sequence[Result], scope: str
    ) -> list[Value]:
        """Fold an equation that depends on no input; a compiler computes it once, as a literal or weight."""
        if name == "transpose":
            order = params["permutation"]
            places = [order.index(axis) for axis in range(len(order))]
            return [inputs[0].viewed(results[0], f"{name} {params}", places)]
        is_scalar = all(shape == () for shape, _ in results)
        if inputs and all(value.tensor is None for value in inputs):
            if is_scalar or is_elementwise(onnx_type(name)):
                scalar = _folded_scalar(name, inputs)
                return [Value(shape, dtype, "literal", None, scalar=scalar) for shape, dtype in results]
            if any(value.scalar is None for value in inputs):
                return self.recorder.folded(joined(scope, name), None, results)
        operands = tuple((value.tensor, value.view, str(value.scalar)) for value in inputs)
        return self.recorder.folded(joined(scope, name), (name, str(params), operands), results)

    def _op(
        self, name: str, params: Any, inputs: Sequence[Value], results: Sequence[Result], scope: str
    ) -> list[Value]:
        shapes = [value.shape for value in inputs]
        written = [shape for shape, _ in results]
        cost = primitive_cost(name, params, shapes, written)
        values = self.recorder.op(
            joined(scope, name),
            onnx_type(name),
            cost,
            _computed_dtype(cost.op_class, inputs, results),
            self.recorder.reads(inputs, cost.touched),
            results,
        )
        known = rule_attributes(name, params, inputs)
        if known is not None:
            self.recorder.set_rule(known[0], known[1], inputs, written)
        return values


def _places(name: str, params: Mapping[str, Any], value: Value, seen: Sequence[int]) -> Sequence[int] | None:
    """The axes that those of a value become in a broadcast; None for other views."""
    if name != "broadcast_in_dim":
        return None
    last = range(len(seen) - len(value.shape), len(seen))
    return tuple(params.get("broadcast_dimensions", last))


def clean_stack(stack: str) -> str:
    """The name stack without the marks of transforms: ``transpose(jvp(mlp))`` is ``mlp``."""
    before = None
    while stack != before:
        before, stack = stack, _TRANSFORM.sub(r"\1", stack)
    parts = (part for part in stack.split("/") if part and part not in _TRANSFORM_SCOPES)
    # Einsum adds its equation to the stack; the arrow would look like an edge in messages.
    return "/".join(part for part in parts if "->" not in part)


def dtype_name(dtype: Any, where: str) -> str:
    """The name of a JAX type; random keys count as uint32, null tangents as bool."""
    name = str(dtype)
    if name.startswith("key<"):
        return "uint32"
    if name.startswith("[('float0'"):
        return "bool"
    try:
        return DTYPES[dtype_code(name, field=where)]
    except InvalidInputError as error:
        raise ModelError(str(error)) from None


def results_of(variables: Iterable[Any], where: str) -> list[Result]:
    """Shape and type of each variable."""
    return [(tuple(variable.aval.shape), dtype_name(variable.aval.dtype, where)) for variable in variables]


def _solve_arguments(const_lengths: Any, inputs: Sequence[Value]) -> list[Value]:
    """The constants of the solve itself (the other programs are derivatives), then the right-hand sides."""
    start = const_lengths.matvec + const_lengths.vecmat
    return [*inputs[start : start + const_lengths.solve], *inputs[sum(const_lengths) :]]


def _python_scalar(value: Any) -> Any:
    array = np.asarray(value)
    return array.item() if array.dtype.kind in "biuf" else None


def _folded_scalar(name: str, inputs: Sequence[Value]) -> Any:
    scalars = [value.scalar for value in inputs]
    if name not in _SCALARS or any(scalar is None for scalar in scalars):
        return None
    return _SCALARS[name](*scalars)


def _check_importable(name: str, equation: Any, scope: str) -> None:
    holds_program = name not in COMBINERS and any(
        hasattr(part, "eqns") or hasattr(part, "jaxpr") or hasattr(part, "mlir_module_serialized")
        for value in equation.params.values()
        for part in (value if isinstance(value, tuple) else (value,))
    )
    has_shapes = all(hasattr(variable.aval, "shape") for variable in equation.outvars)
    is_refused = name in _REFUSED or _COLLECTIVES.fullmatch(name) is not None or holds_program
    if is_refused or not has_shapes or not equation.outvars:
        raise ModelError(f"op {joined(scope, name)!r}: the primitive {name!r} has no cost.")


def _computed_dtype(op_class: str, inputs: Sequence[Value], results: Sequence[Result]) -> str:
    """The type computed in: the first operand's for products and non-floating results, else the result's."""
    result = results[0][1]
    is_result_wider = op_class == "matrix" or not IS_FLOATING[dtype_code(result)]
    return inputs[0].dtype if inputs and is_result_wider else result
