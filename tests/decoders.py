"""ONNX models of one step that keep states, and plans that cut them between states."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import numpy_helper

from go_opt.env import Target
from go_opt.model.graph import Graph
from go_opt.model.plan import Plan
from tests.exports import INT64, info, integers, model, node

PRODUCTS = ("q", "k", "v", "o", "up", "down")  # of a layer of a decoder, by their weights


def decoder(
    layers: int = 2, heads: int = 4, width: int = 8, past: int = 10, vocabulary: int = 50, group: int = 1
) -> onnx.ModelProto:
    """A token's step through pre-norm layers with a cache of keys and values, which grow by the token.

    Args:
      group: heads of queries that share a head of keys and values, which is repeated for them.
    """
    hidden, random, kept = heads * width, _Random(), heads // group
    nodes = [node("Gather", "table ids", "x0", "embedding")]
    inputs, outputs = [info("ids", [1, 1], INT64)], [info("logits", [1, 1, vocabulary])]
    weights = [random.weight("table", vocabulary, hidden), random.weight("head", hidden, vocabulary)]
    weights += [integers("apart", 1, 1, heads, width), integers("flat", 1, 1, hidden)]
    weights += [integers("apart_kept", 1, 1, kept, width), integers("two", 2)]
    weights += [
        integers("copies", 1, kept, group, past + 1, width),
        integers("all", 1, heads, past + 1, width),
    ]
    weights += [numpy_helper.from_array(np.array(width**-0.5, np.float32), "scale")]
    for i in range(layers):
        at = f"{i}."
        for name, rows, columns in (
            ("q", 1, 1),
            ("k", 1, 1),
            ("v", 1, 1),
            ("o", 1, 1),
            ("up", 1, 4),
            ("down", 4, 1),
        ):
            size = columns * hidden // (group if name in "kv" else 1)
            weights.append(random.weight(f"{at}{name}", rows * hidden, size))
        weights += [numpy_helper.from_array(np.ones(hidden, np.float32), f"{at}gain{j}") for j in range(2)]
        nodes.append(node("LayerNormalization", f"x{i} {at}gain0", f"{at}normed", f"{at}norm"))
        for part in "qkv":
            nodes += [
                node("MatMul", f"{at}normed {at}{part}", f"{at}{part}_flat", f"{at}{part}_product"),
                node(
                    "Reshape",
                    f"{at}{part}_flat {'apart' if part == 'q' else 'apart_kept'}",
                    f"{at}{part}_apart",
                ),
                node(
                    "Transpose",
                    f"{at}{part}_apart",
                    f"{at}{part}_new",
                    f"{at}{part}_heads",
                    perm=[0, 2, 1, 3],
                ),
            ]
        for part, word in (("k", "key"), ("v", "value")):
            read, following = f"past_key_values.{i}.{word}", f"present.{i}.{word}"
            nodes.append(node("Concat", f"{read} {at}{part}_new", following, f"{at}{word}s", axis=2))
            inputs.append(info(read, [1, kept, past, width]))
            outputs.append(info(following, [1, kept, past + 1, width]))
            if group > 1:
                nodes += [
                    node("Unsqueeze", f"{following} two", f"{at}{part}_once"),
                    node("Expand", f"{at}{part}_once copies", f"{at}{part}_copied", f"{at}{word}_copied"),
                    node("Reshape", f"{at}{part}_copied all", f"{at}{part}_all"),
                ]
        key, value = (
            f"{at}{part}_all" if group > 1 else f"present.{i}.{word}"
            for part, word in (("k", "key"), ("v", "value"))
        )
        nodes += [
            node("Transpose", key, f"{at}turned", f"{at}turn", perm=[0, 1, 3, 2]),
            node("MatMul", f"{at}q_new {at}turned", f"{at}scores", f"{at}scores"),
            node("Mul", f"{at}scores scale", f"{at}scaled", f"{at}scaled"),
            node("Softmax", f"{at}scaled", f"{at}shares", f"{at}shares", axis=-1),
            node("MatMul", f"{at}shares {value}", f"{at}mixed", f"{at}mixed"),
            node("Transpose", f"{at}mixed", f"{at}together", f"{at}together", perm=[0, 2, 1, 3]),
            node("Reshape", f"{at}together flat", f"{at}joined"),
            node("MatMul", f"{at}joined {at}o", f"{at}projected", f"{at}projected"),
            node("Add", f"x{i} {at}projected", f"{at}attended", f"{at}attended"),
            node("LayerNormalization", f"{at}attended {at}gain1", f"{at}normed1", f"{at}norm1"),
            node("MatMul", f"{at}normed1 {at}up", f"{at}wide", f"{at}wide"),
            node("Gelu", f"{at}wide", f"{at}active", f"{at}active"),
            node("MatMul", f"{at}active {at}down", f"{at}narrow", f"{at}narrow"),
            node("Add", f"{at}attended {at}narrow", f"x{i + 1}", f"{at}out"),
        ]
    nodes.append(node("MatMul", f"x{layers} head", "logits", "logits"))
    return model(nodes, inputs, outputs, weights)


def prompt_of(step: onnx.ModelProto, layers: int = 2, tokens: int = 4) -> onnx.ModelProto:
    """The products of ``tokens`` tokens with the weights of a step: other names, and some transposed."""
    arrays = {one.name: numpy_helper.to_array(one) for one in step.graph.initializer}
    hidden = arrays["0.q"].shape[0]
    nodes, at, outputs = [node("Gather", "vocabulary ids", "x", "embedding")], "x", []
    weights = [numpy_helper.from_array(arrays["table"], "vocabulary")]
    for i in range(layers):
        for part in PRODUCTS:
            weight = f"val_{i}_{part}"
            turns = part in ("o", "up")
            array = arrays[f"{i}.{part}"]
            weights.append(numpy_helper.from_array(array.T.copy() if turns else array, weight))
            made = f"{i}.{part}.made"
            kind = {"transB": 1} if turns else {}
            nodes.append(node("Gemm" if turns else "MatMul", f"{at} {weight}", made, f"{i}.{part}", **kind))
            if part in "kv":
                outputs.append(info(made, [tokens, array.shape[1]]))
            else:
                at = made
    outputs.append(info(at, [tokens, hidden]))
    return model(nodes, [info("ids", [tokens], INT64)], outputs, weights)


def lstm_cell(hidden: int = 16) -> onnx.ModelProto:
    """A step of an LSTM in single ops: all gates in one product, then apart; and a layer behind it."""
    random = _Random()
    nodes = [
        node("MatMul", "x w", "given", "given"),
        node("MatMul", "past_h u", "kept", "kept"),
        node("Add", "given kept", "gates", "gates"),
        node("Split", "gates", "i f o g", "gate", axis=-1, num_outputs=4),
        *(node("Sigmoid", name, f"{name}_open", f"{name}_open") for name in "ifo"),
        node("Tanh", "g", "new", "new"),
        node("Mul", "f_open past_c", "old_part", "old_part"),
        node("Mul", "i_open new", "new_part", "new_part"),
        node("Add", "old_part new_part", "present_c", "cell"),
        node("Tanh", "present_c", "shown", "shown"),
        node("Mul", "o_open shown", "present_h", "hidden"),
        node("MatMul", "present_h v", "y", "y"),
    ]
    kept = [info(f"{time}_{part}", [1, hidden]) for time in ("past", "present") for part in "hc"]
    weights = [
        random.weight(name, hidden, columns * hidden) for name, columns in (("w", 4), ("u", 4), ("v", 1))
    ]
    ends = info("x", [1, hidden]), info("y", [1, hidden])
    return model(nodes, [ends[0], *kept[:2]], [ends[1], *kept[2:]], weights)


def recurrent_stack(layers: int = 3, hidden: int = 16) -> onnx.ModelProto:
    """Cells whose hidden states decay and take up an input, one above the other."""
    random = _Random()
    nodes, inputs, outputs = [], [info("x0", [1, hidden])], [info(f"x{layers}", [1, hidden])]
    weights = []
    for i in range(layers):
        weights += [random.weight(f"{i}.{name}", hidden, hidden) for name in ("in", "gate", "out")]
        nodes += [
            node("MatMul", f"x{i} {i}.gate", f"{i}.gate_in", f"{i}.gate_product"),
            node("Sigmoid", f"{i}.gate_in", f"{i}.keep", f"{i}.keep"),
            node("MatMul", f"x{i} {i}.in", f"{i}.new", f"{i}.in_product"),
            node("Mul", f"{i}.keep past_ssm.{i}", f"{i}.kept", f"{i}.kept"),
            node("Add", f"{i}.kept {i}.new", f"present_ssm.{i}", f"{i}.state"),
            node("Tanh", f"present_ssm.{i}", f"{i}.seen", f"{i}.seen"),
            node("MatMul", f"{i}.seen {i}.out", f"{i}.result", f"{i}.out_product"),
            node("Add", f"x{i} {i}.result", f"x{i + 1}", f"{i}.sum"),
        ]
        inputs.append(info(f"past_ssm.{i}", [1, hidden]))
        outputs.append(info(f"present_ssm.{i}", [1, hidden]))
    return model(nodes, inputs, outputs, weights)


class _Random:
    def __init__(self) -> None:
        self._rng = np.random.default_rng(0)

    def weight(self, name: str, rows: int, columns: int) -> onnx.TensorProto:
        values = self._rng.normal(size=(rows, columns)) / rows**0.5
        return numpy_helper.from_array(values.astype(np.float32), name)


def sliced_plan(graph: Graph, target: Target, weights: NDArray, stages: int, sequences: int = 1) -> Plan:
    """Slices of the graph's order of about equal ``weights`` [N]; ops that touch a state stay together."""
    ends = _allowed_cuts(graph)
    done = np.cumsum(weights)[ends - 1] / weights.sum()
    cuts = {int(ends[np.abs(done - i / stages).argmin()]) for i in range(1, stages)} if len(ends) else set()
    each = np.arange(graph.num_ops)
    plan = Plan.create(
        graph,
        target.source,
        target.fingerprint,
        placement=np.searchsorted(sorted(cuts), each, side="right"),
        order=each,
        fusion_group=each,
        provenance="test",
    )
    return replace(plan, sequences=sequences)


def _allowed_cuts(graph: Graph) -> NDArray:
    is_inside = np.zeros(graph.num_ops, np.bool_)
    for state in graph.states:
        touching = graph.readers_of(state.read)
        is_inside[min(touching) + 1 : max(touching) + 1] = True
    return np.flatnonzero(~is_inside[1:]) + 1
