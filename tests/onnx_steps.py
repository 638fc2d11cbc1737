"""Training steps as ONNX models: a forward pass, the nodes of its gradients, and Adam's updates.

Weights and moments are initializers; the next value of ``NAME`` is the output ``NAME_next``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Final

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from tests.exports import info, model

STATES: Final = {"*": "*_next"}  # as of ``--state '*=*_next'``
_RATE: Final = {"rate": 0.01, "first": 0.9, "second": 0.99, "least": 1e-2}  # of Adam
_Gradients = Callable[[str], Sequence[tuple[str, str]]]  # of a result: those of the operands, by name


class Tape:
    """Nodes with the shapes of their results, and how gradients go back through them."""

    def __init__(self, seed: int = 0) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.shape: dict[str, tuple[int, ...]] = {}
        self.values: dict[str, NDArray] = {}  # of initializers
        self.inputs: dict[str, tuple[tuple[int, ...], int]] = {}
        self.weights: list[str] = []
        self._back: list[tuple[str, _Gradients]] = []
        self._random = np.random.default_rng(seed)

    def input(self, name: str, *shape: int, elem_type: int = TensorProto.FLOAT) -> str:
        self.shape[name], self.inputs[name] = shape, (shape, elem_type)
        return name

    def weight(self, name: str, *shape: int) -> str:
        scale = 1.0 / math.sqrt(math.prod(shape[:-1]) or 1)
        self.weights.append(name)
        return self.constant(name, (self._random.normal(size=shape) * scale).astype(np.float32))

    def constant(self, name: str, value: NDArray) -> str:
        self.values[name], self.shape[name] = value, value.shape
        return name

    def op(self, op_type: str, reads: str, shape: Sequence[int], **attributes: object) -> str:
        """A node without a gradient; its name is that of its result."""
        name = f"{op_type}.{len(self.nodes)}"
        self.nodes.append(helper.make_node(op_type, reads.split(), [name], name=name, **attributes))
        self.shape[name] = tuple(shape)
        return name

    def _then(self, result: str, gradients: _Gradients) -> str:
        self._back.append((result, gradients))
        return result

    def reshape(self, x: str, *shape: int) -> str:
        before = self.shape[x]

        def made(of: str, sizes: Sequence[int]) -> str:
            name = self.constant(f"shape.{len(self.nodes)}", np.array(sizes, np.int64))
            return self.op("Reshape", f"{of} {name}", sizes)

        return self._then(made(x, shape), lambda g: [(x, made(g, before))])

    def transpose(self, x: str, *perm: int) -> str:
        def made(of: str, order: Sequence[int]) -> str:
            return self.op("Transpose", of, [self.shape[of][i] for i in order], perm=list(order))

        return self._then(made(x, perm), lambda g: [(x, made(g, np.argsort(perm).tolist()))])

    def matmul(self, a: str, b: str) -> str:
        """[..., m, k] times [k, n] or [..., k, n]."""

        def product(x: str, y: str) -> str:
            return self.op("MatMul", f"{x} {y}", (*self.shape[x][:-1], self.shape[y][-1]))

        def turned(x: str) -> str:
            order = [*range(len(self.shape[x]) - 2), len(self.shape[x]) - 1, len(self.shape[x]) - 2]
            return self.op("Transpose", x, [self.shape[x][i] for i in order], perm=order)

        def gradients(g: str) -> Sequence[tuple[str, str]]:
            of_a = product(g, turned(b))
            rows, upper = a, g
            if len(self.shape[b]) == 2 < len(self.shape[a]):  # a sum over all rows
                number = math.prod(self.shape[a][:-1])
                rows, upper = (self._flat(x, number) for x in (a, g))
            return [(a, of_a), (b, product(turned(rows), upper))]

        return self._then(product(a, b), gradients)

    def _flat(self, x: str, rows: int) -> str:
        name = self.constant(f"shape.{len(self.nodes)}", np.array([rows, self.shape[x][-1]], np.int64))
        return self.op("Reshape", f"{x} {name}", (rows, self.shape[x][-1]))

    def add(self, a: str, b: str) -> str:
        shape = np.broadcast_shapes(self.shape[a], self.shape[b])
        result = self.op("Add", f"{a} {b}", shape)
        return self._then(result, lambda g: [(a, self._summed(g, a)), (b, self._summed(g, b))])

    def mul(self, a: str, b: str) -> str:
        shape = np.broadcast_shapes(self.shape[a], self.shape[b])

        def times(x: str, y: str) -> str:
            return self.op("Mul", f"{x} {y}", shape)

        return self._then(
            times(a, b),
            lambda g: [(a, self._summed(times(g, b), a)), (b, self._summed(times(g, a), b))],
        )

    def _summed(self, gradient: str, of: str) -> str:
        """A gradient, summed over what broadcasting has repeated."""
        shape, wanted = self.shape[gradient], self.shape[of]
        axes = [i for i, n in enumerate(shape) if i < len(shape) - len(wanted)]
        behind = len(shape) - len(wanted)
        kept = [behind + i for i, n in enumerate(wanted) if n == 1 != shape[behind + i]]
        if kept:
            gradient = self.reduce("ReduceSum", gradient, kept, keepdims=1)
        return self.reduce("ReduceSum", gradient, axes, keepdims=0) if axes else gradient

    def reduce(self, op_type: str, x: str, axes: Sequence[int], *, keepdims: int) -> str:
        """Without a gradient."""
        name = self.constant(f"axes.{len(self.nodes)}", np.array(axes, np.int64))
        sizes = [1 if i in axes else n for i, n in enumerate(self.shape[x]) if keepdims or i not in axes]
        return self.op(op_type, f"{x} {name}", sizes, keepdims=keepdims)

    def mean(self, x: str, *axes: int) -> str:
        """With the axes kept; by a sum, of which parts of a batch have terms."""
        number = math.prod(self.shape[x][i] for i in axes)
        share = self.constant(f"share.{len(self.nodes)}", np.float32(1.0 / number))
        total = self.reduce("ReduceSum", x, axes, keepdims=1)
        result = self.op("Mul", f"{total} {share}", self.shape[total])

        def gradients(g: str) -> Sequence[tuple[str, str]]:
            shape = self.constant(f"shape.{len(self.nodes)}", np.array(self.shape[x], np.int64))
            part = self.op("Mul", f"{g} {share}", self.shape[g])
            return [(x, self.op("Expand", f"{part} {shape}", self.shape[x]))]

        return self._then(result, gradients)

    def relu(self, x: str) -> str:
        result, shape = self.op("Relu", x, self.shape[x]), self.shape[x]

        def gradients(g: str) -> Sequence[tuple[str, str]]:
            sign = self.op("Sign", result, shape)
            return [(x, self.op("Mul", f"{g} {sign}", shape))]

        return self._then(result, gradients)

    def reciprocal_root(self, x: str) -> str:
        """(x + 1e-5) ** -0.5"""
        shape, least = self.shape[x], self.constant("least", np.float32(1e-5))
        result = self.op("Reciprocal", self.op("Sqrt", self.op("Add", f"{x} {least}", shape), shape), shape)
        half = self.constant("half", np.float32(-0.5))

        def gradients(g: str) -> Sequence[tuple[str, str]]:
            cube = self.op("Mul", f"{result} {self.op('Mul', f'{result} {result}', shape)}", shape)
            return [(x, self.op("Mul", f"{g} {self.op('Mul', f'{cube} {half}', shape)}", shape))]

        return self._then(result, gradients)

    def normalized(self, x: str, *axes: int) -> str:
        """x less its mean, by its deviation."""
        minus = self.constant("minus", np.float32(-1.0))
        centred = self.add(x, self.mul(self.mean(x, *axes), minus))
        return self.mul(centred, self.reciprocal_root(self.mean(self.mul(centred, centred), *axes)))

    def softmax(self, x: str) -> str:
        shape, result = self.shape[x], self.op("Softmax", x, self.shape[x], axis=-1)

        def gradients(g: str) -> Sequence[tuple[str, str]]:
            product = self.op("Mul", f"{g} {result}", shape)
            share = self.reduce("ReduceSum", product, [len(shape) - 1], keepdims=1)
            rest = self.op("Mul", f"{result} {share}", shape)
            return [(x, self.op("Sub", f"{product} {rest}", shape))]

        return self._then(result, gradients)

    def conv(self, x: str, w: str) -> str:
        """[batch, channels, height, width] by [channels, channels, 3, 3], padded by one."""
        shape = (self.shape[x][0], self.shape[w][0], *self.shape[x][2:])
        result = self.op("Conv", f"{x} {w}", shape, pads=[1] * 4, kernel_shape=[3, 3])

        def gradients(g: str) -> Sequence[tuple[str, str]]:
            to_x = self.op("ConvTranspose", f"{g} {w}", self.shape[x], pads=[1] * 4, kernel_shape=[3, 3])
            # Channels are the batch of the gradient of the weight.
            planes = self.transposed(x), self.transposed(g)
            sizes = list(shape[2:])
            product = self.op(
                "Conv", " ".join(planes), (self.shape[x][1], shape[1], 3, 3), pads=[1] * 4, kernel_shape=sizes
            )
            return [(x, to_x), (w, self.transposed(product))]

        return self._then(result, gradients)

    def transposed(self, x: str) -> str:
        """With the first two axes exchanged; without a gradient."""
        first, second, *rest = self.shape[x]
        return self.op("Transpose", x, (second, first, *rest), perm=[1, 0, 2, 3])

    def gathered(self, table: str, ids: str) -> str:
        shape = (*self.shape[ids], self.shape[table][-1])
        result = self.op("Gather", f"{table} {ids}", shape)

        def gradients(g: str) -> Sequence[tuple[str, str]]:
            rows, width = math.prod(self.shape[ids]), shape[-1]
            upper = self._flat(g, rows)
            sizes = self.constant(f"shape.{len(self.nodes)}", np.array([rows, 1], np.int64))
            places = self.op("Reshape", f"{ids} {sizes}", (rows, 1))
            zeros = self.constant(f"zeros.{table}", np.zeros(self.shape[table], np.float32))
            added = self.op("ScatterND", f"{zeros} {places} {upper}", self.shape[table], reduction="add")
            assert self.shape[added] == (self.shape[table][0], width)
            return [(table, added)]

        return self._then(result, gradients)

    def cross_entropy(self, logits: str, labels: str) -> str:
        """The mean over rows, with labels as shares of the classes."""
        shape = self.shape[logits]
        rows = self.constant("rows", np.float32(-1.0 / math.prod(shape[:-1])))
        logs = self.op("LogSoftmax", logits, shape, axis=-1)
        chosen = self.op("Mul", f"{logs} {labels}", shape)
        total = self.reduce("ReduceSum", chosen, range(len(shape)), keepdims=0)
        loss = self.op("Mul", f"{total} {rows}", ())

        def gradients(g: str) -> Sequence[tuple[str, str]]:
            shares = self.op("Softmax", logits, shape, axis=-1)
            rest = self.op("Sub", f"{labels} {shares}", shape)
            return [(logits, self.op("Mul", f"{rest} {rows}", shape))]

        return self._then(loss, gradients)

    def model(self, loss: str) -> onnx.ModelProto:
        """The step: the loss, and the next value of each weight and of its two moments."""
        gradient = {loss: ""}
        for result, gradients in reversed(self._back):
            for name, part in gradients(gradient[result]) if result in gradient else ():
                if name in self.inputs or (name in self.values and name not in self.weights):
                    continue
                before = gradient.get(name)
                gradient[name] = (
                    part if before is None else self.op("Add", f"{before} {part}", self.shape[name])
                )
        outputs = [helper.make_node("Identity", [loss], ["loss"], name="loss")]
        following: dict[str, str] = {"loss": "loss"}
        for name in self.weights:
            following |= self._updated(name, gradient[name])
        for name, of in following.items():
            if name != "loss":
                outputs.append(helper.make_node("Identity", [of], [f"{name}_next"], name=f"{name}_next"))
        ends = [
            info("loss", ()),
            *(info(f"{name}_next", self.shape[name]) for name in following if name != "loss"),
        ]
        return model(
            [*self.nodes, *outputs],
            [info(name, shape, elem_type) for name, (shape, elem_type) in self.inputs.items()],
            ends,
            [numpy_helper.from_array(np.asarray(value), name) for name, value in self.values.items()],
        )

    def _updated(self, name: str, gradient: str) -> Mapping[str, str]:
        shape = self.shape[name]
        for key, value in _RATE.items():
            self.constant(key, np.float32(value))
        self.constant("1-first", np.float32(1 - _RATE["first"]))
        self.constant("1-second", np.float32(1 - _RATE["second"]))
        first, second = (self.constant(f"{name}.{i}", np.zeros(shape, np.float32)) for i in (1, 2))

        def op(op_type: str, *reads: str) -> str:
            return self.op(op_type, " ".join(reads), shape)

        first_next = op("Add", op("Mul", first, "first"), op("Mul", gradient, "1-first"))
        squares = op("Mul", gradient, gradient)
        second_next = op("Add", op("Mul", second, "second"), op("Mul", squares, "1-second"))
        deviation = op("Add", op("Sqrt", second_next), "least")
        change = op("Mul", op("Div", first_next, deviation), "rate")
        return {name: op("Sub", name, change), first: first_next, second: second_next}


def mlp(rows: int, *widths: int) -> onnx.ModelProto:
    """Dense layers with ReLU between them."""
    tape = Tape()
    x, labels = tape.input("x", rows, widths[0]), tape.input("labels", rows, widths[-1])
    for i, width in enumerate(widths[1:]):
        x = tape.add(tape.matmul(x, tape.weight(f"w{i}", widths[i], width)), tape.weight(f"b{i}", width))
        x = x if i == len(widths) - 2 else tape.relu(x)
    return tape.model(tape.cross_entropy(x, labels))


def conv_net(images: int, size: int, *channels: int, classes: int = 5) -> onnx.ModelProto:
    """Convolutions of three by three, each with a batch norm; the mean of the last plane."""
    tape = Tape()
    x = tape.input("x", images, channels[0], size, size)
    labels = tape.input("labels", images, classes)
    for i, width in enumerate(channels[1:]):
        y = tape.normalized(tape.conv(x, tape.weight(f"w{i}", width, channels[i], 3, 3)), 0, 2, 3)
        x = tape.relu(tape.mul(y, tape.weight(f"s{i}", width, 1, 1)))
    x = tape.reshape(tape.mean(x, 2, 3), images, channels[-1])
    return tape.model(tape.cross_entropy(tape.matmul(x, tape.weight("head", channels[-1], classes)), labels))


def transformer(
    sequences: int, length: int, width: int, heads: int, words: int, layers: int = 1
) -> onnx.ModelProto:
    """Attention and a dense layer, each behind a layer norm; labels as shares of the words."""
    tape, each = Tape(), width // heads
    by_head = sequences, length, heads, each
    ids = tape.input("ids", sequences, length, elem_type=TensorProto.INT64)
    labels = tape.input("labels", sequences, length, words)
    x = tape.gathered(tape.weight("table", words, width), ids)
    scale = tape.constant("scale", np.float32(each**-0.5))
    for i in range(layers):
        y = tape.mul(tape.normalized(x, 2), tape.weight(f"n{i}.1", width))
        rows = [
            tape.transpose(
                tape.reshape(tape.matmul(y, tape.weight(f"{one}{i}", width, width)), *by_head), 0, 2, 1, 3
            )
            for one in "qkv"
        ]  # fmt: skip
        scores = tape.mul(tape.matmul(rows[0], tape.transpose(rows[1], 0, 1, 3, 2)), scale)
        mixed = tape.matmul(tape.softmax(scores), rows[2])
        mixed = tape.reshape(tape.transpose(mixed, 0, 2, 1, 3), sequences, length, width)
        x = tape.add(x, tape.matmul(mixed, tape.weight(f"o{i}", width, width)))
        y = tape.mul(tape.normalized(x, 2), tape.weight(f"n{i}.2", width))
        up = tape.relu(tape.matmul(y, tape.weight(f"up{i}", width, 4 * width)))
        x = tape.add(x, tape.matmul(up, tape.weight(f"down{i}", 4 * width, width)))
    return tape.model(tape.cross_entropy(tape.matmul(x, tape.weight("head", width, words)), labels))
