"""The attributes of parts of nodes, the sizes of values, and constants."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Final, NamedTuple

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray
from onnx.reference import ReferenceEvaluator

from go_opt.env.copies.pieces import Cut, Piece, Range, window_end
from go_opt.errors import ModelError
from go_opt.model.graph import OpRule
from go_opt.model.rule import Affine
from go_opt.model.rules.views import row_major

# Attributes that count steps of factors: the factors, by the letters of their names.
_COUNTS: Final[Mapping[str, str]] = {
    "block_size": "e", "group": "g", "kv_num_heads": "g", "num_groups": "g", "num_heads": "gh",
    "q_num_heads": "gh",
}  # fmt: skip


def attributes_of_part(node: ir.Node, row: OpRule, ranges: tuple[Range, ...]) -> dict[str, ir.Attr]:
    """The attributes of a part: its padding, and numbers of what is divided."""
    attributes, factors = dict(node.attributes.items()), row.rule.factors
    for one in ranges:
        name, size = factors[one.factor].name, factors[one.factor].size
        if name.startswith("k") and node.op_type == "Conv":
            attributes.pop("kernel_shape", None)  # that of the weight
        for counted in attributes.keys() & _COUNTS.keys():
            if name[0] in _COUNTS[counted]:
                number = attributes[counted].as_int() * (one.stop - one.start) // size
                attributes[counted] = ir.AttrInt64(counted, number)
    windows = {
        piece.factor: (axis, piece)
        for axis, dimension in enumerate(row.rule.operands[0][2:])
        for piece in dimension
        if isinstance(piece, Affine)
    }
    padded = [(*windows[one.factor], one) for one in ranges if one.factor in windows]
    if not padded:
        return attributes
    if all(_numbers_in(node, name, [0])[0] for name in ("count_include_pad", "ceil_mode")):
        raise ModelError(f"op {node.name!r} cannot be split: it counts padding and rounds up.")
    image = node.inputs[0]
    assert image is not None
    before, after = _padding(node, sizes_of(image)[2:], sizes_of(node.outputs[0])[2:])
    for axis, piece, one in padded:
        first = one.start * piece.stride - piece.before
        last = window_end(row.rule, piece, one.stop)
        before[axis], after[axis] = max(0, -first), max(0, last - piece.size)
    attributes.pop("auto_pad", None)
    return attributes | {"pads": ir.AttrInt64s("pads", [*before, *after])}


def _padding(node: ir.Node, sizes: Sequence[int], results: Sequence[int]) -> tuple[list[int], list[int]]:
    """Padding before and after, along each axis of an image."""
    axes = len(sizes)
    automatic = node.attributes["auto_pad"].as_string() if "auto_pad" in node.attributes else "NOTSET"
    if automatic in ("NOTSET", "VALID"):
        pads = _numbers_in(node, "pads", [0] * 2 * axes) if automatic == "NOTSET" else [0] * 2 * axes
        return pads[:axes], pads[axes:]
    weight = node.inputs[1] if len(node.inputs) > 1 else None
    kernel = _numbers_in(node, "kernel_shape", [] if weight is None else sizes_of(weight)[2:])
    strides, dilations = (_numbers_in(node, name, [1] * axes) for name in ("strides", "dilations"))
    rows = zip(sizes, results, kernel, strides, dilations, strict=True)
    missing = [max(0, (out - 1) * s + (k - 1) * d + 1 - size) for size, out, k, s, d in rows]
    less, more = [pad // 2 for pad in missing], [(pad + 1) // 2 for pad in missing]
    return (less, more) if automatic == "SAME_UPPER" else (more, less)


def _numbers_in(node: ir.Node, name: str, otherwise: Sequence[int]) -> list[int]:
    if name not in node.attributes:
        return list(otherwise)
    attr = node.attributes[name]
    return [attr.as_int()] if attr.type == ir.AttributeType.INT else list(attr.as_ints())


def sizes_of(value: ir.Value) -> list[int]:
    """The sizes of a value.

    Raises:
      ModelError: one of them is not known.
    """
    if value.shape is None or not value.shape.is_static():
        raise ModelError(f"tensor {value.name!r} has no known size, so that it cannot be split.")
    return list(value.shape.numpy())


def constant(graph: ir.Graph, name: str, array: NDArray, dtype: ir.DataType | None = None) -> ir.Value:
    """A new initializer of ``graph``."""
    tensor = ir.tensor(np.ascontiguousarray(array), dtype=dtype, name=name)
    shape = ir.Shape(tensor.shape.numpy())
    value = ir.Value(name=name, type=ir.TensorType(tensor.dtype), shape=shape, const_value=tensor)
    graph.register_initializer(value)
    return value


def values_of(value: ir.Value) -> NDArray:
    """The values of a constant: an initializer, or what nodes compute from initializers alone."""
    if value.const_value is not None:
        return value.const_value.numpy()
    nodes: dict[ir.Node, None] = {}
    initializers: dict[ir.Value, None] = {}

    def collect(values: Iterable[ir.Value | None]) -> None:
        for one in values:
            producer = None if one is None else one.producer()
            if producer is not None:
                collect(producer.inputs)
                nodes[producer] = None
            elif one is not None:
                initializers[one] = None

    collect([value])
    graph = value.graph
    assert graph is not None
    view = ir.GraphView(
        [], [value], nodes=list(nodes), initializers=list(initializers), opset_imports=graph.opset_imports
    )
    (array,) = ReferenceEvaluator(ir.to_proto(ir.Model(view.clone(), ir_version=10))).run(None, {})
    return np.asarray(array)


Loops = list[list[tuple[int, int]]]  # of each axis, major to minor: sizes, and steps in the tensor; 0: copies


class Frame(NamedTuple):
    """A shape of a tensor in which each cut lies along an axis."""

    sizes: Sequence[int]
    axes: Mapping[int, tuple[int, int]]  # period -> axis, elements of one step

    def shape(self, piece: Piece) -> list[int]:
        sizes = list(self.sizes)
        for cut in piece:
            axis, step = self.axes[cut.period]
            sizes[axis] = (cut.stop - cut.start) // step
        return sizes


def loops_of(value: ir.Value) -> Loops:
    """The loops over a value, in the order of its axes."""
    sizes = sizes_of(value)
    steps = value.meta.get("steps") or [[one] for one in zip(sizes, row_major(tuple(sizes)), strict=True)]
    return [list(axis) for axis in steps]


def flat_sizes(loops: Loops) -> list[int]:
    """The sizes of all loops."""
    return [size for axis in loops for size, _ in axis]


def compact(loops: Loops) -> Loops:
    """The loops over a tensor that holds nothing else."""
    steps, behind = {0: 0}, 1
    for step, size in sorted((step, size) for axis in loops for size, step in axis if step):
        steps[step], behind = behind, behind * size
    return [[(size, steps[step]) for size, step in axis] for axis in loops]


def axis_sizes(loops: Loops) -> list[int]:
    """The sizes of the axes."""
    return [math.prod(size for size, _ in axis) for axis in loops]


def leave(loops: Loops, cut: Cut, node: ir.Node) -> tuple[int, range, int]:
    """Leave of the loops what lies in a cut.

    Returns:
      the place of the loop among all; the steps that stay, and of how many in a period.
    """
    before = 0
    for axis in loops:
        for i, (size, step) in enumerate(axis):
            count = cut.period // step if step else 1
            if count > 1 and not any((cut.period % step, size % count, cut.start % step, cut.stop % step)):
                steps = range(cut.start // step, cut.stop // step)
                outer = [(size // count, cut.period)] if size > count else []
                axis[i : i + 1] = [*outer, (len(steps), step)]
                return before + i, steps, count
        before += len(axis)
    problem = f"elements {cut.start} to {cut.stop} of {cut.period} lie along no axis that it sees"
    raise ModelError(f"op {node.name!r} cannot be split: {problem}.")


def with_copies(loops: Loops, sizes: Sequence[int], whole: Sequence[int], part: Sequence[int]) -> Loops:
    """The loops of an operand, with as many copies along each axis as the part of a result has there."""
    found = []
    for behind, axis in enumerate(reversed(loops), 1):
        is_shared = behind <= len(whole) and whole[-behind] == sizes[-behind]
        copies = part[-behind] // math.prod(size for size, step in axis if step) if is_shared else 0
        found.append([(copies or size, step) if step == 0 else (size, step) for size, step in axis])
    return found[::-1]


def frame_of(whole: ir.Value, piece: Piece) -> Frame:
    """The shape of a tensor, if the cuts of a piece lie along its axes; else one that has such axes."""
    sizes = sizes_of(whole)
    ends = [math.prod(sizes), *(cut.period for cut in piece), 1]
    for one in (sizes, [before // after for before, after in pairwise(ends)]):
        steps = row_major(tuple(one))
        axes = {
            cut.period: (axis, step)
            for cut in piece
            for axis, (size, step) in enumerate(zip(one, steps, strict=True))
            if size > 1 and size * step == cut.period and cut.start % step == cut.stop % step == 0
        }
        if len(axes) == len(piece):
            return Frame(one, axes)
    raise ModelError(f"tensor {whole.name!r} cannot be split: its parts lie along no axes.")
