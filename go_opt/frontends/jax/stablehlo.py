"""Reads StableHLO as jaxprs: each op becomes a JAX primitive of the same cost."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, Final

import numpy as np

from go_opt.errors import ModelError

_MOST_NESTED: Final = 256
MAX_TEXT_BYTES: Final = 256 * 2**20  # constants are digits in it
_MOST_STRINGS: Final = 2**22  # each takes half a microsecond
# Comments and strings; an open one ends with its line, where the parser stops.
_OPAQUE: Final = re.compile(rb'//[^\n]*|"[^"\\\n]*+(?:\\.[^"\\\n]*+)*+"?')
_OPENING, _CLOSING = b"([{<", b">}])"
_NO_BRACKETS: Final = bytes(set(range(256)) - set(_OPENING + _CLOSING))
_CHUNK: Final = 2**20  # brackets
# Of a location: a file, a name, a place or a call in it, brackets. A name stands before where it comes from.
_LOCATION: Final = re.compile(r'"[^"]*":|"([^"]*)"|(loc\(|callsite\()|([(\[])|([)\]])')
# Custom calls that change only where data lies; those of shards do so where the shapes stay.
_MARKS: Final = ("Sharding", "SPMDFullToShardShape", "SPMDShardToFullShape", "annotate_device_placement")
# Their regions only say how elements combine or compare.
_COMBINERS: Final = ("map", "reduce", "reduce_window", "scatter", "select_and_scatter", "sort")
# Of a program that each of several devices runs on its part.
_COLLECTIVES: Final = (
    "all_gather", "all_reduce", "all_to_all", "async_start", "collective_broadcast", "collective_permute",
    "cross-replica-sum", "partition_id", "recv", "reduce_scatter", "replica_id", "send",
)  # fmt: skip


def check_text(text: str) -> None:
    """Refuse text that is too long for the parser, or nested deeper than its stack allows.

    Raises:
      ModelError: more than 256 MiB or 4,194,304 strings, or brackets or signs nested more than 256 deep.
    """
    data = text.encode("utf-8", "replace")
    if len(data) > MAX_TEXT_BYTES:
        raise _unreadable(f"is larger than {MAX_TEXT_BYTES // 2**20} MiB")
    if data.count(b'"') // 2 + data.count(b"//") > _MOST_STRINGS:
        raise _unreadable(f"has more than {_MOST_STRINGS} strings and comments")
    bare = _OPAQUE.sub(b"", data).translate(None, b" \t\r\n\v\f")
    if b"-" * _MOST_NESTED in bare or _depth(bare) > _MOST_NESTED:
        raise _unreadable(f"is nested more than {_MOST_NESTED} deep")


def _depth(bare: bytes) -> int:
    """How deep brackets are nested in text without spaces, strings and comments."""
    brackets = bare.replace(b"->", b"").replace(b">=", b"").translate(None, _NO_BRACKETS)
    step = np.zeros(256, np.int64)
    step[list(_OPENING)], step[list(_CLOSING)] = 1, -1
    depth = deepest = 0
    for begin in range(0, len(brackets), _CHUNK):
        chunk = np.frombuffer(brackets[begin : begin + _CHUNK], np.uint8)
        depths = depth + np.cumsum(step[chunk])
        depths -= np.minimum(np.minimum.accumulate(depths), 0)  # what closes nothing does not count
        depth, deepest = int(depths[-1]), max(deepest, int(depths.max()))
    return deepest


def _unreadable(what: str) -> ModelError:
    return ModelError(f"the StableHLO text cannot be read: it {what}.")


def check_readable(kind: str, op: Any, stack: str) -> None:
    """Refuse an op that holds a program which is not read, or that works on a part of what the model does."""
    is_call = kind == "custom_call"
    target = op.attributes["call_target_name"].value if is_call else kind
    name = f"{stack}/{target}".lstrip("/")
    shapes = [aval_of(value).shape for value in (*op.operands, *op.results)] if target in _MARKS else []
    if kind in _COLLECTIVES or len(set(shapes)) > 1:
        raise ModelError(
            f"op {name!r}: the program is one device's part of a program for several, so its costs are not "
            "those of the model; lower the function without shard_map or pmap."
        )
    if is_call and target not in _MARKS:
        raise ModelError(f"op {name!r}: the custom call {target!r} has no cost.")
    attributes = [op.attributes[i].attr for i in range(len(op.attributes))]
    calls = any(type(value).__name__ == "FlatSymbolRefAttr" for value in attributes)
    if calls or (len(op.regions) > 0 and kind not in _COMBINERS):
        raise ModelError(f"op {name!r}: {op.name!r} holds a program that is not read.")


def name_stack(op: Any) -> str:
    """The scopes of an op from ``debug_info``, without calls: ``mlp`` for ``jit(f)/mlp/add``."""
    scopes, is_hidden = list[str](), list[bool]()
    for name, place, opened, closed in _LOCATION.findall(str(op.location)):
        if closed:
            is_hidden.pop()
            continue
        if name and not any(is_hidden):
            scopes[:0] = name.split("/")[:-1]  # the callers of an op that was inlined follow it
        if place or opened:
            is_hidden.append(not place)
    return "/".join(part for part in scopes if not part.startswith(("jit(", "pjit(")))


def aval_of(value: Any) -> SimpleNamespace:
    """Shape and type of a value, which must be a tensor of known shape."""
    text = str(value.type)
    match = re.fullmatch(r"tensor<((?:[0-9]+x)*)([a-z][^,>]*>?)(?:, .*)?>", text)
    if match is None:
        raise ModelError(f"a value has the type {text[:80]}, which has no size that is known.")
    shape = tuple(int(size) for size in match[1].split("x")[:-1])
    return SimpleNamespace(shape=shape, dtype=_dtype(match[2]))


def _dtype(element: str) -> str:
    if element == "i1":
        return "bool"
    if element.startswith("complex"):
        return "complex128" if "f64" in element else "complex64"
    if element.startswith("ui"):
        return f"uint{element[2:]}"
    if element.startswith("f8"):
        return "float8_e5m2" if "E5M2" in element else "float8_e4m3"
    return {"i4": "int4"}.get(element, element)


def dot_dimensions(op: Any) -> tuple[Any, Any]:
    """Contracted and batch dimensions of both operands."""
    from jaxlib.mlir.dialects import stablehlo

    found = stablehlo.DotDimensionNumbers(op.attributes["dot_dimension_numbers"])
    return (
        (tuple(found.lhs_contracting_dimensions), tuple(found.rhs_contracting_dimensions)),
        (tuple(found.lhs_batching_dimensions), tuple(found.rhs_batching_dimensions)),
    )


def convolution(op: Any) -> dict[str, Any]:
    """The positions of batch, channel and spatial dimensions, and the windows."""
    from jaxlib.mlir.dialects import stablehlo

    found = stablehlo.ConvDimensionNumbers(op.attributes["dimension_numbers"])
    numbers = SimpleNamespace(
        lhs_spec=(
            found.input_batch_dimension,
            found.input_feature_dimension,
            *found.input_spatial_dimensions,
        ),
        rhs_spec=(
            found.kernel_output_feature_dimension,
            found.kernel_input_feature_dimension,
            *found.kernel_spatial_dimensions,
        ),
        out_spec=(
            found.output_batch_dimension,
            found.output_feature_dimension,
            *found.output_spatial_dimensions,
        ),
    )
    moved = windows(op, len(found.input_spatial_dimensions), "lhs_dilation")
    batches = op.attributes["batch_group_count"].value
    return {
        "dimension_numbers": numbers,
        "rhs_dilation": moved["window_dilation"],
        "batch_group_count": batches,
        **moved,
    }


def combiner(op: Any) -> str:
    """The op that a region is; empty if it is none or several."""
    *body, _ = list(op.regions[0].blocks[0].operations)
    kinds = [inner.operation.name.partition(".")[2] for inner in body]
    return kinds[0] if len(op.results) == len(kinds) == 1 else ""


def places(kind: str, op: Any) -> dict[str, Any]:
    """Along which axes an op moves, selects or joins elements."""
    if kind in _AXES:
        parameter, attribute = _AXES[kind]
        return {parameter: op.attributes[attribute].value if attribute in op.attributes else -1}
    if kind == "slice":
        return {
            "start_indices": tuple(op.attributes["start_indices"]),
            "strides": tuple(op.attributes["strides"]),
        }
    if kind == "pad":
        sizes = (
            op.attributes[name] for name in ("edge_padding_low", "edge_padding_high", "interior_padding")
        )
        return {"padding_config": tuple(zip(*sizes, strict=True))}
    if kind == "scatter":
        return {"dimension_numbers": _scatter(op), "reduction": combiner(op)}
    if kind == "gather":
        from jaxlib.mlir.dialects import stablehlo

        return {"dimension_numbers": stablehlo.GatherDimensionNumbers(op.attributes["dimension_numbers"])}
    return {"dimension_numbers": _selection(op)} if kind == "torch_index_select" else {}


def _scatter(op: Any) -> Any:
    from jaxlib.mlir.dialects import stablehlo

    found = stablehlo.ScatterDimensionNumbers(op.attributes["scatter_dimension_numbers"])
    return SimpleNamespace(
        update_window_dims=found.update_window_dims,
        inserted_window_dims=found.inserted_window_dims,
        operand_batching_dims=found.input_batching_dims,
        scatter_indices_batching_dims=found.scatter_indices_batching_dims,
        index_vector_dim=found.index_vector_dim,
    )


def _selection(op: Any) -> Any:
    """Of torch_index_select: slices of one element along an axis."""
    axis, batch = op.attributes["dim"].value, op.attributes["batch_dims"].value
    ranks = [len(value.type.shape) for value in (*op.operands, *op.results)]
    behind = axis + ranks[1] - batch
    return SimpleNamespace(
        offset_dims=(*range(batch, axis), *range(behind, ranks[2])),
        collapsed_slice_dims=(axis,),
        operand_batching_dims=tuple(range(batch)),
        start_indices_batching_dims=tuple(range(batch)),
        index_vector_dim=ranks[1],
    )


_AXES: Final = {
    "batch_norm_inference": ("feature_index", "feature_index"),
    "concatenate": ("dimension", "dimension"),
    "sort": ("dimension", "dimension"),
    "top_k": ("axis", ""),
}


def cumulative(name: str, params: Mapping[str, Any], shape: tuple[int, ...]) -> str:
    """The primitive of a reduction by windows: ``cumsum`` where each takes all elements up to its own."""
    whole = [
        axis for axis, size in enumerate(shape) if params["window_dimensions"][axis] == size > 1
        and sorted(params["padding"][axis]) == [0, size - 1]
    ]  # fmt: skip
    is_one = len(whole) == 1 and math.prod(params["window_dimensions"]) == shape[whole[0]]
    return name.replace("reduce_window_", "cum") if is_one else name


def windows(op: Any, axes: int, spread: str) -> dict[str, Any]:
    """The windows of a convolution or reduction along its axes; missing sizes are 1, missing padding 0.

    Args:
      spread: JAX's parameter for the dilation of the operand.
    """

    def sizes(*names: str) -> tuple[int, ...]:
        given = [name for name in names if name in op.attributes]
        return tuple(op.attributes[given[0]]) if given else (1,) * axes

    padding = np.zeros((axes, 2), np.int64)
    if "padding" in op.attributes:
        padding = np.array(op.attributes["padding"]).reshape(axes, 2)
    return {
        "window_dimensions": sizes("window_dimensions"),
        "window_strides": sizes("window_strides"),
        "window_dilation": sizes("window_dilations", "rhs_dilation"),
        spread: sizes("base_dilations", "lhs_dilation"),
        "padding": padding.tolist(),
    }


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
            # Of a region that matches none, elements are joined in some other way.
            names, other = (_REDUCTIONS, "argmax") if kind == "reduce" else (_WINDOWS, "reduce_window")
            name = names.get(combiner(op), other)
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
