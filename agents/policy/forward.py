"""The network's forward pass in NumPy, for searches: it neither loads JAX nor compiles.

The layers, with their papers and equations, are those of :mod:`go_opt.agents.networks`, which JAX
trains; a test checks that both agree. Axes: ``N`` ops, ``W`` features, ``C`` segments
computed at a time, ``S`` ops per segment.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

import numpy as np
from numpy.typing import NDArray

from go_opt.agents.decoding.decode import Outputs
from go_opt.agents.inputs.config import (
    LEAST_LOG_STD,
    MOST_LOG_STD,
    NO_CHANCE,
    PolicyConfig,
)
from go_opt.agents.inputs.features import (
    GLOBAL_COLUMNS,
    NUM_EXPLORED,
    NUM_OP_TYPES,
    OP_COLUMNS,
    GraphFeatures,
)
from go_opt.agents.inputs.padding import rows_to_ops
from go_opt.common.arrays import BoolArray, IntArray
from go_opt.solver.walk.walk import NUM_FEATURES

Array = NDArray[np.float32]
Parameters = Mapping[str, Array]
_EPSILON = np.float32(1e-6)  # of Flax's layer norm
_TASKS = ("schedule", "fusion")
WALK_WEIGHTS: Final = "walk.weights"  # beside the parameters of the network


def parameter_shapes(config: PolicyConfig) -> dict[str, tuple[int, ...]]:
    """The shape of every parameter of a network, by name."""
    width, half = config.width, config.width // 2
    shapes: dict[str, tuple[int, ...]] = {"op_type.embedding": (NUM_OP_TYPES, half)}

    def linear(name: str, rows: int, columns: int, *, bias: bool = True) -> None:
        shapes[f"{name}.kernel"] = (rows, columns)
        if bias:
            shapes[f"{name}.bias"] = (columns,)

    def norm(name: str, features: int) -> None:
        shapes[f"{name}.scale"] = shapes[f"{name}.bias"] = (features,)

    def attention(name: str, features: int, out: int) -> None:
        if config.superposition:
            linear(f"{name}.condition.scale", width, features)
        for part in ("query", "key", "value"):
            linear(f"{name}.attention.{part}", features, out, bias=False)
        linear(f"{name}.attention.output", out, out)

    linear("embed", half + len(OP_COLUMNS), width)
    for layer in range(config.graphsage_layers):
        norm(f"graphsage.{layer}.norm", width)
        linear(f"graphsage.{layer}.to_readers", width, half)
        linear(f"graphsage.{layer}.to_producers", width, half)
        linear(f"graphsage.{layer}.update", width + 4 * half, width)
    linear("graph.dense", 2 * width + len(GLOBAL_COLUMNS), width)
    norm("graph.norm", width)
    linear("decided", 2, width)
    for block in range(config.attention_layers):
        attention(f"blocks.{block}", width, width)
        norm(f"blocks.{block}.attention_norm", width)
        norm(f"blocks.{block}.dense_norm", width)
        linear(f"blocks.{block}.widen", width, 2 * width)
        linear(f"blocks.{block}.narrow", 2 * width, width)
    norm("heads.norm", width)
    for number, task in enumerate(_TASKS):
        attention(f"heads.{task}", width + number * half, half)
        linear(f"heads.{task}.dense", half, half)
        norm(f"heads.{task}.norm", width + (number + 1) * half)
    linear("heads.schedule_readout", width + half, 1)
    linear("heads.fusion_readout", width + 2 * half, 1)
    linear("exploration", width, 2 * NUM_EXPLORED)
    shapes[WALK_WEIGHTS] = (NUM_FEATURES,)
    return shapes


def forward(config: PolicyConfig, parameters: Parameters, features: GraphFeatures) -> Outputs:
    """The outputs of the network of ``config`` for a graph; ``parameter_shapes`` gives the names."""
    return _Forward(config, parameters, features).outputs()


class _Forward:
    """One pass over one graph; rows are those of the features, padded to whole segments."""

    def __init__(self, config: PolicyConfig, parameters: Parameters, features: GraphFeatures) -> None:
        self._config, self._parameters, self._features = config, parameters, features

    def outputs(self) -> Outputs:
        features = self._features
        ops = self._encoded()
        graph = self._graph_embedding(ops)
        decided = np.zeros((features.num_ops, 2), np.float32)  # schedule and fusion priorities
        for _ in range(self._config.rounds):
            decided = self._decided(ops, graph, decided)
        schedule, fusion = (rows_to_ops(features, _bounded(key).astype(np.float64)) for key in decided.T)
        raw = self._linear("exploration", graph).reshape(2, NUM_EXPLORED)
        bound = np.where(raw < 0, np.float32(-LEAST_LOG_STD), np.float32(MOST_LOG_STD))
        log_std = (bound * np.tanh(raw / bound)).astype(np.float64)
        weights = self._parameters[WALK_WEIGHTS].astype(np.float64)
        return Outputs(weights, np.zeros(features.num_ops), schedule, fusion, log_std)

    def _encoded(self) -> Array:
        """[N, W] embeddings of ops with their neighbourhood."""
        features = self._features
        kinds = self._parameters["op_type.embedding"][features.op_type]
        ops = _relu(self._linear("embed", np.concatenate([kinds, features.ops], axis=1)))
        by_producer = np.lexsort((features.edge_dst, features.edge_src))
        reads = features.edge_src, features.edge_dst
        is_read = features.edge_dst[by_producer], features.edge_src[by_producer]
        for layer in range(self._config.graphsage_layers):
            name = f"graphsage.{layer}"
            normed = self._norm(f"{name}.norm", ops)
            from_producers = _aggregate(_relu(self._linear(f"{name}.to_readers", normed)), *reads)
            from_readers = _aggregate(_relu(self._linear(f"{name}.to_producers", normed)), *is_read)
            joined = np.concatenate([normed, from_producers, from_readers], axis=1)
            ops = ops + _relu(self._linear(f"{name}.update", joined))
        return ops

    def _graph_embedding(self, ops: Array) -> Array:
        """[W]."""
        pooled = np.concatenate([ops.mean(axis=0), ops.max(axis=0), self._features.package])
        return _relu(self._norm("graph.norm", self._linear("graph.dense", pooled)))

    def _decided(self, ops: Array, graph: Array, last: Array) -> Array:
        """[N, 2] one round, conditioned on the expectation of the ``last``."""
        ops = ops + self._linear("decided", np.tanh(last))
        for block in range(self._config.attention_layers):
            ops = self._block(f"blocks.{block}", ops, graph)
        ops, scores = self._norm("heads.norm", ops), []
        for task in _TASKS:
            ops = self._task(f"heads.{task}", ops, graph)
            scores.append(self._linear(f"heads.{task}_readout", ops))
        return np.concatenate(scores, axis=1)

    def _block(self, name: str, ops: Array, graph: Array) -> Array:
        """[N, W] an attention block: attention, then a feed-forward layer."""

        def of_segments(ops: Array, memory: Array, mask: BoolArray) -> Array:
            normed, before = (self._norm(f"{name}.attention_norm", rows) for rows in (ops, memory))
            ops = ops + self._attention(name, normed, before, mask, graph)
            hidden = _relu(self._linear(f"{name}.widen", self._norm(f"{name}.dense_norm", ops)))
            return ops + self._linear(f"{name}.narrow", hidden)

        return self._by_segments(of_segments, ops)

    def _task(self, name: str, ops: Array, graph: Array) -> Array:
        """[N, W' + W / 2] the op embeddings of a task from those of the previous task, [N, W']."""

        def of_segments(ops: Array, memory: Array, mask: BoolArray) -> Array:
            added = _relu(self._linear(f"{name}.dense", self._attention(name, ops, memory, mask, graph)))
            return self._norm(f"{name}.norm", np.concatenate([added, ops], axis=-1))

        return self._by_segments(of_segments, ops)

    def _attention(self, name: str, ops: Array, memory: Array, mask: BoolArray, graph: Array) -> Array:
        """[C, S, W] attention of each op over its segment and the previous one, conditioned on the graph."""
        ops, memory = (self._conditioned(f"{name}.condition", rows, graph) for rows in (ops, memory))
        seen = np.concatenate([memory, ops], axis=1)
        parts = (("query", ops), ("key", seen), ("value", seen))
        query, key, value = (self._heads(f"{name}.attention.{part}", rows) for part, rows in parts)
        scores = query @ key.swapaxes(-1, -2) / np.sqrt(np.float32(query.shape[-1]))
        scores = np.where(mask[:, None, None, :], scores, np.float32(NO_CHANCE))
        attended = (_softmax(scores) @ value).swapaxes(1, 2)
        return self._linear(f"{name}.attention.output", attended.reshape(*ops.shape[:2], -1))

    def _heads(self, name: str, rows: Array) -> Array:
        """[C, H, T, W / H] of [C, T, W']."""
        projected = rows @ self._parameters[f"{name}.kernel"]
        by_head = projected.reshape(*rows.shape[:2], self._config.num_heads, -1)
        return by_head.swapaxes(1, 2)

    def _by_segments(self, layer: Callable[[Array, Array, BoolArray], Array], ops: Array) -> Array:
        """[N, W''] ``layer`` on ``ops`` [N, W'] segment by segment; the first has an empty memory."""
        size, num_ops = self._config.segment_ops, len(ops)
        count = -(-num_ops // size)
        padded = np.zeros(((count + 1) * size, ops.shape[1]), np.float32)  # an empty segment comes first
        padded[size : size + num_ops] = ops
        is_op = np.zeros((count + 1) * size, np.bool_)
        is_op[size : size + num_ops] = True
        segments, masks = padded.reshape(count + 1, size, -1), is_op.reshape(count + 1, size)
        outputs = []
        for begin in range(0, count, self._config.chunk_segments):
            end = min(begin + self._config.chunk_segments, count)
            mask = np.concatenate([masks[begin:end], masks[begin + 1 : end + 1]], axis=1)
            outputs.append(layer(segments[begin + 1 : end + 1], segments[begin:end], mask))
        rows: Array = np.concatenate(outputs).reshape(count * size, -1)[:num_ops]
        return rows

    def _conditioned(self, name: str, rows: Array, graph: Array) -> Array:
        if not self._config.superposition:
            return rows
        return rows * (np.float32(1.0) + self._linear(f"{name}.scale", graph))

    def _linear(self, name: str, rows: Array) -> Array:
        product: Array = rows @ self._parameters[f"{name}.kernel"]
        bias = self._parameters.get(f"{name}.bias")
        return product if bias is None else product + bias

    def _norm(self, name: str, rows: Array) -> Array:
        mean = rows.mean(axis=-1, keepdims=True)
        variance = np.maximum((rows * rows).mean(axis=-1, keepdims=True) - mean * mean, np.float32(0.0))
        scale = self._parameters[f"{name}.scale"] / np.sqrt(variance + _EPSILON)
        normed: Array = (rows - mean) * scale + self._parameters[f"{name}.bias"]
        return normed


def _aggregate(messages: Array, source: IntArray, destination: IntArray) -> Array:
    """[N, 2 M] mean and maximum of the ``messages`` [N, M] along edges sorted by ``destination``."""
    num_ops, features = messages.shape
    received = np.zeros((num_ops, 2 * features), np.float32)
    if len(source) == 0:
        return received
    reached, begin, degree = np.unique(destination, return_index=True, return_counts=True)
    sent = messages[source]
    received[reached, :features] = np.add.reduceat(sent, begin, axis=0) / degree[:, None].astype(np.float32)
    received[reached, features:] = np.maximum.reduceat(sent, begin, axis=0)
    return received


def _bounded(key: Array) -> Array:
    """A key of the policy network, which its norm does not let drown the noise."""
    bounded: Array = key / np.sqrt(np.float32(1.0) + np.mean(key * key))
    return bounded


def _relu(rows: Array) -> Array:
    positive: Array = np.maximum(rows, np.float32(0.0))
    return positive


def _softmax(rows: Array) -> Array:
    exponents: Array = np.exp(rows - rows.max(axis=-1, keepdims=True))
    exponents /= exponents.sum(axis=-1, keepdims=True)
    return exponents
