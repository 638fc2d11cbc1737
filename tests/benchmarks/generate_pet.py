"""Rewrites that are right inside a box, with a correction of the rest (PET, Wang et al., OSDI 2021).

Run: PYTHONPATH=. python tests/benchmarks/generate_pet.py

The candidates join the images of a batch side by side and convolve them as one. An output is right where its
taps read the same as before, so the box of right outputs follows from the access map: output i reads elements
``stride i + dilation k - pad`` of its image, for taps k. What is left of the box and right of it is computed
anew from the slices that its access maps name. All convolutions of small sizes are enumerated and evaluated
over two prime fields: asserts that a joined one is right inside the box, that corrections make it right
everywhere, and that a box larger by one output at a side that has a rest is wrong.

Then what this is worth: seconds of all kernels, each op as one, of a convolution as sent; of the joined one
alone, as if layouts and corrections took no time; and of all that replaces it.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Final, NamedTuple

import numpy as np
import onnx
import onnxruntime as ort
from numpy.typing import NDArray

import go_opt
from go_opt.env import cost_tables, load_target
from go_opt.env.kernels.numbering import kernel_seconds
from tests.benchmarks.measuring import header, row

PRIMES: Final = (2**31 - 1, 2**31 - 19)
# Images, channels read and written, rows and columns: as of ResNet, from the first to the last stage.
SHAPES: Final = ((8, 64, 64, 56), (8, 128, 128, 28), (8, 256, 256, 14), (8, 512, 512, 7), (32, 512, 512, 7))
TARGETS: Final = ("mcm-6x6", "h100-sxm-1", "gpu-2")
Images = NDArray[np.int64]  # [images, columns]


class Conv(NamedTuple):
    """A convolution along columns with as many outputs as columns, over the stride."""

    columns: int
    taps: int
    stride: int
    dilation: int
    pad: int

    @property
    def outputs(self) -> int:
        return self.columns // self.stride

    @property
    def reach(self) -> int:
        """How far the last tap is behind the first."""
        return self.dilation * (self.taps - 1)

    @property
    def box(self) -> tuple[int, int]:
        """The outputs, first and behind the last, whose taps all lie in their image, by the access map."""
        first = -(-self.pad // self.stride)
        behind = (self.columns - 1 - self.reach + self.pad) // self.stride + 1
        return min(first, self.outputs), min(max(behind, first), self.outputs)


def convs(most_columns: int = 8) -> Iterator[Conv]:
    for columns, taps, stride, dilation in itertools.product(
        range(2, most_columns + 1), (2, 3, 4, 5), (1, 2), (1, 2)
    ):
        pads = range(dilation * (taps - 1) + 1)
        yield from (Conv(columns, taps, stride, dilation, pad) for pad in pads if columns % stride == 0)


def convolved(x: Images, weight: Images, conv: Conv, outputs: range, prime: int) -> Images:
    """Some outputs [images, O] of each row of ``x`` [images, C]; elements outside are zero."""
    at = (
        conv.stride * np.arange(outputs.start, outputs.stop)[:, None]
        + conv.dilation * np.arange(conv.taps)
        - conv.pad
    )
    is_inside = (at >= 0) & (at < x.shape[1])
    read = np.where(is_inside, x[:, np.clip(at, 0, x.shape[1] - 1)], 0)
    return (read * weight % prime).sum(2) % prime


def joined(x: Images, weight: Images, conv: Conv, prime: int) -> Images:
    """All images side by side, convolved as one: the output of each is where its columns are."""
    one = x.reshape(1, -1)
    return convolved(one, weight, conv, range(len(x) * conv.outputs), prime).reshape(len(x), conv.outputs)


def corrected(x: Images, weight: Images, conv: Conv, prime: int) -> Images:
    """The joined result, but outside of the box what slices of each image give."""
    first, behind = conv.box
    made = joined(x, weight, conv, prime)
    left = x[:, : max(conv.stride * (first - 1) + conv.reach - conv.pad + 1, 1)]
    made[:, :first] = convolved(left, weight, conv, range(first), prime)
    # The slice begins at a column of the first output that is left, so that its taps read as before.
    cut = max(conv.stride * behind - conv.pad, 0)
    shifted = conv._replace(pad=conv.pad + cut)
    made[:, behind:] = convolved(x[:, cut:], weight, shifted, range(behind, conv.outputs), prime)
    return made


def check(conv: Conv, images: int) -> bool:
    """Assert what holds of a candidate; whether it needs a correction."""
    first, behind = conv.box
    for field, prime in enumerate(PRIMES):
        rng = np.random.default_rng(field)
        x, weight = rng.integers(1, prime, (images, conv.columns)), rng.integers(1, prime, conv.taps)
        right = convolved(x, weight, conv, range(conv.outputs), prime)
        wrong = (joined(x, weight, conv, prime) != right).any(axis=0)
        assert not wrong[first:behind].any(), conv
        assert first == 0 or first == conv.outputs or wrong[first - 1], conv
        assert behind in (conv.outputs, first) or wrong[behind], conv
        assert (corrected(x, weight, conv, prime) == right).all(), conv
    return behind - first < conv.outputs


def model_of(images: int, read: int, written: int, size: int, way: str) -> onnx.ModelProto:
    """A 3 x 3 convolution as sent, the joined one alone, or all that replaces it."""
    helper, rng = onnx.helper, np.random.default_rng(0)
    pads = {"pads": [1, 1, 1, 1]}
    shape = [1, read, size, images * size] if way == "joined" else [images, read, size, size]
    nodes = [helper.make_node("Conv", ["x", "w"], ["y"], "conv", **pads)]
    constants = {"w": rng.normal(size=(written, read, 3, 3)).astype(np.float32)}
    if way == "corrected":
        turned, back = [1, read, size, images * size], [written, size, images, size]
        constants |= {"one": np.array(turned), "apart": np.array(back)}
        constants |= {"two": np.array([2]), "axis": np.array([3]), "zero": np.array([0])}
        constants |= {"last": np.array([size - 1]), "before": np.array([size - 2]), "end": np.array([size])}
        constants |= {"first": np.array([1])}
        rows: list[tuple[str, str, str, dict]] = [
            ("Transpose", "x", "xt", {"perm": [1, 2, 0, 3]}), ("Reshape", "xt one", "xs", {}),
            ("Conv", "xs w", "ys", pads), ("Reshape", "ys apart", "yt", {}),
            ("Transpose", "yt", "yn", {"perm": [2, 0, 1, 3]}), ("Slice", "yn first last axis", "middle", {}),
            ("Slice", "x zero two axis", "xl", {}), ("Conv", "xl w", "left", {"pads": [1, 1, 1, 0]}),
            ("Slice", "x before end axis", "xr", {}), ("Conv", "xr w", "right", {"pads": [1, 0, 1, 1]}),
            ("Concat", "left middle right", "y", {"axis": 3}),
        ]  # fmt: skip
        nodes = [helper.make_node(op, a.split(), [b], b, **named) for op, a, b, named in rows]
    float32 = onnx.TensorProto.FLOAT
    given = helper.make_tensor_value_info("x", float32, shape)
    result = helper.make_tensor_value_info("y", float32, [shape[0], written, *shape[2:]])
    weights = [onnx.numpy_helper.from_array(array, name) for name, array in constants.items()]
    graph = helper.make_graph(nodes, way, [given], [result], weights)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    onnx.checker.check_model(model, full_check=True)
    return model


def check_models() -> None:
    """Assert that ONNX Runtime computes the same by what replaces a convolution."""
    x = np.random.default_rng(0).normal(size=(3, 4, 6, 6)).astype(np.float32)
    models = (model_of(3, 4, 5, 6, way).SerializeToString() for way in ("as sent", "corrected"))
    one, two = (ort.InferenceSession(model).run(None, {"x": x})[0] for model in models)
    assert np.abs(one - two).max() <= 1e-5 * np.abs(one).max()


def main() -> None:
    checked = [check(conv, images) for conv in convs() for images in (2, 3)]
    check_models()
    print(f"{len(checked)} candidates, {sum(checked)} need a correction; all are right with it")
    header(["convolution", "on", "as sent, us", "joined, us", "corrected, us", "gain", "at most"], texts=2)
    for shape in SHAPES:
        for name in TARGETS:
            seconds = []
            for way in ("as sent", "joined", "corrected"):
                graph = go_opt.from_onnx(model_of(*shape, way))
                each = np.arange(graph.num_ops, dtype=np.int32)
                seconds.append(
                    float(kernel_seconds(cost_tables(graph, load_target(name)), each).min(axis=0).sum())
                )
            figures = [
                *(f"{1e6 * one:.2f}" for one in seconds),
                *(f"{seconds[0] / one:.3f}" for one in seconds[:0:-1]),
            ]
            row([" x ".join(map(str, shape)), name, *figures])


if __name__ == "__main__":
    main()
