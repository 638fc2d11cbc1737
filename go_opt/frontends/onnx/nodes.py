"""Properties of one node."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np
import onnx

from go_opt.frontends.onnx.inference.folding import plain_attributes
from go_opt.frontends.onnx.inference.shapes import is_argument
from go_opt.frontends.onnx.inference.values import Shape, Value
from go_opt.frontends.recording.views import rule_of_views
from go_opt.model.op_costs import is_view
from go_opt.model.rule import Rule

# Never constant, whatever they read.
_RANDOM: Final = frozenset(
    {"Bernoulli", "Multinomial", "RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike"}
)
_SOFTMAX: Final = ("Hardmax", "LogSoftmax", "Softmax")
_SOFTMAX_OF_ONE_AXIS: Final = 13  # operator set; before, of all axes from one on

_DFT_OF_LAST_AXIS: Final = 20  # before, of axis 1 where none is given


def is_standard(node: onnx.NodeProto) -> bool:
    """True for ops of the ONNX standard itself."""
    return node.domain in ("", "ai.onnx")


def is_foldable(node: onnx.NodeProto, inputs: Sequence[Value | None]) -> bool:
    """Whether a node reads only constants, so that its outputs are constants too."""
    present = [value for value in inputs if value is not None]
    return (
        is_standard(node)
        and bool(present)
        and all(value.is_constant for value in present)
        and node.op_type not in _RANDOM
    )


def is_alias(node: onnx.NodeProto, inputs: Sequence[Value | None], output_type: int) -> bool:
    """Whether a node is a view, or an op that changes nothing."""
    source = inputs[0] if inputs else None
    if source is None or not is_standard(node):
        return False
    if node.op_type == "Dropout":
        training = inputs[2] if len(inputs) > 2 else None
        return training is None or not np.any(training.read())
    if node.op_type == "Cast":
        return output_type == source.elem_type
    if node.op_type == "Concat":
        return len(inputs) == 1
    if node.op_type == "Transpose":
        axes = plain_attributes(node).get("perm", range(len(source.shape))[::-1])
        moved = [axis for axis in axes if source.shape[axis] != 1]
        return moved == sorted(moved)
    return is_view(node.op_type)


# Inputs that are attributes in older operator sets.
_REDUCED: Final = dict.fromkeys(
    ("ReduceL1", "ReduceL2", "ReduceLogSum", "ReduceLogSumExp", "ReduceMax", "ReduceMean", "ReduceMin",
     "ReduceProd", "ReduceSum", "ReduceSumSquare"),
    ((1, "axes"),),
)  # fmt: skip
_PARAMETERS: Final[Mapping[str, tuple[tuple[int, str], ...]]] = {
    **_REDUCED,
    "CumProd": ((1, "axis"),),
    "CumSum": ((1, "axis"),),
    "DFT": ((2, "axis"),),
    "Pad": ((1, "pads"), (3, "axes")),
    "Resize": ((2, "scales"),),
    "Slice": ((1, "starts"), (2, "ends"), (3, "axes"), (4, "steps")),
    "Upsample": ((1, "scales"),),
}


def sharding_rule(
    node: onnx.NodeProto, inputs: Sequence[Value | None], outputs: Sequence[Shape | None], opset: int
) -> Rule | None:
    """The sharding rule of a node, with an operand for each present input; None if it is not known."""
    written = tuple(shape for shape in outputs if shape is not None)
    if written != tuple(outputs[: len(written)]):  # a result that nothing reads stands before one
        return None
    attributes = plain_attributes(node)
    for place, name in _PARAMETERS.get(node.op_type, ()):
        value = inputs[place] if place < len(inputs) else None
        if value is not None:
            array = value.read()
            if array is None or not is_argument(value):
                return None
            numbers = array.reshape(-1).tolist()
            attributes[name] = numbers[0] if name == "axis" and numbers else numbers
    if node.op_type in _SOFTMAX and opset < _SOFTMAX_OF_ONE_AXIS and written:
        rank = max(1, len(written[0]))
        attributes["axes"] = list(range(attributes.get("axis", 1) % rank, rank))
    if node.op_type == "DFT" and opset < _DFT_OF_LAST_AXIS:
        attributes.setdefault("axis", 1)
    views = [None if one is None else (one.shape, one.steps) for one in inputs]
    return rule_of_views(node.op_type, views, written, attributes)
