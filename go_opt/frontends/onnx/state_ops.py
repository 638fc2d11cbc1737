"""States that ops show where names do not: a cache that an op extends, the state that a cell renews.

``torch.onnx`` names outputs after the op that makes each (``cat_4``) if nobody names them.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Final

import onnx

from go_opt.frontends.recording.states import Facts, fits

_Places = tuple[tuple[int, int], ...]  # of an old value among inputs, of the next among outputs
_CELLS: Final = frozenset({"GRU", "LSTM", "RNN"})
_OLD_AND_NEXT: Final[Mapping[tuple[str, str], _Places]] = {
    ("", "Attention"): ((4, 1), (5, 2)),
    ("", "GRU"): ((5, 1),),
    ("", "LSTM"): ((5, 1), (6, 2)),
    ("", "RNN"): ((5, 1),),
    ("", "ScatterElements"): ((0, 0),),
    ("", "ScatterND"): ((0, 0),),
    ("", "TensorScatter"): ((0, 0),),
    ("", "Where"): ((1, 0), (2, 0)),
    ("com.microsoft", "Attention"): ((4, 1),),
    ("com.microsoft", "DecoderMaskedMultiHeadAttention"): ((5, 1), (6, 2)),
    ("com.microsoft", "GroupQueryAttention"): ((3, 1), (4, 2)),
    ("com.microsoft", "MultiHeadAttention"): ((6, 1), (7, 2)),
}
_COMPUTES: Final = frozenset({op_type for _, op_type in _OLD_AND_NEXT if "Attention" in op_type} | _CELLS)
# Of their first input.
_MOVES: Final = frozenset(
    {"Cast", "Expand", "Gather", "Identity", "Reshape", "Slice", "Squeeze", "Transpose", "Unsqueeze"}
)
_COUNTS: Final = frozenset({"bool", "int32", "int64"})


def states_by_ops(
    graph: onnx.GraphProto, inputs: Mapping[str, Facts], outputs: Mapping[str, Facts]
) -> dict[str, str]:
    """Input -> output that is its next value, by the op that makes one from the other.

    The model must compute with the next value: an image to which the last op adds a channel is no state.
    """
    source = {name: name for name in inputs}  # an input, however moved -> its name
    old_of: dict[str, set[str]] = {}  # a next value, however moved -> inputs that it may come from
    computed = set[str]()  # inputs with whose next value something is computed
    for node in graph.node:
        if node.op_type in _MOVES and node.input:
            moved, result = node.input[0], node.output[0]
            if moved in source:
                source[result] = source[moved]
            if moved in old_of:
                old_of[result] = old_of[moved]
            continue
        for name in node.input:
            computed |= old_of.get(name, set())
        for old, following in _places(node):
            name = node.input[old] if old < len(node.input) else ""
            if name in source and following < len(node.output):
                old_of.setdefault(node.output[following], set()).add(source[name])
                computed.update({source[name]} if node.op_type in _COMPUTES else ())
    found = {}
    for name, facts in outputs.items():
        olds = [old for old in old_of.get(name, ()) if old in computed and _is_next(inputs[old], facts)]
        if len(olds) == 1:
            found[name] = olds[0]
    times = Counter(found.values())
    return {old: name for name, old in found.items() if times[old] == 1}


def _places(node: onnx.NodeProto) -> Iterable[tuple[int, int]]:
    """Where the op may have an old value among its inputs, and its next among its outputs."""
    if node.op_type == "Concat":
        return [(i, 0) for i in range(len(node.input))]
    return _OLD_AND_NEXT.get((node.domain.removesuffix("ai.onnx"), node.op_type), ())


def _is_next(old: Facts, following: Facts) -> bool:
    """Whether the shapes allow it; what is appended is not longer than what is kept."""
    is_kept = 2 * math.prod(old.shape) >= math.prod(following.shape)
    return old.dtype not in _COUNTS and is_kept and fits(old, following)
