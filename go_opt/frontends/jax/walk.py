"""Walks a jaxpr and records the cost of each equation.

Loops are unrolled, a branch costs as much as its most expensive arm. Reads only the fields of a jaxpr, so
that this module loads without JAX.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, Final

import numpy as np

from go_opt.errors import InvalidInputError, ModelError
from go_opt.frontends.jax.primitives import (
    CALLS,
    COMBINERS,
    VIEWS,
    normal_name,
    onnx_type,
    primitive_cost,
    rule_attributes,
)
from go_opt.frontends.recording.binding import Trips
from go_opt.frontends.recording.recorder import Recorder, Result, Value, joined
from go_opt.frontends.recording.states import FoundStates
from go_opt.model.bindings import Bindings
from go_opt.model.dtypes import DTYPE_BITS, DTYPES, IS_FLOATING, costs_the_same, dtype_code
from go_opt.model.graph import Graph, Precision
from go_opt.model.op_costs import OpCost, is_elementwise

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


@dataclass
class Walker:
    """Turns equations into recorded ops; constants are folded, views and calls add no op."""

    recorder: Recorder
    trips: Trips
    max_scan_length: int
    _precision: Precision
    _constant_names: Mapping[int, str]  # by id; arrays that the function closes over
    loops: set[str] = field(default_factory=set)  # scopes, which the steps follow

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
        array, dtype = np.asarray(atom.val), dtype_name(atom.aval.dtype, "a literal")
        number = array.item() if array.dtype.kind in "biuf" else None
        return Value((), dtype, "literal", None, scalar=number)

    def _equation(self, equation: Any, inputs: list[Value], scope: str) -> list[Value]:
        name, params = normal_name(equation.primitive.name), equation.params
        scope = joined(scope, clean_stack(str(equation.source_info.name_stack)))
        if name in CALLS:
            return self.run(params[CALLS[name]], inputs, scope)
        if name == "custom_linear_solve":
            # The constants of the solve itself (other programs are derivatives), then right-hand sides.
            lengths = params["const_lengths"]
            start = lengths.matvec + lengths.vecmat
            given = [*inputs[start : start + lengths.solve], *inputs[sum(lengths) :]]
            return self.run(params["jaxprs"].solve, given, scope)
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
                scalars = [value.scalar for value in inputs]
                is_known = name in _SCALARS and None not in scalars
                scalar = _SCALARS[name](*scalars) if is_known else None
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
        known = rule_attributes(name, params, inputs)
        return self.recorder.kernel(
            joined(scope, name),
            onnx_type(name),
            cost,
            _computed_dtype(cost.op_class, inputs, results),
            inputs,
            results,
            known and (*known, inputs, written),
        )


def _places(name: str, params: Mapping[str, Any], value: Value, seen: Sequence[int]) -> Sequence[int] | None:
    """The axes that those of a value become in a broadcast; None for other views."""
    if name != "broadcast_in_dim":
        return None
    last = range(len(seen) - len(value.shape), len(seen))
    return tuple(params.get("broadcast_dimensions", last))


def graph_of(
    jaxpr: Any,
    recorder: Recorder,
    arguments: Sequence[Value],
    results: Iterable[str],
    found: FoundStates,
    *,
    name: str,
    bindings: Bindings,
    precision: Precision,
    max_scan_length: int,
    constant_names: Mapping[int, str] = MappingProxyType({}),
) -> Graph:
    """The graph of a jaxpr whose arguments are recorded.

    Args:
      results: names of its outputs.
      constant_names: by id, of arrays that the function closes over.
    """
    trips = Trips(bindings.trips)
    walker = Walker(recorder, trips, max_scan_length, precision, constant_names)
    outputs = walker.run(jaxpr, arguments, "")
    trips.check()
    return recorder.build(name, dict(zip(results, outputs, strict=True)), found, precision, bindings)


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


_Handler = Callable[["Walker", Mapping[str, Any], list[Value], list[Result], str], list[Value]]

_COMPARISONS: Final[Mapping[str, Callable[[Any, Any], bool]]] = {
    "ge": operator.ge,
    "gt": operator.gt,
    "le": operator.le,
    "lt": operator.lt,
    "ne": operator.ne,
}


def _scan(
    walker: Walker, params: Mapping[str, Any], inputs: list[Value], results: list[Result], scope: str
) -> list[Value]:
    """Unroll a scan: step t reads slice t of each scanned input; a Concat stacks each output."""
    loop, length = _loop_scope(walker, "scan", params["length"], scope)
    consts, carry, scanned = _scan_groups(params, inputs)
    num_carry = len(carry)
    elements = [(value.shape[1:], value.dtype) for value in scanned]
    rows: dict[int, list[Value]] = {}
    for step in reversed(range(length)) if params["reverse"] else range(length):
        here = f"{loop}/{step}"
        parts = [
            _slice(walker, value, step, result, here) for value, result in zip(scanned, elements, strict=True)
        ]
        outputs = walker.run(params["jaxpr"], [*consts, *carry, *parts], here)
        carry, rows[step] = outputs[:num_carry], outputs[num_carry:]
    stacked = [
        _stack(walker, [rows[step][i] for step in range(length)], result, loop)
        for i, result in enumerate(results[num_carry:])
    ]
    return [*carry, *stacked]


def _scan_groups(params: Mapping[str, Any], inputs: list[Value]) -> tuple[list[Value], ...]:
    """The constants, the first carry and the scanned values among the inputs."""
    # JAX 0.12 describes the groups by a tree, earlier releases by their lengths.
    if "ft_in" in params:
        return tuple(list(group) for group in params["ft_in"].update(inputs).unpack())
    carry_start = params["num_consts"]
    carry_end = carry_start + params["num_carry"]
    return inputs[:carry_start], inputs[carry_start:carry_end], inputs[carry_end:]


def _slice(walker: Walker, value: Value, step: int, result: Result, scope: str) -> Value:
    """Step ``step`` of a scanned value: a literal, part of an input, a separate weight, or a Slice op."""
    shape, dtype = result
    part = replace(value, shape=shape, dtype=dtype, steps=value.steps and value.steps[1:])
    if value.kind == "literal":
        return part
    if value.kind == "weight":
        # A separate weight: a chip that runs some of the steps then stores only their slices.
        return walker.recorder.folded(
            f"{value.tensor}[{step}]", ("step", value.tensor, value.view, step), [result]
        )[0]
    if value.kind == "input":
        return replace(part, touched=part.elements)
    cost = OpCost("data_movement", 0.0, (part.elements,))
    ruled = "Slice", {"axes": [0], "starts": [step]}, [value], [(1, *shape)]
    return walker.recorder.kernel(f"{scope}/slice", "Slice", cost, dtype, [value], [result], ruled)[0]


def _stack(walker: Walker, rows: Sequence[Value], result: Result, scope: str) -> Value:
    """The outputs of all steps as one tensor."""
    shape, dtype = result
    if all(row.kind == "literal" for row in rows):
        return Value(shape, dtype, "literal", None)
    if len(rows) == 1:
        return rows[0].viewed(result, "stack")
    if all(row.is_constant for row in rows):
        return walker.recorder.folded(f"{scope}/stack", None, [result])[0]
    cost, ruled = OpCost("data_movement", 0.0, ()), ("Concat", {"axis": 0}, rows, [shape])
    return walker.recorder.kernel(f"{scope}/stack", "Concat", cost, dtype, rows, [result], ruled)[0]


def _while(
    walker: Walker, params: Mapping[str, Any], inputs: list[Value], results: list[Result], scope: str
) -> list[Value]:
    """Unroll a while loop: as often as its counter says, or the caller where no counter is known."""
    num_condition, num_body = params["cond_nconsts"], params["body_nconsts"]
    consts, carry = inputs[num_condition:][:num_body], inputs[num_condition + num_body :]
    length = _trip_count(params, [*inputs[:num_condition], *carry], walker.max_scan_length)
    loop, length = _loop_scope(walker, "while", length, scope)
    for step in range(length):
        carry = walker.run(params["body_jaxpr"], [*consts, *carry], f"{loop}/{step}")
    return carry


def _trip_count(params: Mapping[str, Any], inputs: Sequence[Value], limit: int) -> int | None:
    """Iterations of ``while counter < bound: counter += step``, at most ``limit + 1``; None if unknown."""
    condition, body = params["cond_jaxpr"].jaxpr, params["body_jaxpr"].jaxpr
    known = {variable: value.scalar for variable, value in zip(condition.invars, inputs, strict=True)}
    if [equation.primitive.name in _COMPARISONS for equation in condition.eqns] != [True]:
        return None
    compare = condition.eqns[0]
    counter_variable, bound_atom = compare.invars
    carried = condition.invars[params["cond_nconsts"] :]
    if counter_variable not in carried or compare.outvars != condition.outvars:
        return None
    position = carried.index(counter_variable)
    states = body.invars[params["body_nconsts"] :]
    if bound_atom in carried:
        place = carried.index(bound_atom)
        if body.outvars[place] is not states[place]:  # it changes
            return None
    bound = bound_atom.val if hasattr(bound_atom, "val") else known[bound_atom]
    counter, step = known[counter_variable], _counter_step(params, body, position)
    if counter is None or bound is None or step is None:
        return None
    length, goes_on = 0, _COMPARISONS[compare.primitive.name]
    while length <= limit and goes_on(counter, bound):
        counter, length = counter + step, length + 1
    return length


def _counter_step(params: Mapping[str, Any], body: Any, position: int) -> Any:
    """The literal that the body adds to a carried counter; None if it does anything else."""
    before, after = body.invars[params["body_nconsts"] + position], body.outvars[position]
    for equation in body.eqns:
        if equation.outvars == [after] and equation.primitive.name in ("add", "sub"):
            first, second = equation.invars
            if first is before and hasattr(second, "val"):
                return second.val if equation.primitive.name == "add" else -second.val
    return None


def _cond(
    walker: Walker, params: Mapping[str, Any], inputs: list[Value], results: list[Result], scope: str
) -> list[Value]:
    """The taken branch if it is known, else one op: cost of the most expensive branch, reads of all."""
    predicate, operands = inputs[0], inputs[1:]
    branches = params["branches"]
    if predicate.scalar is not None:
        taken = min(max(int(predicate.scalar), 0), len(branches) - 1)
        return walker.run(branches[taken], operands, scope)
    name = joined(scope, "cond")
    bodies, reads = [], [] if predicate.tensor is None else [(predicate.tensor, predicate.touched)]
    for branch in branches:
        start = len(walker.recorder.ops)
        outputs = walker.run(branch, operands, name)
        returned = [(value.tensor, value.touched) for value in outputs if value.tensor is not None]
        bodies.append(walker.recorder.body(start, returned))
        reads += bodies[-1].reads
    dearest = max(bodies, key=lambda body: body.cost.flops)
    unknown = tuple(row for body in bodies for row in body.unknown)
    dtype = dearest.dtype or results[0][1]
    return walker.recorder.op(name, "If", dearest.cost, dtype, reads, results, unknown)


def _loop_scope(walker: Walker, kind: str, length: int | None, scope: str) -> tuple[str, int]:
    """The scope of a loop, and its steps; the caller gives those that the program does not say."""
    loop = walker.recorder.unique(joined(scope, kind))
    if length is None:
        # The steps of the loops around it are no part of its name.
        parts = loop.split("/")
        outside = [part for i, part in enumerate(parts) if "/".join(parts[:i]) not in walker.loops]
        length = walker.trips.of("/".join(outside), kind)
    if length > walker.max_scan_length:
        # A while loop is counted only up to the limit, so it may be longer.
        at_least = "" if kind == "scan" else "at least "
        raise ModelError(
            f"op {joined(scope, kind)!r}: a loop of {at_least}{length} steps is longer than "
            f"max_scan_length={walker.max_scan_length}."
        )
    walker.loops.add(loop)
    return loop, length


CONTROL_FLOW: Final[Mapping[str, _Handler]] = {"cond": _cond, "scan": _scan, "while": _while}
