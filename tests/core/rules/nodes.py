"""Small random nodes of every op type that has a sharding rule."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import numpy as np
import scipy.special

from tests.core.rules.parts import LATEST, Array, Attributes, Node, Operands, Run, reference

Rng = np.random.Generator
Shape = Sequence[int]
Make = Callable[[Rng, str], Node]


def pick(rng: Rng, items: Sequence[Any]) -> Any:
    return items[int(rng.integers(len(items)))]


def flip(rng: Rng, chance: float = 0.5) -> bool:
    return bool(rng.random() < chance)


def shape_of(rng: Rng, least: int = 1, most: int = 3, size: int = 4) -> list[int]:
    return [int(n) for n in rng.integers(1, size + 1, int(rng.integers(least, most + 1)))]


def ints(rng: Rng, shape: Shape, low: int = -99, high: int = 100) -> Array:
    """Whole numbers as floats: sums and products of a few are exact."""
    return rng.integers(low, high, tuple(shape)).astype(np.float64)


def reals(rng: Rng, shape: Shape, low: float = 0.1, high: float = 0.9) -> Array:
    return rng.uniform(low, high, tuple(shape))


def narrowed(rng: Rng, shape: Shape) -> list[int]:
    """A shape that is broadcast to one."""
    return [size if flip(rng, 0.7) else 1 for size in shape][int(rng.integers(0, len(shape) + 1)) :]


def of_numpy(function: Callable[..., Array]) -> Run:
    return lambda operands, attributes: [np.asarray(function(*operands, **attributes))]


# ------------------------------------------------------------------ element by element


def _gelu(x: Array) -> Array:
    return np.asarray(x * scipy.special.ndtr(x))


def _quantised(y: Array, scale: Array, zero: Array) -> Array:
    return np.asarray(np.clip(np.rint(y / scale) + zero, -128, 127))


def _dequantised(x: Array, scale: Array, zero: Array) -> Array:
    return (x - zero) * scale


def _biased(x: Array, bias: Array, *rest: Array) -> Array:
    return x + bias + (rest[0] if rest else 0)


def _of_quantised(function: Callable[..., Array]) -> Callable[..., Array]:
    """An op of one or two operands, each with scale and zero point, as those of the result are."""

    def run(*operands: Array) -> Array:
        values = [_dequantised(*operands[i : i + 3]) for i in range(0, len(operands) - 2, 3)]
        return _quantised(function(*values), *operands[-2:])

    return run


# Operands: f has the shape of the result, b is broadcast to it, c is along its last axis, s is one number.
_BY_NUMPY: Final[Mapping[str, tuple[str, Callable[..., Array]]]] = {
    "BiasAdd": ("fcf", _biased),
    "BiasDropout": ("fcfs", _biased),
    "BiasGelu": ("fc", lambda x, b: _gelu(x + b)),
    "DequantizeWithOrder": ("fs", lambda x, scale: x * scale),
    "FastGelu": ("fc", lambda x, b: _gelu(x + b)),
    "Mean": ("bbb", lambda x, y, z: (x + y + z) / 3),
    "QLinearAdd": ("fssbssss", _of_quantised(np.add)),
    "QLinearLeakyRelu": ("fssss", _of_quantised(np.abs)),
    "QLinearMul": ("fssbssss", _of_quantised(np.multiply)),
    "QLinearSigmoid": ("fssss", _of_quantised(scipy.special.expit)),
    "QLinearWhere": (
        "bfssbssss",
        lambda c, *rest: _of_quantised(lambda x, y: np.asarray(np.where(c > 0, x, y)))(*rest),
    ),
    "QOrderedGelu": ("fss", lambda x, scale, to: _gelu(x * scale) / to),
    "QuantizeWithOrder": ("fs", lambda x, scale: np.rint(x / scale)),
    "QuickGelu": ("f", lambda x: x * scipy.special.expit(1.702 * x)),
    "Rsqrt": ("f", lambda x: 1 / np.sqrt(x)),
    "addcdiv": ("bbb", lambda x, y, z: x + y / z),
    "addcmul": ("bbb", lambda x, y, z: x + y * z),
    "clz": ("f", lambda x: np.floor(np.log2(x))),
    "complex": ("ff", lambda x, y: x + 1j * y),
    "conj": ("f", lambda x: np.conj(x * 1j)),
    "digamma": ("f", scipy.special.digamma),
    "erf_inv": ("f", scipy.special.erfinv),
    "hypot": ("bb", np.hypot),
    "imag": ("f", lambda x: np.imag(x * 1j)),
    "lerp": ("bbb", lambda x, y, z: x + z * (y - x)),
    "lgamma": ("f", scipy.special.gammaln),
    "logaddexp": ("bb", np.logaddexp),
    "logit": ("f", scipy.special.logit),
    "mulhi": ("ff", lambda x, y: np.floor(x * y)),
    "nan_to_num": ("f", np.nan_to_num),
    "nextafter": ("ff", np.nextafter),
    "population_count": ("f", lambda x: np.mod(x, 2)),
    "real": ("f", np.real),
    "threshold": ("f", lambda x: np.where(x > 0.5, x, 0.0)),
    "xlogy": ("bb", scipy.special.xlogy),
}
_ONE_OPERAND: Final = (
    "Abs Acos Acosh Asin Asinh Atan Atanh Bernoulli BitwiseNot Cast Ceil Celu Cos Cosh Elu Erf Exp Floor "
    "Gelu HardSigmoid HardSwish IsInf IsNaN LeakyRelu Log Mish Neg Not RandomNormalLike RandomUniformLike "
    "Reciprocal Relu Round Selu Shrink Sigmoid Sign Sin Sinh Softplus Softsign Sqrt Swish Tan Tanh "
    "ThresholdedRelu"
)
_TWO_OPERANDS: Final = (
    "Add And BitShift BitwiseAnd BitwiseOr BitwiseXor Div Equal Greater GreaterOrEqual Less LessOrEqual Max "
    "Min Mod Mul Or Pow Sub Xor"
)
_BY_REFERENCE: Final[Mapping[str, str]] = {
    **dict.fromkeys(_ONE_OPERAND.split(), "f"),
    **dict.fromkeys(_TWO_OPERANDS.split(), "bb"),
    "Sum": "bbb",
    "CastLike": "fs",
    "Clip": "fss",
    "PRelu": "fb",
    "Where": "bbb",
}
_BOOLEAN: Final = {"And", "Not", "Or", "Xor"}
_WHOLE_NUMBERS: Final = {"BitShift", "BitwiseAnd", "BitwiseNot", "BitwiseOr", "BitwiseXor", "Mod"}
_SUMS: Final = {"Add", "Equal", "Less", "Max", "Mul", "Sub", "Sum"}
_ATTRIBUTES: Final[Mapping[str, dict[str, Any]]] = {"BitShift": {"direction": "LEFT"}, "Cast": {"to": 7}}
_RANDOM: Final = {"Bernoulli", "RandomNormalLike", "RandomUniformLike"}


def element_wise(rng: Rng, op_type: str) -> Node:
    by_numpy = _BY_NUMPY.get(op_type)
    letters = by_numpy[0] if by_numpy else _BY_REFERENCE[op_type]
    full = shape_of(rng, 1, 4)

    def values(letter: str) -> Array:
        shape = {"f": full, "b": narrowed(rng, full), "c": full[-1:], "s": []}[letter]
        if op_type in _BOOLEAN:
            return rng.integers(0, 2, tuple(shape)).astype(bool)
        if op_type in _WHOLE_NUMBERS:
            return rng.integers(1, 9, tuple(shape)).astype(np.uint64)
        if op_type in _SUMS:
            return ints(rng, shape)
        return reals(rng, shape) + (op_type == "Acosh")

    operands = [values(letter) for letter in letters]
    operands[0] = operands[0] > 0.5 if op_type == "Where" else operands[0]
    run = of_numpy(by_numpy[1]) if by_numpy else reference(op_type)
    return Node(
        op_type, tuple(operands), dict(_ATTRIBUTES.get(op_type, {})), run, is_random=op_type in _RANDOM
    )


def halved(rng: Rng, op_type: str) -> Node:
    shape = shape_of(rng, 1, 3)
    axis = int(rng.integers(len(shape)))
    shape[axis] *= 2

    def run(operands: Operands, attributes: Attributes) -> list[Array]:
        first, second = np.split(operands[0], 2, axis)
        return [first * second]

    return Node(op_type, (ints(rng, shape),), {}, run)


def outer(rng: Rng, op_type: str) -> Node:
    rows, columns = int(rng.integers(1, 5)), int(rng.integers(1, 5))
    if flip(rng):
        columns = rows
    operands = ints(rng, narrowed(rng, (rows, columns))), ints(rng, [rows]), ints(rng, [columns])
    return Node(op_type, operands, {}, of_numpy(lambda x, y, z: x + np.outer(y, z)))


def channels(rng: Rng, op_type: str) -> Node:
    """BatchNormalization, and quantisation by tensor, axis or block."""
    shape = shape_of(rng, 2 if op_type == "BatchNormalization" else 1, 4)
    axis = min(1, len(shape) - 1)
    if op_type == "BatchNormalization":
        figures = [reals(rng, [shape[1]]) for _ in range(4)]
        return Node(op_type, (reals(rng, shape), *figures), {}, reference(op_type))
    attributes: dict[str, Any] = {}
    way = pick(rng, ["tensor", "axis", "block"])
    if flip(rng) or way == "block" or len(shape) == 1:
        axis = int(rng.integers(len(shape)))
        attributes["axis"] = axis - len(shape) * flip(rng)
    figures_of: list[int] = [] if way == "tensor" else [shape[axis]]
    if way == "block":
        attributes["block_size"], figures_of = 2, list(shape)
        shape[axis] *= 2
    scale = (2.0 ** rng.integers(-2, 3, tuple(figures_of))).astype(np.float32)
    zero = rng.integers(-5, 5, tuple(figures_of)).astype(np.int8)
    x = ints(rng, shape, -20, 20)
    x = x.astype(np.int8 if op_type == "DequantizeLinear" else np.float32)
    return Node(op_type, (x, scale, zero), attributes, reference(op_type))


# ------------------------------------------------------------------ along axes


def an_axis(rng: Rng, rank: int, default: int) -> tuple[dict[str, int], int]:
    """An attribute, and which axis it is."""
    if flip(rng, 0.3) and -rank <= default < rank:
        return {}, default % rank
    axis = int(rng.integers(-rank, rank))
    return {"axis": axis}, axis % rank


def along_one_axis(rng: Rng, op_type: str) -> Node:
    shape = shape_of(rng, 1, 4)
    attributes, axis = an_axis(rng, len(shape), -1)
    x = reals(rng, shape)
    if op_type in ("CumProd", "CumSum"):
        x = ints(rng, shape, -9, 10)
        attributes = {"exclusive": int(flip(rng)), "reverse": int(flip(rng))}
        at = np.array(axis - len(shape) * flip(rng))
        return Node(op_type, (x, at), attributes, reference(op_type), constants=(1,))
    if op_type == "Sort":
        return Node(op_type, (x,), attributes, of_numpy(lambda x, axis=-1: np.sort(x, axis)))
    if op_type == "LpNormalization":
        attributes["p"] = int(rng.integers(1, 3))
    elif flip(rng):  # of all axes from one on
        axis = int(rng.integers(len(shape)))
        attributes = {"axis": axis} if axis != 1 or flip(rng) else {}
        return Node(op_type, (x,), attributes, _flattened(op_type, axis), opset=11)
    return Node(op_type, (x,), attributes, reference(op_type))


def _flattened(op_type: str, axis: int) -> Run:
    def run(operands: Operands, attributes: Attributes) -> list[Array]:
        (x,) = operands
        flat = x.reshape(*x.shape[:axis], -1)
        return [reference(op_type)([flat], {"axis": -1})[0].reshape(x.shape)]

    return run


def transform(rng: Rng, op_type: str) -> Node:
    shape = [*shape_of(rng, 2, 3), pick(rng, [1, 2])]
    length = np.array(int(rng.integers(1, 6))) if flip(rng) else None
    inverse = {"inverse": int(flip(rng)) if shape[-1] == 2 else 0}
    if flip(rng):
        attributes = inverse | (
            {"axis": int(rng.integers(len(shape) - 1))} if len(shape) < 3 or flip(rng) else {}
        )
        return Node(op_type, (reals(rng, shape), length), attributes, reference(op_type, opset=17), 17, (1,))
    axis = np.array(int(rng.integers(len(shape) - 1)) - (len(shape) if flip(rng) else 0))
    operands = (reals(rng, shape), length, axis) if flip(rng) else (reals(rng, shape), length)
    return Node(op_type, operands, inverse, reference(op_type), constants=(1, 2))


def _normalised(x: Array, axis: int) -> Array:
    axes = tuple(range(axis % x.ndim, x.ndim))
    return np.asarray(x / np.sqrt(np.mean(x * x, axes, keepdims=True) + 1e-5))


def layer_norm(rng: Rng, op_type: str) -> Node:
    shape = shape_of(rng, 1, 4)
    attributes, axis = an_axis(rng, len(shape), -1)
    x, figures = reals(rng, shape), [reals(rng, shape[axis:])]
    if op_type == "SimplifiedLayerNormalization":
        run = of_numpy(lambda x, scale, axis=-1: _normalised(x, axis) * scale)
        return Node(op_type, (x, *figures), attributes, run)
    if op_type == "LayerNormalization" and flip(rng):
        figures.append(reals(rng, shape[axis:]))
    results = 3 if op_type == "LayerNormalization" and flip(rng) else 1
    return Node(op_type, (x, *figures), attributes, reference(op_type, results))


def reversal(rng: Rng, op_type: str) -> Node:
    shape = shape_of(rng, 1, 4)
    axes = [int(a) for a in rng.choice(len(shape), int(rng.integers(1, len(shape) + 1)), replace=False)]
    return Node(
        op_type,
        (ints(rng, shape),),
        {"axes": axes},
        lambda x, axes: [np.flip(x[0], axes["axes"])],
    )


def skip_norm(rng: Rng, op_type: str) -> Node:
    shape = shape_of(rng, 3, 3)
    others = [
        reals(rng, shape[-1:]) for _ in range(1 + int(op_type == "SkipLayerNormalization" and flip(rng)))
    ]
    skip = shape[int(rng.integers(2)) :]

    def run(operands: Operands, attributes: Attributes) -> list[Array]:
        total = operands[0] + operands[1]
        total = total - total.mean(-1, keepdims=True) * (op_type == "SkipLayerNormalization")
        return [_normalised(total, -1) * operands[2] + (operands[3] if len(operands) > 3 else 0)]

    return Node(op_type, (reals(rng, shape), reals(rng, skip), *others), {}, run)


def image_norm(rng: Rng, op_type: str) -> Node:
    groups, inside = int(rng.integers(1, 4)), int(rng.integers(1, 4))
    shape = [int(rng.integers(1, 4)), groups * inside, *shape_of(rng, 1, 2)]
    if op_type == "InstanceNormalization":
        figures = [reals(rng, shape[1:2]) for _ in range(2)]
        return Node(op_type, (reals(rng, shape), *figures), {}, reference(op_type))
    opset = pick(rng, [18, LATEST])
    figures = [reals(rng, [groups if opset == 18 else shape[1]]) for _ in range(2)]

    def run(operands: Operands, attributes: Attributes) -> list[Array]:
        x, scale, bias = operands
        split = x.reshape(x.shape[0], attributes["num_groups"], -1)
        split = split - split.mean(-1, keepdims=True)
        normal = (split / np.sqrt((split * split).mean(-1, keepdims=True) + 1e-5)).reshape(x.shape)
        each = [np.repeat(one, x.shape[1] // len(one)) for one in (scale, bias)]
        wide = [one.reshape(-1, *[1] * (x.ndim - 2)) for one in each]
        return [normal * wide[0] + wide[1]]

    return Node(op_type, (reals(rng, shape), *figures), {"num_groups": groups}, run, opset)


def neighbours(rng: Rng, op_type: str) -> Node:
    def run(operands: Operands, attributes: Attributes) -> list[Array]:
        (x,) = operands
        wide = np.pad(x * x, [(0, 0), (1, 1), (0, 0), (0, 0)])
        return [x / (1 + (wide[:, :-2] + wide[:, 1:-1] + wide[:, 2:]) / 3) ** 0.75]

    return Node(op_type, (reals(rng, shape_of(rng, 4, 4)),), {"size": 3}, run)


def reduction(rng: Rng, op_type: str) -> Node:
    shape = shape_of(rng, 1, 4)
    attributes: dict[str, Any] = {} if flip(rng) else {"keepdims": int(flip(rng))}
    whole_numbers = op_type in ("ReduceL1", "ReduceMax", "ReduceMin", "ReduceSum", "ReduceSumSquare")
    x = ints(rng, shape) if whole_numbers else reals(rng, shape)
    joined_by = {"ReduceMax": np.maximum, "ReduceMin": np.minimum}.get(op_type, np.add)
    if op_type.startswith("Arg"):
        chosen, _ = an_axis(rng, len(shape), 0)
        return Node(op_type, (x,), attributes | chosen, reference(op_type))
    count = int(rng.integers(0, len(shape) + 1))
    axes = [int(a) - len(shape) * flip(rng) for a in rng.choice(len(shape), count, replace=False)]
    if flip(rng, 0.3):
        attributes |= {"axes": axes} if axes else {}
        return Node(op_type, (x,), attributes, reference(op_type, opset=11), 11, joined_by=joined_by)
    attributes |= {"noop_with_empty_axes": 1} if flip(rng, 0.3) else {}
    operands = (x,) if not axes and flip(rng) else (x, np.array(axes, np.int64))
    run = reference(op_type)
    return Node(op_type, operands, attributes, run, constants=(1,), joined_by=joined_by)


def rotated(rng: Rng, op_type: str) -> Node:
    """RotaryEmbedding as ONNX's or as ONNX Runtime's, whose operands have another order."""
    batch, heads, rows, half = (int(n) for n in rng.integers(1, 5, 4))
    is_joined, has_places = flip(rng), flip(rng)
    shape = [batch, rows, heads * 2 * half] if is_joined else [batch, heads, rows, 2 * half]
    attributes = {"num_heads": heads} if is_joined else {}
    x, most = ints(rng, shape), rows + int(rng.integers(0, 3))
    places = rng.integers(0, most, (batch, rows))
    if flip(rng):
        places = places if has_places else np.arange(1)
        table = [ints(rng, [most, half]) for _ in range(2)]

        def run(operands: Operands, attributes: Attributes) -> list[Array]:
            x, at, *tables = operands
            at = at if at.ndim > 1 else at + np.arange(_rows(x))
            at = np.broadcast_to(at, (x.shape[0], _rows(x)))
            return reference(op_type)([x, *tables, at], attributes)

        return Node(op_type, (x, places, *table), attributes, run)
    if has_places:
        operands: tuple[Array, ...] = (x, ints(rng, [most, half]), ints(rng, [most, half]), places)
    else:
        operands = (x, ints(rng, [batch, rows, half]), ints(rng, [batch, rows, half]))
    return Node(op_type, operands, attributes, reference(op_type))


def _rows(x: Array) -> int:
    return int(x.shape[-2])


def experts(rng: Rng, op_type: str) -> Node:
    """Each row goes through its best expert; quantised weights have a scale for each column."""
    rows, width, inner, count = (int(n) for n in rng.integers(1, 5, 4))
    batch = [int(rng.integers(1, 4))] if flip(rng) else []
    x = ints(rng, [*batch, rows, width])
    scores = reals(rng, [x.size // width, count])
    first, second = ints(rng, [count, inner, width]), ints(rng, [count, width, inner])
    if op_type == "MoE":
        biases = (ints(rng, [count, inner]), None)
        weights: tuple[Array | None, ...] = (first, biases[0], second, biases[1])
    else:
        weights = (first, ints(rng, [count, inner]), None, second, ints(rng, [count, width]), None)

    def run(operands: Operands, attributes: Attributes) -> list[Array]:
        x, scores, *weights = operands
        flat, chosen = x.reshape(-1, x.shape[-1]), scores.argmax(-1)
        up, of_up, down = (weights[i] for i in ((0, 1, 2) if op_type == "MoE" else (0, 1, 3)))
        hidden = np.einsum("rw,riw->ri", flat, up[chosen]) + of_up[chosen]
        return [np.einsum("ri,rwi->rw", hidden, down[chosen]).reshape(x.shape)]

    return Node(op_type, (x, scores, *weights), {"k": 1}, run)
