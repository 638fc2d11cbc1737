"""Executes parts of one op as its sharding rule says, and compares them with the whole op.

A part reads of each operand the elements that its loops reach, and is the same op on these. What besides
changes for a part, such as the number of groups or a table's first row, is told once for each op type.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache, partial, reduce
from itertools import pairwise
from typing import Any, Final, NamedTuple

import numpy as np
import onnx
import onnxruntime
from numpy.typing import NDArray
from onnx import helper
from onnx.reference import ReferenceEvaluator

from go_opt.frontends.onnx.inference.values import make_value
from go_opt.frontends.onnx.program import rule_attributes
from go_opt.model.op_costs import OpSignature
from go_opt.model.rule import NO_FACTOR, Access, Affine, Rule, fault_of
from go_opt.model.rules.table import rule_of
from go_opt.model.rules.views import rule_of_views

Array = NDArray[Any]
Operands = Sequence[Any]  # arrays; None for an absent one
Attributes = Mapping[str, Any]
Run = Callable[[Operands, Attributes], list[Array]]
LATEST: Final = onnx.defs.onnx_opset_version()


class Node(NamedTuple):
    """An op with its operands and how it is evaluated."""

    op_type: str
    operands: tuple[Any, ...]  # arrays; None for an absent one
    attributes: dict[str, Any]
    run: Run
    opset: int = LATEST
    constants: tuple[int, ...] = ()  # operands that are constants of the model
    stored: Mapping[int, tuple[int, ...]] = {}  # shapes of operands that are stored in another one
    is_random: bool = False  # only shapes are compared
    added: tuple[int, ...] = ()  # operands that are added to a sum, so that only one part of it has them
    joined_by: Callable[[Array, Array], Array] = np.add  # partial results


class Part(NamedTuple):
    """The loops of a part: of each factor of the rule, from which of its values to which."""

    rule: Rule
    ranges: tuple[tuple[int, int], ...]

    def range_of(self, factor: int | Affine) -> tuple[int, int]:
        assert not isinstance(factor, Affine)
        return self.ranges[factor] if factor != NO_FACTOR else (0, 1)

    def size(self, factor: int | Affine) -> int:
        start, stop = self.range_of(factor)
        return stop - start

    def start_along(self, access: Access, axis: int) -> int:
        """Of an axis that is one factor."""
        (factor,) = access[axis] or (NO_FACTOR,)
        return self.range_of(factor)[0]

    def shape(self, access: Access) -> list[int]:
        """Of a result."""
        return [math.prod(self.size(factor) for factor in dimension) for dimension in access]


class Slice(NamedTuple):
    """What a part reads of an operand."""

    elements: Array
    pads: dict[int, tuple[int, int]]  # by axis that is read through a window: elements of padding


def reference(op_type: str, results: int = 1, opset: int = LATEST) -> Run:
    """Evaluates by the reference implementation of ONNX."""

    def run(operands: Operands, attributes: Attributes) -> list[Array]:
        names = tuple("" if one is None else f"x{i}" for i, one in enumerate(operands))
        frozen = tuple((name, tuple(v) if isinstance(v, list) else v) for name, v in attributes.items())
        feeds = {name: one for name, one in zip(names, operands, strict=True) if one is not None}
        return [np.asarray(y) for y in _evaluator(op_type, names, results, opset, frozen).run(None, feeds)]

    return run


def runtime(op_type: str, opset: int = 22, *, single: bool = True) -> Run:
    """Evaluates by ONNX Runtime, where the reference is wrong or has no such op.

    Args:
      single: floats are of single precision, which holds the small whole numbers of the tests.
    """

    def run(operands: Operands, attributes: Attributes) -> list[Array]:
        given = [
            one.astype(np.float32) if one is not None and one.dtype == np.float64 and single else one
            for one in operands
        ]
        kinds = tuple(None if one is None else (one.dtype, one.ndim) for one in given)
        frozen = tuple((name, tuple(v) if isinstance(v, list) else v) for name, v in attributes.items())
        feeds = {f"x{i}": one for i, one in enumerate(given) if one is not None}
        found = _session(op_type, kinds, opset, frozen).run(None, feeds)
        return [y.astype(np.float64) if y.dtype == np.float32 and single else y for y in found]

    return run


@lru_cache(maxsize=512)
def _session(
    op_type: str,
    kinds: tuple[tuple[np.dtype[Any], int] | None, ...],
    opset: int,
    attributes: tuple[tuple[str, Any], ...],
) -> onnxruntime.InferenceSession:
    names = ["" if kind is None else f"x{i}" for i, kind in enumerate(kinds)]
    inputs = [
        helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(kind[0]), [None] * kind[1])
        for name, kind in zip(names, kinds, strict=True)
        if kind is not None
    ]
    result = helper.make_tensor_value_info("y", inputs[0].type.tensor_type.elem_type, None)
    graph = helper.make_graph(
        [helper.make_node(op_type, names, ["y"], **dict(attributes))], "one", inputs, [result]
    )
    opsets = [helper.make_opsetid("", opset), helper.make_opsetid("com.microsoft", 1)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=10)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 4
    return onnxruntime.InferenceSession(model.SerializeToString(), options, ["CPUExecutionProvider"])


@lru_cache(maxsize=512)
def _evaluator(
    op_type: str, names: tuple[str, ...], results: int, opset: int, attributes: tuple[tuple[str, Any], ...]
) -> ReferenceEvaluator:
    outputs = [f"y{i}" for i in range(results)]
    node = helper.make_node(op_type, names, outputs, **dict(attributes))
    inputs, results_of = (
        [helper.make_tensor_value_info(name, 1, None) for name in some if name] for some in (names, outputs)
    )
    graph = helper.make_graph([node], "one", inputs, results_of)
    return ReferenceEvaluator(helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)]))


def rule_from_importer(node: Node, results: Sequence[Array]) -> Rule | None:
    """The rule of a node as the ONNX importer makes it."""
    if "layout" in node.attributes or node.op_type in ("gather", "scatter"):  # not ONNX's
        shapes = tuple(None if one is None else one.shape for one in node.operands)
        return rule_of(OpSignature(node.op_type, shapes, tuple(y.shape for y in results), node.attributes))
    values = [
        None
        if one is None
        else make_value(
            f"x{i}",
            onnx.TensorProto.INT64 if one.dtype.kind in "iu" else onnx.TensorProto.FLOAT,
            node.stored.get(i, one.shape),
            read=partial(np.asarray, one) if i in node.constants else None,
        )
        for i, one in enumerate(node.operands)
    ]
    proto = helper.make_node(node.op_type, [f"x{i}" for i in range(len(values))], ["y"], **node.attributes)
    shapes = [y.shape for y in results]
    attributes = rule_attributes(proto, values, shapes, node.opset)
    views = [None if one is None else (one.shape, one.steps) for one in values]
    return None if attributes is None else rule_of_views(node.op_type, views, shapes, attributes)


def _taken(elements: Array, sizes: Sequence[int], axis: int, ranges: Sequence[tuple[int, int]]) -> Array:
    """A slice along an axis that is several factors, major to minor."""
    before, after = elements.shape[:axis], elements.shape[axis + 1 :]
    split = elements.reshape((*before, *sizes, *after))
    index = (*[slice(None)] * axis, *(slice(start, stop) for start, stop in ranges))
    taken = math.prod(stop - start for start, stop in ranges)
    return split[index].reshape((*before, taken, *after))


def read(part: Part, access: Access, elements: Array) -> Slice:
    """The elements that a part reads of an operand."""
    if not elements.size:
        return Slice(elements, {})
    assert part.rule.shape(access) == elements.shape, "an operand has another shape than its access"
    pads = {}
    for axis, dimension in enumerate(access):
        pieces = [piece for piece in dimension if isinstance(piece, Affine)]
        if not pieces:
            sizes = [part.rule.size(factor) for factor in dimension]
            ranges = [part.range_of(factor) for factor in dimension]
            elements = _taken(elements, sizes, axis, ranges)
            continue
        (piece,) = pieces
        (first, stop), (window, window_stop) = part.range_of(piece.factor), part.range_of(piece.window)
        low = piece.stride * first + piece.dilation * window - piece.before
        high = piece.stride * (stop - 1) + piece.dilation * (window_stop - 1) - piece.before + 1
        before = min(max(0, -low), high - low)
        pads[axis] = before, min(max(0, high - piece.size), high - low - before)
        inside = slice(min(max(low, 0), piece.size), max(0, min(high, piece.size)))
        elements = elements[(*[slice(None)] * axis, inside)]
    return Slice(elements, pads)


def joined(parts: Sequence[Part], factor: int, access: Access, results: Sequence[Array]) -> Array:
    """Results of parts side by side along a factor."""
    ((axis, place),) = [
        (axis, dimension.index(factor)) for axis, dimension in enumerate(access) if factor in dimension
    ]
    apart = []
    for part, result in zip(parts, results, strict=True):
        sizes = [part.size(one) for one in access[axis]]
        apart.append(result.reshape((*result.shape[:axis], *sizes, *result.shape[axis + 1 :])))
    shape = list(results[0].shape)
    shape[axis] = sum(result.shape[axis] for result in results)
    return np.concatenate(apart, axis + place).reshape(shape)


RunPart = Callable[[Node, Part, Sequence[Any]], list[Array]]


def fault_of_factor(
    node: Node, rule: Rule, whole: Sequence[Array], factor: int, run_part: RunPart, cuts: Sequence[int]
) -> str:
    """Why the parts of a node between ``cuts`` of a factor are not the whole op; empty if they are."""
    ranges = [(0, one.size) for one in rule.factors]
    parts, results = [], []
    try:
        for start, stop in pairwise(cuts):
            ranges[factor] = start, stop
            parts.append(Part(rule, tuple(ranges)))
            results.append(_of_part(node, parts[-1], run_part))
        is_sum = rule.factors[factor].kind == "reduction"
        for place, (access, one) in enumerate(zip(rule.results, whole, strict=True)):
            of_parts = [result[place] for result in results]
            shapes = [tuple(part.shape(access)) for part in parts]
            if [result.shape for result in of_parts] != shapes:
                return f"a part has the shape {of_parts[0].shape}, not {shapes[0]}"
            made = reduce(node.joined_by, of_parts) if is_sum else joined(parts, factor, access, of_parts)
            if not are_equal(node, made, one):
                return f"parts {cuts} of {rule.factors[factor]} are not the whole"
    except Exception as error:  # a wrong rule may have parts that are no op
        return f"{type(error).__name__}: {error}"
    return ""


def _of_part(node: Node, part: Part, run_part: RunPart) -> list[Array]:
    present = [i for i, one in enumerate(node.operands) if one is not None]
    slices: list[Slice | None] = [None] * len(node.operands)
    is_first = all(
        start == 0
        for one, (start, _) in zip(part.rule.factors, part.ranges, strict=True)
        if one.kind == "reduction"
    )
    for place, access in zip(present, part.rule.operands, strict=True):
        operand = node.operands[place]
        added_before = place in node.added and not is_first
        slices[place] = read(part, access, operand * 0 if added_before else operand)
    return run_part(node, part, slices)


def are_equal(node: Node, made: Array, whole: Array) -> bool:
    """Integers, also those held as floats, are compared exactly."""
    if made.shape != whole.shape or node.is_random:
        return made.shape == whole.shape
    if whole.dtype.kind in "biu" or np.array_equal(whole, np.rint(whole)):
        return np.array_equal(made, whole)
    return np.allclose(made, whole, rtol=1e-9, atol=1e-9, equal_nan=True)


def shape_fault(node: Node, rule: Rule, whole: Sequence[Array]) -> str:
    """What is wrong with a rule as such; empty if nothing is."""
    present = [one.shape for one in node.operands if one is not None]
    read = [rule.shape(access) for access in rule.operands]
    if any(one != shape and 0 not in shape for one, shape in zip(read, present, strict=True)):
        return f"operands {present} are read as {read}"
    if [rule.shape(access) for access in rule.results] != [one.shape for one in whole]:
        return "a result has another shape"
    return fault_of(rule)
