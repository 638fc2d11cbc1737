"""What a part of an op changes besides its operands: attributes, padding, shapes and places."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np

from go_opt.model.rule import Affine
from tests.core.rules.others import slices_of_part
from tests.core.rules.parts import Array, Node, Part, RunPart, Slice

Slices = Sequence[Any]  # of operands; None for an absent one
FAR: Final = np.iinfo(np.int64).max


def elements(slices: Slices) -> list[Any]:
    return [None if one is None else one.elements for one in slices]


def nothing(node: Node, part: Part, slices: Slices) -> list[Array]:
    return node.run(elements(slices), node.attributes)


def _padded(one: Slice, value: float) -> Array:
    """The slice with its padding."""
    pads = [one.pads.get(axis, (0, 0)) for axis in range(one.elements.ndim)]
    return np.pad(one.elements, pads, constant_values=value)


def _unpadded(attributes: Mapping[str, Any], rank: int) -> dict[str, Any]:
    kept = {name: value for name, value in attributes.items() if name not in ("auto_pad", "ceil_mode")}
    return kept | {"pads": [0] * 2 * rank}


def convolution(node: Node, part: Part, slices: Slices) -> list[Array]:
    """Padding is that of the part, and so are groups and window."""
    weight, zero_point = (3, 2) if node.op_type == "QLinearConv" else (1, 2)
    image, kernel = slices[0], slices[weight]
    zero = slices[zero_point] if node.op_type in ("ConvInteger", "QLinearConv") else None
    operands = elements(slices)
    operands[0] = _padded(image, 0 if zero is None else int(zero.elements.reshape(-1)[0]))
    layout = node.attributes.get("layout", ("NC", "OI"))
    channels = image.elements.ndim - 1 if node.attributes.get("channels_last") else layout[0].index("C")
    groups = image.elements.shape[channels] // kernel.elements.shape[layout[1].index("I")]
    attributes = _unpadded(node.attributes, kernel.elements.ndim - 2) | {"group": groups}
    return node.run(operands, {name: v for name, v in attributes.items() if name != "kernel_shape"})


def transposed_convolution(node: Node, part: Part, slices: Slices) -> list[Array]:
    _, weight, result = node.attributes.get("layout", ("NC", "IO", "NC"))
    features = part.shape(part.rule.results[0])[result.index("C")]
    groups = features // slices[1].elements.shape[weight.index("O")]
    return node.run(elements(slices), node.attributes | {"group": groups})


def pooling(node: Node, part: Part, slices: Slices) -> list[Array]:
    """A largest element is looked for in a window with padding; means count what is no padding."""
    (image, *rest), access = slices, part.rule.operands[0]
    written = {factor for dimension in part.rule.results[0] for factor in dimension}
    window = node.attributes["kernel_shape"]
    first = 1 if node.attributes.get("channels_last") else len(access) - len(window)
    axes = range(first, first + len(window))
    kernel = []
    for axis in axes:
        pieces = access[axis]
        of_window = [piece.window if isinstance(piece, Affine) else piece for piece in pieces]
        kernel.append(part.size(of_window[0]) if of_window and of_window[0] not in written else 1)
    attributes = _unpadded(node.attributes, len(axes)) | {"kernel_shape": kernel}
    if node.op_type == "MaxPool":
        return node.run([_padded(image, -np.inf)], attributes)
    most = FAR if "auto_pad" in node.attributes else 0  # where a last window may go over the end
    declared = node.attributes.get("pads", [most] * 2 * len(axes))[len(axes) :]
    pads = [image.pads.get(axis, (0, 0)) for axis in axes]
    ends = [min(after, end) for (_, after), end in zip(pads, declared, strict=True)]
    attributes["pads"] = [*(before for before, _ in pads), *ends]
    attributes["ceil_mode"] = node.attributes.get("ceil_mode", 0)
    return node.run([image.elements, *elements(rest)], attributes)


def slicing(node: Node, part: Part, slices: Slices) -> list[Array]:
    """The part's operand begins with its first element."""
    operands, access = elements(slices), part.rule.operands[0]
    axes = operands[3] if len(operands) > 3 else np.arange(len(operands[1]))
    starts, stops = (np.array(one) for one in operands[1:3])
    for i, axis in enumerate(axes):
        factors = [piece.factor if isinstance(piece, Affine) else piece for piece in access[int(axis)]]
        if any(part.rule.factors[factor].kind != "whole" for factor in factors):
            starts[i], stops[i] = 0, FAR
    return node.run([operands[0], starts, stops, *operands[3:]], node.attributes)


def padding(node: Node, part: Part, slices: Slices) -> list[Array]:
    image, pads, *rest = slices
    axes = rest[1].elements if len(rest) > 1 and rest[1] is not None else np.arange(image.elements.ndim)
    changed = pads.elements.copy()
    for i, axis in enumerate(axes):
        if int(axis) % image.elements.ndim in image.pads:
            changed[[i, i + len(axes)]] = image.pads[int(axis) % image.elements.ndim]
    return node.run([image.elements, changed, *elements(rest)], node.attributes)


def tiling(node: Node, part: Part, slices: Slices) -> list[Array]:
    operands = elements(slices)
    assert operands[0] is not None
    repeats = np.array(part.shape(part.rule.results[0])) // operands[0].shape
    return node.run([operands[0], repeats], node.attributes)


def look_up(node: Node, part: Part, slices: Slices) -> list[Array]:
    """Indices are those of the part's rows; of other rows, zeros."""
    table, indices = elements(slices)
    assert node.operands[0] is not None
    axis = node.attributes.get("axis", 0) % table.ndim
    start = part.start_along(part.rule.operands[0], axis)
    places = indices % node.operands[0].shape[axis] - start
    is_here = (places >= 0) & (places < table.shape[axis])
    (found,) = node.run([table, np.where(is_here, places, 0)], node.attributes)
    shape = (1,) * axis + is_here.shape + (1,) * (table.ndim - axis - 1)
    return [np.where(is_here.reshape(shape), found, 0)]


def one_hot(node: Node, part: Part, slices: Slices) -> list[Array]:
    """Indices count from the part's first place."""
    indices, depth, values = elements(slices)
    access = part.rule.results[0]
    axis = node.attributes.get("axis", -1) % len(access)
    size, start = part.shape(access)[axis], part.start_along(access, axis)
    places = indices % depth.item() - start
    places = np.where((places >= 0) & (places < size), places, size)
    return node.run([places, np.full_like(depth, size), values], node.attributes)


def shape_operand(node: Node, part: Part, slices: Slices) -> list[Array]:
    return node.run([np.array(part.shape(part.rule.results[0]), np.int64)], node.attributes)


def shape_attribute(node: Node, part: Part, slices: Slices) -> list[Array]:
    return node.run(elements(slices), node.attributes | {"shape": part.shape(part.rule.results[0])})


def eye(node: Node, part: Part, slices: Slices) -> list[Array]:
    access = part.rule.results[0]
    down, across = (part.start_along(access, axis) for axis in range(2))
    changed = node.attributes | {"k": node.attributes.get("k", 0) + down - across}
    return node.run([np.zeros(part.shape(access))], changed)


def counting(node: Node, part: Part, slices: Slices) -> list[Array]:
    start, _, step = (one.item() for one in elements(slices) if one is not None)
    access = part.rule.results[0]
    first = start + step * part.start_along(access, 0)
    return node.run([np.array(v) for v in (first, first + step * part.shape(access)[0], step)], {})


def blocks(node: Node, part: Part, slices: Slices) -> list[Array]:
    """Parts may have blocks that are not square."""
    (image,) = elements(slices)
    is_inverse = node.op_type == "SpaceToDepth"
    access = part.rule.operands[0] if is_inverse else part.rule.results[0]
    down, across = (1 if len(dimension) < 1 else part.shape((dimension[-1:],))[0] for dimension in access[2:])
    if node.attributes["blocksize"] == 1:
        down = across = 1
    n, c, h, w = image.shape
    if is_inverse:
        split = image.reshape(n, c, h // down, down, w // across, across)
        order = (0, 1, 3, 5, 2, 4) if node.attributes.get("mode") == "CRD" else (0, 3, 5, 1, 2, 4)
        return [split.transpose(order).reshape(n, -1, h // down, w // across)]
    if node.attributes.get("mode") == "CRD":
        split = image.reshape(n, -1, down, across, h, w).transpose(0, 1, 4, 2, 5, 3)
    else:
        split = image.reshape(n, down, across, -1, h, w).transpose(0, 3, 4, 1, 5, 2)
    return [split.reshape(n, -1, h * down, w * across)]


def sizes(node: Node, part: Part, slices: Slices) -> list[Array]:
    """Resize with sizes as its last operand."""
    operands = elements(slices)
    if len(operands) > 3:
        axes = node.attributes.get("axes", range(len(part.rule.results[0])))
        shape = part.shape(part.rule.results[0])
        operands[3] = np.array([shape[axis] for axis in axes], np.int64)
    return node.run(operands, node.attributes)


def groups(node: Node, part: Part, slices: Slices) -> list[Array]:
    """GroupNormalization: as many groups as the part has."""
    return node.run(
        elements(slices), node.attributes | {"num_groups": _scaled(node, slices, "num_groups", 0, 1)}
    )


def heads(node: Node, part: Part, slices: Slices) -> list[Array]:
    """Attention of joined heads: as many as the part has."""
    places = {"q_num_heads": 0, "num_heads": 0, "kv_num_heads": 1}
    changed = {
        name: _scaled(node, slices, name, place, -1)
        for name, place in places.items()
        if name in node.attributes and slices[place] is not None
    }
    return node.run(elements(slices), node.attributes | changed)


def quantised_blocks(node: Node, part: Part, slices: Slices) -> list[Array]:
    """Blocks of an axis are as long as the part has them."""
    x, scale, *_ = elements(slices)
    if "block_size" not in node.attributes:
        return nothing(node, part, slices)
    axis = node.attributes.get("axis", 1)
    size = x.shape[axis] // scale.shape[axis]
    return node.run(elements(slices), node.attributes | {"block_size": size})


def _scaled(node: Node, slices: Slices, name: str, place: int, axis: int) -> int:
    """A number that the part has as much of as it has of an operand's axis."""
    whole, one = node.operands[place], slices[place]
    return int(node.attributes[name] * one.elements.shape[axis] // whole.shape[axis])


CHANGES: Final[Mapping[str, RunPart]] = {
    **dict.fromkeys(("Conv", "ConvInteger", "FusedConv", "QLinearConv"), convolution),
    "ConvTranspose": transposed_convolution,
    **dict.fromkeys(("AveragePool", "LpPool", "MaxPool", "QLinearAveragePool"), pooling),
    "Slice": slicing,
    "Pad": padding,
    "Tile": tiling,
    "Gather": look_up,
    "OneHot": one_hot,
    "ConstantOfShape": shape_operand,
    **dict.fromkeys(("RandomNormal", "RandomUniform"), shape_attribute),
    "EyeLike": eye,
    "Range": counting,
    **dict.fromkeys(("DepthToSpace", "SpaceToDepth"), blocks),
    "Resize": sizes,
    "GroupNormalization": groups,
    **dict.fromkeys(("DequantizeLinear", "QuantizeLinear"), quantised_blocks),
    **dict.fromkeys(("Attention", "GroupQueryAttention", "MultiHeadAttention"), heads),
    **dict.fromkeys(("gather", "scatter"), slices_of_part),
}


def run_part(node: Node, part: Part, slices: Slices) -> list[Array]:
    """The results of a part of any op."""
    return CHANGES.get(node.op_type, nothing)(node, part, slices)


def cuts(rng: np.random.Generator, size: int) -> Sequence[int]:
    """Bounds of two or three parts, or as many as there are elements."""
    inside = rng.choice(np.arange(1, size), min(size - 1, int(rng.integers(1, 4))), replace=False)
    return [0, *sorted(int(cut) for cut in inside), size]
