"""Plans of rewritten graphs, and models in which every rule has something to do."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

import numpy as np
import onnx

from go_opt.env.copies.splits import split_graph
from go_opt.env.rewrites.applying import with_rewrites
from go_opt.model.graph import Graph, Rewrite
from go_opt.model.plan import Plan, Split
from tests.exports import info, model, node, scattered_plan, weight


def rewritten_plan(
    graph: Graph, rewrites: tuple[Rewrite, ...], splits: tuple[Split, ...] = (), chips: int = 4, seed: int = 0
) -> Plan:
    """Each op and part is a kernel of its own, on a chip of the first few."""
    made = with_rewrites(graph, rewrites)
    if splits:
        made = split_graph(made, splits)
    return replace(scattered_plan(made, chips, seed), splits=splits)


def statistics(name: str, channels: int) -> list[onnx.TensorProto]:
    """Scale, shift, mean and variance of a BatchNormalization."""
    parts = [weight(f"{part}{name}", channels) for part in "gbm"]
    variance = onnx.numpy_helper.from_array(
        np.random.default_rng(3).uniform(0.5, 2.0, channels).astype(np.float32), f"v{name}"
    )
    return [*parts, variance]


def convolutions() -> onnx.ModelProto:
    """A grouped convolution and one without a bias, each with a normalisation; scales and shifts behind."""
    return model(
        [node("Conv", "x w1", "a", "conv1", group=2, pads=[1, 1, 1, 1]),
         node("BatchNormalization", "a g1 b1 m1 v1", "b", "norm1", epsilon=1e-3),
         node("Relu", "b", "c", "relu1"),
         node("Conv", "c w2 bias", "d", "conv2", strides=[2, 2]),
         node("Add", "shift d", "e", "add"), node("Mul", "e scale", "f", "mul"),
         node("Sub", "one f", "h", "sub"), node("Div", "h scale", "y", "div")],
        [info("x", [1, 4, 7, 7])],
        [info("y", [1, 3, 3, 3])],
        [weight("w1", 6, 2, 3, 3), *statistics("1", 6), weight("w2", 3, 6, 2, 2), weight("bias", 3),
         weight("shift", 1, 3, 1, 1), weight("scale", 3, 1, 1), weight("one", 1)],
    )  # fmt: skip


def _gemm(name: str, source: str, alpha: float) -> list[onnx.NodeProto]:
    return [
        node("Gemm", f"{source} w{name} c{name}", f"p{name}", f"gemm{name}", transB=1, alpha=alpha, beta=2.0)
    ]


def products() -> onnx.ModelProto:
    """Two products with figures of their own that read one tensor, and a third with a scale behind it."""
    return model(
        [*_gemm("1", "x", 0.5), *_gemm("2", "x", 3.0), node("Tanh", "p1", "t1", "tanh1"),
         node("Tanh", "p2", "t2", "tanh2"), node("Concat", "t1 t2", "j", "join", axis=1),
         *_gemm("3", "j", 0.25), node("Mul", "p3 s3", "y", "scaled")],
        [info("x", [4, 6])],
        [info("y", [4, 2])],
        [weight("w1", 5, 6), weight("c1", 5), weight("w2", 3, 6), weight("c2", 3), weight("w3", 2, 8),
         weight("c3", 2), weight("s3", 2)],
    )  # fmt: skip


def attention(opset: int = 20) -> onnx.ModelProto:
    """Queries, keys and values of one tensor, each with a bias, then their products."""
    heads = [
        [
            node("MatMul", f"x w{one}", f"p{one}", f"matmul_{one}"),
            node("Add", f"c{one} p{one}", one, f"bias_{one}"),
        ]
        for one in "qkv"
    ]
    return model(
        [*(one for head in heads for one in head), node("Transpose", "k", "kt", "turn", perm=[0, 2, 1]),
         node("MatMul", "q kt", "s", "scores"), node("MatMul", "s v", "y", "mixed")],
        [info("x", [2, 5, 6])],
        [info("y", [2, 5, 8])],
        [weight(f"{kind}{one}", *of, size) for one, size in _WIDTHS for kind, of in (("w", [6]), ("c", []))],
        opset=opset,
    )  # fmt: skip


_WIDTHS: Final[Sequence[tuple[str, int]]] = (("q", 4), ("k", 4), ("v", 8))


def branches() -> onnx.ModelProto:
    """Three convolutions of one tensor and their activations, joined; one also has a normalisation."""
    return model(
        [node("Relu", "x", "r", "before"),
         node("Conv", "r w1 c1", "p1", "conv1"), node("Relu", "p1", "a1", "relu1"),
         node("Conv", "r w2 c2", "p2", "conv2"), node("BatchNormalization", "p2 g2 b2 m2 v2", "n2", "norm2"),
         node("Relu", "n2", "a2", "relu2"), node("Conv", "r w3 c3", "p3", "conv3"),
         node("Relu", "p3", "a3", "relu3"), node("Concat", "a1 a2 a3", "y", "join", axis=1)],
        [info("x", [2, 3, 4, 4])],
        [info("y", [2, 9, 4, 4])],
        [*(weight(f"w{i}", i + 1, 3, 1, 1) for i in (1, 2, 3)), *(weight(f"c{i}", i + 1) for i in (1, 2, 3)),
         *statistics("2", 3)],
    )  # fmt: skip


def unrolled(steps: int = 3, rows: int = 1, opset: int = 20, *, gemm: bool = True) -> onnx.ModelProto:
    """A recurrent net of two layers, step by step; the tensor that each step reads is an input."""
    nodes, weights, sources = [], [], [f"x{t}" for t in range(steps)]
    product = "Gemm" if gemm else "MatMul"
    for layer, width in enumerate((5, 4)):
        weights += [weight(f"w{layer}", *((4, width) if gemm else (width, 4))), weight(f"u{layer}", 4, 4)]
        weights += [weight(f"h{layer}_", rows, 4), weight(f"b{layer}", 4)]
        state, bias = f"h{layer}_", f" b{layer}" if gemm else ""
        attributes = {"transB": 1, "alpha": 0.5} if gemm else {}
        for t, source in enumerate(sources):
            at = f"{layer}_{t}"
            nodes.append(node(product, f"{source} w{layer}{bias}", f"p{at}", f"input{at}", **attributes))
            if not gemm:
                nodes[-1].output[0] = f"m{at}"
                nodes.append(node("Add", f"b{layer} m{at}", f"p{at}", f"bias{at}"))
            nodes += [
                node("MatMul", f"{state} u{layer}", f"q{at}", f"state{at}"),
                node("Add", f"p{at} q{at}", f"s{at}", f"sum{at}"),
                node("Tanh", f"s{at}", f"h{at}", f"tanh{at}"),
            ]
            sources[t] = state = f"h{at}"
    inputs = [info(f"x{t}", [rows, 5]) for t in range(steps)]
    return model(nodes, inputs, [info(sources[-1], [rows, 4])], weights, opset=opset)


def heads(images: int = 2, opset: int = 20) -> onnx.ModelProto:
    """Attention of two heads: queries, keys, values and what is mixed are turned, as exporters write it."""
    nodes, weights = [], [weight("wo", 6, 6)]
    for one, order in (("q", [0, 2, 1, 3]), ("k", [0, 2, 3, 1]), ("v", [0, 2, 1, 3])):
        nodes += [
            node("MatMul", f"x w{one}", f"p{one}", f"matmul_{one}"),
            node("Reshape", f"p{one} heads", f"r{one}", f"heads_{one}"),
            node("Transpose", f"r{one}", one, f"turn_{one}", perm=order),
        ]
        weights.append(weight(f"w{one}", 6, 6))
    nodes += [
        node("MatMul", "q k", "s", "scores"),
        node("Softmax", "s", "a", "softmax", axis=-1),
        node("MatMul", "a v", "m", "mixed"),
        node("Transpose", "m", "t", "turn_m", perm=[0, 2, 1, 3]),
        node("Reshape", "t whole", "f", "flat"),
        node("MatMul", "f wo", "y", "out"),
    ]
    shapes = {"heads": [images, 5, 2, 3], "whole": [images, 5, 6]}
    weights += [onnx.numpy_helper.from_array(np.array(one), name) for name, one in shapes.items()]
    return model(nodes, [info("x", [images, 5, 6])], [info("y", [images, 5, 6])], weights, opset=opset)


def flat_heads() -> onnx.ModelProto:
    """Heads are the batch of products: views of Transposes drop the axis of one image, and add it."""
    nodes, shapes = [], {"heads": [1, 5, 2, 3], "flat": [2, 5, 3], "apart": [1, 2, 5, 3], "whole": [1, 5, 6]}
    for one in "qkv":
        nodes += [
            node("Reshape", f"{one} heads", f"r{one}", f"heads_{one}"),
            node("Transpose", f"r{one}", f"t{one}", f"turn_{one}", perm=[0, 2, 1, 3]),
            node("Reshape", f"t{one} flat", f"f{one}", f"flat_{one}"),
        ]
    nodes += [
        node("Transpose", "fk", "kt", "turn_kt", perm=[0, 2, 1]),
        node("MatMul", "fq kt", "s", "scores"),
        node("MatMul", "s fv", "m", "mixed"),
        node("Reshape", "m apart", "a", "apart_m"),
        node("Transpose", "a", "t", "turn_m", perm=[0, 2, 1, 3]),
        node("Reshape", "t whole", "y", "whole_m"),
    ]
    weights = [onnx.numpy_helper.from_array(np.array(one), name) for name, one in shapes.items()]
    return model(nodes, [info(one, [1, 5, 6]) for one in "qkv"], [info("y", [1, 5, 6])], weights)


def negated() -> onnx.ModelProto:
    """Constants less what products make: alone, and behind a shift."""
    return model(
        [node("Conv", "x w1", "a", "conv1"), node("Sub", "one a", "b", "less1"),
         node("Conv", "b w2 c2", "d", "conv2"),
         node("Add", "d shift", "e", "add2"), node("Sub", "one e", "y", "less2")],
        [info("x", [1, 2, 3, 3])],
        [info("y", [1, 4, 3, 3])],
        [weight("w1", 3, 2, 1, 1), weight("w2", 4, 3, 1, 1), weight("c2", 4), weight("one", 1),
         weight("shift", 4, 1, 1)],
    )  # fmt: skip


MODELS: Final = {
    "negated": negated,
    "heads": heads,
    "heads, flat": flat_heads,
    "heads, one image": lambda: heads(1),
    "convolutions": convolutions,
    "products": products,
    "attention": attention,
    "branches": branches,
    "unrolled": unrolled,
    "unrolled, rows": lambda: unrolled(4, 2, gemm=False),
}


def random_siblings(seed: int) -> onnx.ModelProto:
    """Products of one tensor, each with some ops behind it, which the host reads."""
    rng = np.random.default_rng(seed)
    kind = str(rng.choice(["Conv", "Gemm", "MatMul"]))
    inner, rows = int(rng.integers(2, 5)), int(rng.integers(2, 5))
    groups = int(rng.choice([1, 1, 2])) if kind == "Conv" else 1
    source = {"Conv": [2, inner * groups, rows, 4], "Gemm": [rows, inner], "MatMul": [2, rows, inner]}[kind]
    padded = {"pads": [1, 0, 1, 0], "strides": [2, 1]} if rng.random() < 0.5 else {}
    of_gemm = {"transB": int(rng.integers(2))}
    attributes = {"Conv": {"group": groups, **padded}, "Gemm": of_gemm, "MatMul": {}}[kind]
    has_bias, behind = kind != "MatMul" and rng.random() < 0.5, rng.choice(_BEHIND, int(rng.integers(4)))
    nodes, outputs, weights = [], [], []
    for i in range(int(rng.integers(1, 4))):
        columns = groups * int(rng.integers(2, 4))
        shape = [inner, columns]
        if kind == "Conv":
            shape = [columns, inner, 2, 2]
        elif attributes.get("transB"):
            shape = shape[::-1]
        weights += [weight(f"w{i}", *shape), *([weight(f"c{i}", columns)] if has_bias else [])]
        read = f"x w{i} c{i}" if has_bias else f"x w{i}"
        nodes.append(node(kind, read, f"p{i}", f"product{i}", **attributes))
        last = f"p{i}"
        given = [str(one) for one in (behind if rng.random() < 0.8 else rng.permutation(behind))]
        for j, op_type in enumerate(given):
            made, name = f"t{i}_{j}", f"op{i}_{j}"
            along = [columns, 1, 1] if kind == "Conv" else [columns]
            weights.append(weight(f"s{i}_{j}", *(along if rng.random() < 0.8 else [1])))
            pair = f"{last} s{i}_{j}" if op_type == "Div" or rng.random() < 0.5 else f"s{i}_{j} {last}"
            nodes.append(node(op_type, last if op_type in ("Relu", "Tanh") else pair, made, name))
            last = made
        outputs.append(last)
    made_model = model(nodes, [info("x", source)], [], weights)
    del made_model.graph.output[:]
    inferred = onnx.shape_inference.infer_shapes(made_model)
    known = {value.name: value for value in inferred.graph.value_info}
    made_model.graph.output.extend(known[name] for name in outputs)
    return made_model


def random_unrolled(seed: int) -> onnx.ModelProto:
    """Products of one weight: of inputs, of each other, and of what other products wrote."""
    rng = np.random.default_rng(seed)
    gemm, size, images = bool(rng.random() < 0.5), int(rng.integers(2, 4)), int(rng.choice([1, 2]))
    weights = [weight("w", size, size), weight("v", size, size), weight("b", size)]
    rank = 2 if gemm else int(rng.choice([2, 3]))
    known, inputs, nodes = [], [], []
    for i in range(int(rng.integers(2, 5))):
        rows = int(rng.integers(1, 4)) if images == 2 else 1
        known.append((f"x{i}", rows))
        inputs.append(info(f"x{i}", [*[2] * (rank - 2), rows, size]))
    for i in range(int(rng.integers(2, 9))):
        name, rows = known[int(rng.integers(len(known)))]
        kind = rng.choice(["Tanh", "Mul", "product", "product", "product"])
        if kind != "product":
            nodes.append(node(kind, name if kind == "Tanh" else f"b {name}", f"t{i}", f"op{i}"))
        else:
            read = f"{name} {rng.choice(['w', 'w', 'v'])}" + " b" * (gemm and rng.random() < 0.5)
            nodes.append(node("Gemm" if gemm else "MatMul", read, f"t{i}", f"product{i}"))
        known.append((f"t{i}", rows))
    outputs = [info(name, [*[2] * (rank - 2), rows, size]) for name, rows in known if name[0] == "t"]
    used = {name for one in nodes for name in one.input}
    return model(nodes, [one for one in inputs if one.name in used], outputs, weights)


def random_turns(seed: int) -> onnx.ModelProto:
    """A product of two tensors, or of a tensor and a weight, and Transposes around it."""
    rng = np.random.default_rng(seed)
    sizes = dict(zip("bcijk", rng.integers(1, 4, 5).tolist(), strict=True))
    batch, has_weight = str(rng.choice(["", "b", "bc"])), bool(rng.random() < 0.3)
    terms = {"x": f"{batch}ik", "z": "kj" if has_weight else f"{batch}kj", "y": f"{batch}ij"}
    nodes, inputs, weights, read = [], [], [], []
    for name in "xz":
        order = rng.permutation(len(terms[name])).tolist()
        shape = [sizes[terms[name][axis]] for axis in order]
        if has_weight and name == "z":
            weights.append(weight("z", *(sizes[one] for one in terms["z"])))
            read.append("z")
            continue
        inputs.append(info(name, shape))
        if rng.random() < 0.3:
            nodes.append(node("Relu", name, f"r{name}", f"relu_{name}"))
        is_turned = rng.random() < 0.8 or order != sorted(order)
        source = f"r{name}" if nodes and nodes[-1].output[0] == f"r{name}" else name
        if is_turned:
            perm = np.argsort(order).tolist()
            nodes.append(node("Transpose", source, f"t{name}", f"turn_{name}", perm=perm))
        read.append(f"t{name}" if is_turned else source)
    nodes.append(node("MatMul", " ".join(read), "p", "product"))
    perm = rng.permutation(len(terms["y"])).tolist()
    nodes.append(node("Transpose", "p", "y", "turn_y", perm=perm))
    outputs = [info("y", [sizes[terms["y"][axis]] for axis in perm])]
    if rng.random() < 0.2:
        outputs.append(info("p", [sizes[one] for one in terms["y"]]))
    return model(nodes, inputs, outputs, weights)


_BEHIND: Final = ("Add", "Mul", "Sub", "Div", "Relu", "Tanh")
