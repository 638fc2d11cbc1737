"""Small random nodes: contractions, windows, and ops that move elements."""

from __future__ import annotations

from typing import Any

import numpy as np
import scipy.special

from tests.core.rules.nodes import Rng, an_axis, flip, ints, narrowed, of_numpy, pick, reals, shape_of
from tests.core.rules.parts import Array, Attributes, Node, Operands, Run, reference, runtime


def some(rng: Rng, count: int, most: int = 4) -> list[int]:
    return [int(n) for n in rng.integers(1, most + 1, count)]


# ------------------------------------------------------------------ contractions


def contraction(rng: Rng, op_type: str) -> Node:
    labels = {label: int(n) for label, n in zip("abcdij", rng.integers(1, 5, 6), strict=True)}
    batch = shape_of(rng, 0, 2)
    terms, operands = [], []
    for _ in range(int(rng.integers(1, 4))):
        chosen = [str(one) for one in rng.choice(list(labels), int(rng.integers(1, 4)), replace=False)]
        dots = narrowed(rng, batch) if flip(rng) else None
        place = int(rng.integers(len(chosen) + 1))
        shape = [labels[one] for one in chosen]
        terms.append("".join(chosen) if dots is None else "".join((*chosen[:place], "...", *chosen[place:])))
        operands.append(
            ints(rng, shape if dots is None else [*shape[:place], *dots, *shape[place:]], -30, 30)
        )
    equation = ",".join(terms)
    if flip(rng, 0.7):
        seen = sorted({one for one in equation if one in labels})
        kept = [str(one) for one in rng.permutation([one for one in seen if flip(rng)])]
        kept.insert(int(rng.integers(len(kept) + 1)), "..." if "..." in equation else "")
        equation += " -> " + "".join(kept)
    return Node(op_type, tuple(operands), {"equation": equation}, reference("Einsum"))


def matrices(rng: Rng) -> tuple[list[int], list[int]]:
    """Shapes of two operands of a product."""
    rows, inner, columns = some(rng, 3)
    if flip(rng, 0.2):
        columns = rows
    batch = shape_of(rng, 0, 2)
    return [*narrowed(rng, batch), rows, inner], [*narrowed(rng, batch), inner, columns]


def product(rng: Rng, op_type: str) -> Node:
    left, right = matrices(rng)
    if op_type == "FusedMatMul":
        attributes = {name: int(flip(rng)) for name in ("transA", "transB")} | {"alpha": 2.0}
        left[-2:] = left[-2:][:: 1 - 2 * int(attributes["transA"])]
        right[-2:] = right[-2:][:: 1 - 2 * int(attributes["transB"])]

        def run(operands: Operands, attributes: Attributes) -> list[Array]:
            a, b = (
                np.swapaxes(one, -1, -2) if attributes[name] else one
                for one, name in zip(operands, ("transA", "transB"), strict=True)
            )
            return [attributes["alpha"] * a @ b]

        return Node(op_type, (ints(rng, left), ints(rng, right)), attributes, run)
    if flip(rng, 0.2) and op_type == "MatMul":
        left, right = (left[-1:], right) if flip(rng) else (left, right[-2:-1])
    run_plain = reference("MatMul")
    return Node(op_type, (ints(rng, left), ints(rng, right)), {}, run_plain)


def gemm(rng: Rng, op_type: str) -> Node:
    rows, inner, columns = some(rng, 3)
    attributes: dict[str, Any] = {name: int(flip(rng)) for name in ("transA", "transB")}
    attributes |= {"alpha": 2.0, "beta": 3.0}
    left = [rows, inner][:: 1 - 2 * attributes["transA"]]
    right = [inner, columns][:: 1 - 2 * attributes["transB"]]
    operands = [ints(rng, left), ints(rng, right)]
    if flip(rng, 0.7):
        operands.append(ints(rng, narrowed(rng, [rows, columns])))
    if op_type == "Gemm":
        return Node(op_type, tuple(operands), attributes, reference(op_type), added=(2,))
    if flip(rng):
        attributes["activation"] = "Relu"

    def run(operands: Operands, attributes: Attributes) -> list[Array]:
        plain = {name: value for name, value in attributes.items() if name != "activation"}
        (y,) = reference("Gemm")(operands, plain)
        return [np.maximum(y, 0) if "activation" in attributes else y]

    return Node(op_type, tuple(operands), attributes, run, added=(2,))


# For each operand of a quantised product: of the left, right or result; or a bias.
_FIGURES = {
    "DynamicQuantizeMatMul": "rrb",
    "MatMulInteger": "lr",
    "MatMulInteger16": "",
    "MatMulIntegerToFloat": "lrlrb",
    "QLinearMatMul": "llrryy",
}


def quantised_product(rng: Rng, op_type: str) -> Node:
    """Scales are powers of two, so that all is exact."""
    left, right = matrices(rng)
    rows = [*np.broadcast_shapes(tuple(left[:-2]), tuple(right[:-2])), left[-2]]

    def figure(kind: str) -> Array:
        if kind == "b":
            return ints(rng, right[-1:])
        if flip(rng):
            return np.array(float(rng.integers(1, 4)))
        if kind == "r":
            plain = [right[-1]], [*right[:-2], 1, right[-1]]
        else:
            of = left[:-1] if kind == "l" else rows
            plain = [of[-1]], [*of, 1]
        shape = plain[0] if len(left) == len(right) == 2 and flip(rng) else plain[1]
        return 2.0 ** rng.integers(0, 3, tuple(shape))

    figures = [figure(kind) for kind in _FIGURES[op_type]]
    places = (0, 3) if op_type == "QLinearMatMul" else (0, 1)
    operands = [ints(rng, left, -9, 9), *figures]
    operands.insert(places[1], ints(rng, right, -9, 9))
    added = tuple(2 + i for i, kind in enumerate(_FIGURES[op_type]) if kind == "b")
    return Node(op_type, tuple(operands), {}, _run_of_quantised(op_type), added=added)


def _by_row(one: Array) -> Array:
    return one[:, None] if one.ndim == 1 else one


def _run_of_quantised(op_type: str) -> Run:
    def run(operands: Operands, attributes: Attributes) -> list[Array]:
        if op_type == "DynamicQuantizeMatMul":
            a, b, scale, zero, bias = operands
            step = (a.max() - a.min() + 1) / 255
            return [(np.rint(a / step) * step) @ ((b - zero) * scale) + bias]
        if op_type == "QLinearMatMul":
            a, a_scale, a_zero, b, b_scale, b_zero, y_scale, y_zero = operands
            found = (a - _by_row(a_zero)) @ (b - b_zero) * _by_row(a_scale) * b_scale / _by_row(y_scale)
            return [np.clip(np.rint(found) + _by_row(y_zero), -128, 127)]
        if op_type == "MatMulIntegerToFloat":
            a, b, a_scale, b_scale, a_zero, b_zero, bias = operands
            return [(a - _by_row(a_zero)) @ (b - b_zero) * _by_row(a_scale) * b_scale + bias]
        a, b, *zeros = operands
        of_rows, of_columns = zeros or (np.array(0), np.array(0))
        return [(a - _by_row(of_rows)) @ (b - of_columns)]

    return run


def packed_product(rng: Rng, op_type: str) -> Node:
    """The weight [columns, inner] by element; it is stored in blocks."""
    rows = shape_of(rng, 1, 3)
    columns, count, block = some(rng, 3)
    block += 1
    inner = count * block
    a, b = ints(rng, [*rows, inner]), ints(rng, [columns, inner], 0, 16)
    if op_type == "MatMulFpQ4":
        shape = np.array([columns, inner])
        run = of_numpy(lambda a, b, _: a @ b.T)
        return Node(op_type, (a, b, shape), {}, run, stored={1: (columns * inner // 2 + 9,)})
    attributes = {"K": inner, "N": columns, "block_size": block}
    scales = ints(rng, [columns, count])
    if op_type == "MatMulBnb4":
        stored: dict[int, tuple[int, ...]] = {1: ((columns * inner + 1) // 2, 1), 2: (columns * count,)}

        def bnb(a: Array, b: Array, scales: Array, **_: int) -> Array:
            return np.asarray(a @ (b * np.repeat(scales, b.shape[1] // scales.shape[1], 1)).T)

        return Node(op_type, (a, b, scales), attributes, of_numpy(bnb), stored=stored)
    if flip(rng, 0.3) and block > 2:  # the last block is not full
        inner -= 1
        a, b, attributes["K"] = a[..., :-1], b[:, :-1], inner
    zeros = ints(rng, [columns, count], 0, 16) if flip(rng) else None
    order = rng.integers(0, count, inner) if flip(rng, 0.3) else None
    bias = ints(rng, [columns]) if flip(rng) else None
    stored = {1: (columns, count, -(-block * 4 // 8))}
    stored |= {2: (columns * count,)} if flip(rng) else {}
    stored |= {} if zeros is None else {3: (columns * -(-count // 2),)}

    def run_blocks(operands: Operands, attributes: Attributes) -> list[Array]:
        a, b, scales, zeros, order, bias = operands
        inner, count = b.shape[1], scales.shape[1]
        width = attributes["block_size"] if inner % count else inner // count
        group = np.arange(inner) // width if order is None else order
        weight = (b if zeros is None else b - zeros[:, group]) * scales[:, group]
        return [a @ weight.T + (0 if bias is None else bias)]

    return Node(
        op_type, (a, b, scales, zeros, order, bias), attributes, run_blocks, stored=stored, added=(5,)
    )


def sequences(rng: Rng, op_type: str) -> Node:
    """The layers of ONNX run forward alone in its reference; of both directions, the two of these."""
    steps, batch, width, hidden = some(rng, 4, 3)
    gates = {"GRU": 3, "LSTM": 4, "RNN": 1}[op_type]
    shapes = [[steps, batch, width], [1, gates * hidden, width], [1, gates * hidden, hidden]]
    operands: list[Array | None] = [reals(rng, shape) for shape in shapes]
    if flip(rng):
        operands += [reals(rng, [1, 2 * gates * hidden]), None, reals(rng, [1, batch, hidden])]
        operands += [reals(rng, [1, batch, hidden])] if op_type == "LSTM" else []
    results = int(rng.integers(1, 3))
    return Node(op_type, tuple(operands), {"hidden_size": hidden}, reference(op_type, results))


def attention(rng: Rng, op_type: str) -> Node:
    batch, groups, each, rows, columns, width = some(rng, 6, 3)
    heads, is_joined = groups * each, flip(rng) or op_type == "MultiHeadAttention"
    of_value = int(rng.integers(1, 4))
    groups = heads if op_type == "MultiHeadAttention" else groups
    shapes = [
        [batch, heads, rows, width],
        [batch, groups, columns, width],
        [batch, groups, columns, of_value],
    ]
    if is_joined:
        shapes = [[n, count, one * deep] for n, one, count, deep in shapes]
    operands: list[Array | None] = [reals(rng, shape) for shape in shapes]
    if op_type == "MultiHeadAttention":
        operands.append(reals(rng, [heads * (2 * width + of_value)]) if flip(rng) else None)
        operands.append(rng.integers(0, 2, (batch, columns)) if flip(rng) else None)
        mask = [pick(rng, [1, batch]), pick(rng, [1, heads]), rows, columns]
        operands.append(reals(rng, mask) if flip(rng) else None)
        return Node(op_type, tuple(operands), {"num_heads": heads}, _joined_heads)
    attributes: dict[str, Any] = {"q_num_heads": heads, "kv_num_heads": groups} if is_joined else {}
    attributes |= {"is_causal": 1} if flip(rng, 0.3) else {}
    if flip(rng):
        past = int(rng.integers(1, 3)) if flip(rng) else 0
        mask = narrowed(rng, [batch, heads, rows])
        operands.append(reals(rng, [*mask, columns + past] if mask else [rows, columns + past]))
        if past:
            operands += [reals(rng, [batch, groups, past, deep]) for deep in (width, of_value)]
    return Node(op_type, tuple(operands), attributes, reference(op_type, pick(rng, [1, 1, 3])))


def _joined_heads(operands: Operands, attributes: Attributes) -> list[Array]:
    query, key, value, bias, is_kept, mask = operands
    heads = attributes["num_heads"]
    each = [query, key, value]
    if bias is not None:
        ends = np.cumsum([one.shape[-1] for one in each[:-1]])
        each = [one + part for one, part in zip(each, np.split(bias, ends), strict=True)]
    q, k, v = (one.reshape(*one.shape[:2], heads, -1).swapaxes(1, 2) for one in each)
    scores = q @ k.swapaxes(2, 3) / np.sqrt(q.shape[-1]) + (0 if mask is None else mask)
    scores = scores if is_kept is None else np.where(is_kept[:, None, None] > 0, scores, -1e4)
    result = (scipy.special.softmax(scores, -1) @ v).swapaxes(1, 2)
    return [result.reshape(*result.shape[:2], -1)]


# ------------------------------------------------------------------ windows


def windows(rng: Rng, axes: int, *, is_pool: bool = False) -> tuple[list[int], list[int], dict[str, Any]]:
    """Sizes of an image and of a window, and attributes that fit."""
    kernel, strides, dilations = (some(rng, axes, 3) for _ in range(3))
    way = pick(rng, ["pads", "pads", "SAME_UPPER", "SAME_LOWER", "VALID", "none"])
    strides = [min(pair) for pair in zip(strides, kernel, strict=True)] if is_pool else strides
    dilations = dilations if way in ("pads", "VALID", "none") and flip(rng) else [1] * axes
    attributes: dict[str, Any] = {} if max(strides) == 1 and flip(rng) else {"strides": strides}
    attributes |= {"dilations": dilations} if max(dilations) > 1 else {}
    least = [1] * axes
    if way == "pads":
        most = [(k - 1 if is_pool else 2) for k in kernel]
        attributes["pads"] = [int(rng.integers(0, one + 1)) for one in (*most, *most)]
    elif way != "none":
        attributes["auto_pad"] = way
    pads = attributes.get("pads", [0] * 2 * axes)
    for i in range(axes):
        span = (kernel[i] - 1) * dilations[i] + 1
        least[i] = max(1, span - pads[i] - pads[axes + i]) if not way.startswith("SAME") else span
    image = [one + int(rng.integers(0, 5)) for one in least]
    return image, kernel, attributes


def convolution(rng: Rng, op_type: str) -> Node:
    axes = int(rng.integers(1, 3))
    image, kernel, attributes = windows(rng, axes)
    batch, groups, inputs, outputs = some(rng, 4, 3)
    shapes = [batch, groups * inputs, *image], [groups * outputs, inputs, *kernel]
    attributes |= {"group": groups} if groups > 1 else {}
    attributes |= {"kernel_shape": kernel} if flip(rng) else {}
    x, w = ints(rng, shapes[0], -20, 20), ints(rng, shapes[1], -20, 20)
    bias = ints(rng, [groups * outputs]) if flip(rng) else None
    if op_type == "ConvInteger":
        zeros = np.array(3.0), 2.0 ** rng.integers(0, 3, () if flip(rng) else (groups * outputs,))
        return Node(op_type, (x, w, *zeros), attributes, _integer_convolution)
    if op_type == "QLinearConv":
        one = (np.array(1.0), np.array(2.0))
        of_weight = [2.0 ** rng.integers(0, 2, () if flip(rng) else (groups * outputs,)) for _ in range(2)]
        is_last = flip(rng, 0.3)
        x, attributes = (
            (np.moveaxis(x, 1, -1), attributes | {"channels_last": 1}) if is_last else (x, attributes)
        )
        operands = (x, *one, w, *of_weight, np.array(4.0), np.array(1.0), bias)
        return Node(op_type, operands, attributes, _quantised_convolution, added=(8,))
    if op_type == "Conv":
        return Node(op_type, (x, w, bias), attributes, runtime("Conv"), added=(2,))
    attributes |= {"activation": "Relu"} if flip(rng) else {}
    (result,) = _fused_convolution((x, w, bias), attributes)
    skip = ints(rng, result.shape) if flip(rng) else None
    return Node(op_type, (x, w, bias, skip), attributes, _fused_convolution, added=(2, 3))


def _fused_convolution(operands: Operands, attributes: Attributes) -> list[Array]:
    plain = {name: value for name, value in attributes.items() if name != "activation"}
    (y,) = runtime("Conv")(operands[:3], plain)
    y = y if len(operands) < 4 or operands[3] is None else y + operands[3]
    return [np.maximum(y, 0) if "activation" in attributes else y]


def _integer_convolution(operands: Operands, attributes: Attributes) -> list[Array]:
    x, w, zero, zeros = operands
    return runtime("Conv")([x - zero, w - _by_feature(zeros, w.ndim)], attributes)


def _by_feature(one: Array, rank: int) -> Array:
    return one.reshape(-1, *[1] * (rank - 1)) if one.ndim else one


def _quantised_convolution(operands: Operands, attributes: Attributes) -> list[Array]:
    x, x_scale, x_zero, w, w_scale, w_zero, y_scale, y_zero, bias = operands
    is_last = attributes.get("channels_last", 0)
    plain = {name: value for name, value in attributes.items() if name != "channels_last"}
    image = np.moveaxis(x, -1, 1) if is_last else x
    weight = w - _by_feature(w_zero, w.ndim)
    (found,) = runtime("Conv")([image - x_zero, weight, bias], plain)
    scale = _by_feature(w_scale, w.ndim - 1) * x_scale / y_scale
    y = np.clip(np.rint(found * scale) + y_zero, -128, 127)
    return [np.moveaxis(y, 1, -1) if is_last else y]


def laid_out_convolution(rng: Rng, op_type: str) -> Node:
    """A convolution of any layout, as JAX has it."""
    node = convolution(rng, op_type) if op_type == "Conv" else transposed_convolution(rng, op_type)
    x, w, *_ = node.operands
    weight = "OI" if op_type == "Conv" else "IO"
    digits = "".join(map(str, range(x.ndim - 2)))
    plain = [letters + digits for letters in ("NC", weight, "NC")]
    layout = ["".join(rng.permutation(list(letters))) for letters in plain]
    operands = tuple(_laid(one, plain[i], layout[i]) for i, one in enumerate((x, w)))

    def run(operands: Operands, attributes: Attributes) -> list[Array]:
        given = [_laid(one, layout[i], plain[i]) for i, one in enumerate(operands)]
        kept = {name: value for name, value in attributes.items() if name != "layout"}
        return [_laid(runtime(op_type)(given, kept)[0], plain[2], layout[2])]

    return Node(op_type, operands, node.attributes | {"layout": layout}, run)


def _laid(x: Array, before: str, after: str) -> Array:
    return x.transpose([before.index(one) for one in after])


def transposed_convolution(rng: Rng, op_type: str) -> Node:
    axes = int(rng.integers(1, 3))
    batch, groups, inputs, outputs = some(rng, 4, 3)
    strides, kernel = some(rng, axes, 3), some(rng, axes, 3)
    operands = [ints(rng, [batch, groups * inputs, *some(rng, axes)], -20, 20)]
    operands.append(ints(rng, [groups * inputs, outputs, *kernel], -20, 20))
    operands += [ints(rng, [groups * outputs])] if flip(rng) else []
    attributes: dict[str, Any] = {"strides": strides, "group": groups}
    return Node(op_type, tuple(operands), attributes, runtime(op_type), added=(2,))


def pooling(rng: Rng, op_type: str) -> Node:
    axes = int(rng.integers(1, 3))
    image, kernel, attributes = windows(rng, axes, is_pool=True)
    attributes["kernel_shape"] = kernel
    if op_type != "MaxPool":
        attributes.pop("dilations", None)
    attributes |= {"ceil_mode": 1} if "auto_pad" not in attributes and flip(rng, 0.3) else {}
    x = ints(rng, [*some(rng, 2, 3), *image])
    if op_type == "MaxPool":
        return Node(op_type, (x,), attributes, runtime(op_type), joined_by=np.maximum)
    if op_type == "LpPool":
        return Node(op_type, (np.abs(x),), attributes | {"p": 2}, runtime(op_type))
    attributes |= {"count_include_pad": 1} if flip(rng) else {}
    if op_type == "AveragePool":
        return Node(op_type, (x,), attributes, runtime(op_type))
    is_last = flip(rng)
    figures = [np.array(2.0), np.array(1.0), np.array(2.0), np.array(3.0)]
    x, attributes = (np.moveaxis(x, 1, -1), attributes | {"channels_last": 1}) if is_last else (x, attributes)

    def run(operands: Operands, attributes: Attributes) -> list[Array]:
        x, scale, zero, y_scale, y_zero = operands
        plain = {name: value for name, value in attributes.items() if name != "channels_last"}
        is_last = len(plain) < len(attributes)
        image = (x - zero) * scale
        (y,) = runtime("AveragePool")([np.moveaxis(image, -1, 1) if is_last else image], plain)
        y = np.rint(y / y_scale) + y_zero
        return [np.moveaxis(y, 1, -1) if is_last else y]

    return Node(op_type, (x, *figures), attributes, run)


def pooling_of_all(rng: Rng, op_type: str) -> Node:
    """Windows over all axes, those of batch and channels among them, as JAX has them."""
    node = pooling(rng, op_type)
    while "auto_pad" in node.attributes:
        node = pooling(rng, op_type)
    wide = ("dilations", "kernel_shape", "strides")
    attributes = {name: [1, 1, *value] if name in wide else value for name, value in node.attributes.items()}
    if "pads" in attributes:
        axes = len(attributes["pads"]) // 2
        attributes["pads"] = [0, 0, *attributes["pads"][:axes], 0, 0, *attributes["pads"][axes:]]

    def run(operands: Operands, attributes: Attributes) -> list[Array]:
        narrow = {name: value[2:] if name in wide else value for name, value in attributes.items()}
        axes = len(attributes["pads"]) // 2 if "pads" in attributes else 0
        narrow |= {"pads": [*narrow["pads"][2:axes], *narrow["pads"][axes + 2 :]]} if axes else {}
        return node.run(operands, narrow)

    return node._replace(attributes=attributes, run=run)


def whole_pooling(rng: Rng, op_type: str) -> Node:
    x = ints(rng, shape_of(rng, 3, 4))
    if op_type == "GlobalLpPool":
        run = of_numpy(lambda x: np.sqrt((x * x).sum(tuple(range(2, x.ndim)), keepdims=True)))
        return Node(op_type, (x,), {}, run)
    return Node(op_type, (x,), {}, runtime(op_type), joined_by=np.maximum)


# ------------------------------------------------------------------ moves


def permutation(rng: Rng, op_type: str) -> Node:
    x = ints(rng, shape_of(rng, 1, 4))
    attributes = {"perm": [int(i) for i in rng.permutation(x.ndim)]} if flip(rng) else {}
    return Node(op_type, (x,), attributes, reference(op_type))


def joining(rng: Rng, op_type: str) -> Node:
    shape = shape_of(rng, 1, 3)
    axis = int(rng.integers(-len(shape), len(shape)))
    operands = []
    for _ in range(int(rng.integers(1, 4))):
        shape[axis] = int(rng.integers(1, 4))
        operands.append(ints(rng, shape))
    return Node(op_type, tuple(operands), {"axis": axis}, reference(op_type))


def stacking(rng: Rng, op_type: str) -> Node:
    """Along an axis that the operands do not have, as PyTorch's stack."""
    shape, axis = shape_of(rng, 1, 3), int(rng.integers(0, 2))
    operands = tuple(ints(rng, shape) for _ in range(int(rng.integers(1, 4))))
    return Node(op_type, operands, {"axis": axis}, lambda x, attributes: [np.stack(x, attributes["axis"])])


def unstacking(rng: Rng, op_type: str) -> Node:
    """Along an axis that the results do not have, as PyTorch's unbind."""
    shape = shape_of(rng, 2, 3)
    axis = int(rng.integers(len(shape)))

    def run(operands: Operands, attributes: Attributes) -> list[Array]:
        return list(np.moveaxis(operands[0], attributes["axis"], 0))

    return Node(op_type, (ints(rng, shape),), {"axis": axis}, run)


def parting(rng: Rng, op_type: str) -> Node:
    shape = shape_of(rng, 1, 3)
    attributes, axis = an_axis(rng, len(shape), 0)
    each = some(rng, 3, 3)
    shape[axis] = sum(each)
    operands = ints(rng, shape), np.array(each)
    return Node(op_type, operands, attributes, reference(op_type, results=3), constants=(1,))


def slicing(rng: Rng, op_type: str) -> Node:
    shape = shape_of(rng, 1, 3, 7)
    axes = rng.choice(len(shape), int(rng.integers(1, len(shape) + 1)), replace=False)
    steps = rng.choice([1, 1, 2, 3, -1, -2], len(axes))
    starts, stops = np.zeros_like(axes), np.zeros_like(axes)
    for i, (axis, step) in enumerate(zip(axes, steps, strict=True)):
        first, last = sorted(int(n) for n in rng.integers(0, shape[axis], 2))
        starts[i], stops[i] = (first, last + 1) if step > 0 else (last, first - 1)
        if step > 0 and flip(rng):
            starts[i] -= shape[axis]
        if last == shape[axis] - 1 and step > 0 and flip(rng):
            stops[i] = np.iinfo(np.int64).max
        if step < 0 and first == 0:
            stops[i] = -99
    axes = axes - len(shape) * (rng.random(len(axes)) < 0.3)
    operands = [ints(rng, shape), starts, stops, axes, steps]
    if flip(rng, 0.3) and steps.min() == 1 == steps.max():
        operands.pop()
    return Node(op_type, tuple(operands), {}, reference(op_type), constants=(1, 2, 3, 4))


def padding(rng: Rng, op_type: str) -> Node:
    shape = shape_of(rng, 1, 3, 5)
    mode = pick(rng, ["constant", "constant", "constant", "edge"])
    axes = np.sort(rng.choice(len(shape), int(rng.integers(1, len(shape) + 1)), replace=False))
    least = 0 if mode == "edge" else -1
    pads = rng.integers(least, 4, 2 * len(axes))
    for i, axis in enumerate(axes):
        if shape[axis] + pads[i] + pads[len(axes) + i] < 1 or shape[axis] < 3:
            pads[[i, len(axes) + i]] = np.abs(pads[[i, len(axes) + i]])
    value = np.array(7.0)
    if len(axes) == len(shape) and flip(rng):
        operands: tuple[Array, ...] = (ints(rng, shape), pads, value)
    else:
        operands = (ints(rng, shape), pads, value, axes - len(shape) * flip(rng))
    return Node(op_type, operands, {"mode": mode}, _padded, constants=(1, 2, 3))


def _padded(operands: Operands, attributes: Attributes) -> list[Array]:
    """Negative pads, which the reference does not know, take elements away."""
    x, pads, value, *axes = operands
    places = axes[0] if axes else np.arange(x.ndim)
    for i, axis in enumerate(places):
        before, after = int(pads[i]), int(pads[len(places) + i])
        stop = x.shape[axis] + min(after, 0)
        x = np.moveaxis(np.moveaxis(x, axis, 0)[max(-before, 0) : stop], 0, axis)
    grown = np.maximum(pads, 0)
    return reference("Pad")([x, grown, value, *axes], attributes)


def triangle(rng: Rng, op_type: str) -> Node:
    x, k = ints(rng, shape_of(rng, 2, 4)), np.array(int(rng.integers(-2, 3)))
    return Node(op_type, (x, k), {"upper": int(flip(rng))}, reference(op_type), constants=(1,))


def tiling(rng: Rng, op_type: str) -> Node:
    x = ints(rng, shape_of(rng, 1, 3))
    return Node(op_type, (x, rng.integers(1, 4, x.ndim)), {}, reference(op_type), constants=(1,))


def resizing(rng: Rng, op_type: str) -> Node:
    shape = shape_of(rng, 2, 3, 5)
    scales = rng.choice([1.0, 1.0, 1.1, 2.0], len(shape)).astype(np.float32)
    x = ints(rng, shape)
    if op_type == "Upsample":
        run = reference("Resize")
        return Node(
            op_type, (x, scales), {"mode": "nearest"},
            lambda operands, attributes: run([operands[0], None, operands[1]], dict(attributes) | {
                "coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}),
            9, (1,),
        )  # fmt: skip
    attributes = {"mode": pick(rng, ["linear", "nearest"])}
    if flip(rng):
        region = np.zeros(0) if flip(rng) else None
        return Node(op_type, (x, region, scales), attributes, reference(op_type), constants=(1, 2))
    axes = np.arange(len(shape)) if flip(rng) else np.array([len(shape) - 1])
    sizes = np.floor(scales * shape).astype(np.int64)[axes]
    attributes |= {"axes": axes.tolist()} if len(axes) == 1 or flip(rng) else {}
    attributes |= {"keep_aspect_ratio_policy": "not_larger"} if flip(rng, 0.3) else {}
    return Node(op_type, (x, None, None, sizes), attributes, reference(op_type), constants=(3,))


def look_up(rng: Rng, op_type: str) -> Node:
    table = ints(rng, shape_of(rng, 1, 3))
    attributes, axis = an_axis(rng, table.ndim, 0)
    rows = table.shape[axis]
    indices = rng.integers(-rows, rows, tuple(shape_of(rng, 0, 2)))
    return Node(op_type, (table, indices), attributes, reference(op_type))


def elements_by_index(rng: Rng, op_type: str) -> Node:
    table = ints(rng, shape_of(rng, 1, 3))
    chosen, axis = an_axis(rng, table.ndim, 0)
    attributes: dict[str, Any] = dict(chosen)
    shape = [size if flip(rng, 0.7) else int(rng.integers(1, size + 1)) for size in table.shape]
    if op_type == "GatherElements":
        shape[axis] = int(rng.integers(1, 5))
        indices = rng.integers(0, table.shape[axis], tuple(shape))
        return Node(op_type, (table, indices), attributes, runtime(op_type, single=False))
    indices = rng.integers(0, table.shape[axis], tuple(shape))
    attributes["reduction"] = "add"
    return Node(op_type, (table, indices, ints(rng, shape)), attributes, reference(op_type))


def slices_by_index(rng: Rng, op_type: str) -> Node:
    table = ints(rng, shape_of(rng, 1, 4))
    shared = int(rng.integers(0, min(2, table.ndim - 1) + 1)) if op_type == "GatherND" else 0
    named = int(rng.integers(1, table.ndim - shared + 1))
    shape = [*table.shape[:shared], *shape_of(rng, 0, 2)]
    columns = [rng.integers(0, size, tuple(shape)) for size in table.shape[shared : shared + named]]
    indices = np.stack(columns, -1)
    if op_type == "GatherND":
        attributes = {"batch_dims": shared} if shared else {}
        return Node(op_type, (table, indices), attributes, reference(op_type))
    updates = ints(rng, [*shape, *table.shape[named:]])
    # The table is added once, whatever the parts: here it is zero.
    return Node(op_type, (table * 0, indices, updates), {"reduction": "add"}, reference(op_type))


def updated_slice(rng: Rng, op_type: str) -> Node:
    """As JAX's dynamic_update_slice."""
    table = ints(rng, shape_of(rng, 1, 3))
    shape = [size if flip(rng) else int(rng.integers(1, size + 1)) for size in table.shape]
    starts = [np.array(rng.integers(0, a - b + 1)) for a, b in zip(table.shape, shape, strict=True)]

    def run(operands: Operands, attributes: Attributes) -> list[Array]:
        whole, part, *starts = operands
        index = tuple(
            slice(int(start), int(start) + size) for start, size in zip(starts, part.shape, strict=True)
        )
        changed = whole.copy()
        changed[index] = part
        return [changed]

    return Node(op_type, (table, ints(rng, shape), *starts), {"mode": "slice"}, run)


def largest(rng: Rng, op_type: str) -> Node:
    shape = shape_of(rng, 1, 3)
    attributes, axis = an_axis(rng, len(shape), -1)
    count = rng.integers(1, shape[axis] + 1, 1)
    operands = reals(rng, shape), count
    return Node(op_type, operands, attributes, reference(op_type, results=2), constants=(1,))


def one_hot(rng: Rng, op_type: str) -> Node:
    shape = shape_of(rng, 1, 2)
    attributes, _ = an_axis(rng, len(shape) + 1, -1)
    depth = int(rng.integers(1, 5))
    indices = rng.integers(-depth, depth, tuple(shape))
    operands = indices, np.array(depth), np.array([3.0, 8.0])
    return Node(op_type, operands, attributes, reference(op_type), constants=(1,))


def made(rng: Rng, op_type: str) -> Node:
    shape = shape_of(rng, 1, 3)
    if op_type == "ConstantOfShape":
        return Node(op_type, (np.array(shape),), {}, reference(op_type), constants=(0,))
    if op_type == "EyeLike":
        x = np.zeros(tuple(some(rng, 2)))
        return Node(op_type, (x,), {"k": int(rng.integers(-2, 3))}, reference(op_type))
    if op_type == "Range":
        start, count, step = (int(n) for n in rng.integers(1, 5, 3))
        operands = tuple(np.array(n) for n in (start, start + count * step, step))
        return Node(op_type, operands, {}, reference(op_type), constants=(0, 1, 2))
    return Node(op_type, (), {"shape": shape}, reference(op_type), is_random=True)


def blocks(rng: Rng, op_type: str) -> Node:
    n, c, h, w, block = some(rng, 5, 3)
    attributes: dict[str, Any] = {"blocksize": block}
    if op_type == "SpaceToDepth":
        return Node(op_type, (ints(rng, [n, c, h * block, w * block]),), attributes, reference(op_type))
    attributes |= {"mode": pick(rng, ["CRD", "DCR"])} if flip(rng) else {}
    return Node(op_type, (ints(rng, [n, c * block * block, h, w]),), attributes, reference(op_type))


def unshuffled(rng: Rng, op_type: str) -> Node:
    """As PyTorch's pixel_unshuffle, which is the inverse of ONNX's DepthToSpace of mode CRD."""
    node = blocks(rng, op_type)
    (x,) = node.operands

    def run(operands: Operands, attributes: Attributes) -> list[Array]:
        (n, c, h, w), block = operands[0].shape, attributes["blocksize"]
        split = operands[0].reshape(n, c, h // block, block, w // block, block)
        return [split.transpose(0, 1, 3, 5, 2, 4).reshape(n, -1, h // block, w // block)]

    return Node(op_type, (x,), node.attributes | {"mode": "CRD"}, run)


def sampling(rng: Rng, op_type: str) -> Node:
    n, c, h, w, rows, columns = some(rng, 6, 4)
    operands = ints(rng, [n, c, h + 1, w + 1]), reals(rng, [n, rows, columns, 2], -1, 1)
    return Node(op_type, operands, {}, runtime(op_type))
