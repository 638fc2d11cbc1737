"""The workloads of GO's table 1, what the paper measured there, and how experts place them by hand.

Zhou et al., "Transferable graph optimizers for ML compilers", NeurIPS 2020, table 1: seconds of a
training step on 2, 4 or 8 GPUs, as a lecture's slides transcribe the table; they give the paper's
means, 20.5 % over human and 18.2 % over HDP. Ours is one forward step of the zoo's graph of the model.

Experts (section 4 there; Mirhoseini et al., "Device placement optimization with reinforcement
learning", ICML 2017, section 4.2; Wu et al., "Google's neural machine translation system", 2016):
layer k of a recurrent model or of a Transformer-XL on device k, embeddings with the first and the
output layer with the last; convolutional networks in contiguous blocks of equally many layers.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np

from go_opt.common.arrays import BoolArray, IntArray
from go_opt.model.graph import Graph

OUT_OF_MEMORY: Final = None
FREE: Final = -1  # of ops that no rule names


@dataclass(frozen=True)
class Row:
    """A workload, and the paper's seconds a step."""

    label: str
    graph: str  # of the zoo
    devices: int
    go_s: float
    human_s: float
    metis_s: float | None  # None: out of memory
    hdp_s: float
    note: str = ""


ROWS: Final = (
    Row("2-layer RNNLM", "rnnlm_2x2048", 2, 0.173, 0.192, 0.355, 0.191),
    Row("4-layer RNNLM", "rnnlm_4x2048", 4, 0.210, 0.239, 0.503, 0.251),
    Row("8-layer RNNLM", "rnnlm_8x2048", 8, 0.320, 0.332, OUT_OF_MEMORY, 0.764),
    Row("2-layer GNMT", "gnmt_2", 2, 0.301, 0.384, 0.344, 0.327),
    Row("4-layer GNMT", "gnmt_4", 4, 0.350, 0.469, 0.466, 0.432),
    Row("8-layer GNMT", "gnmt_8", 8, 0.440, 0.562, OUT_OF_MEMORY, 0.693),
    Row("2-layer Transformer-XL", "transformer_xl_2", 2, 0.223, 0.268, 0.370, 0.262),
    Row("4-layer Transformer-XL", "transformer_xl_4", 4, 0.230, 0.270, OUT_OF_MEMORY, 0.259),
    Row("8-layer Transformer-XL", "transformer_xl_8", 8, 0.350, 0.460, OUT_OF_MEMORY, 0.425),
    Row("Inception b32", "inception_v3_b32", 2, 0.229, 0.312, OUT_OF_MEMORY, 0.301),
    Row("Inception b64", "inception_v3_b64", 2, 0.423, 0.731, OUT_OF_MEMORY, 0.498),
    Row("AmoebaNet", "nasnet_large", 4, 0.394, 0.440, 0.426, 0.418, note="NASNet-large in its place"),
    Row("2-stack 18-layer WaveNet", "wavenet_2x18", 2, 0.317, 0.376, OUT_OF_MEMORY, 0.354),
    Row("4-stack 36-layer WaveNet", "wavenet_4x36", 4, 0.659, 0.988, OUT_OF_MEMORY, 0.721),
)

_BLOCK: Final = r".*/(mixed\d+|(normal|reduction)_concat_\w+)/concatenate$"  # the last op of a block


def human_placements(row: Row, graph: Graph) -> Iterator[IntArray]:
    """[N] devices by hand; two ways where experts differ."""
    family = row.graph.split("_")[0]
    if family == "rnnlm":
        yield _closed(graph, _layers_of_cells(graph, r"(scan/\d+/)"))
    elif family == "gnmt":
        layer = _layers_of_cells(graph, r"(decoder/\d+/)")
        encoder = _numbers(graph, r"encoder/(\d+)")
        layer = np.where(encoder == FREE, layer, encoder)
        # The attention goes with the decoder's bottom layer, which reads it (Wu et al.), or with the top.
        yield _closed(graph, layer)
        yield _closed(graph, np.where(_is_attention(graph), row.devices - 1, layer))
    elif family == "transformer":
        yield _closed(graph, _numbers(graph, r"segment_\d+/layer_(\d+)/"))
    elif family == "wavenet":
        is_first = _matches(graph, r"pad_\d+$")  # of a layer: its dilated convolutions read that
        yield _shares(np.maximum(np.cumsum(is_first) - 1, 0), is_first, row.devices)
    else:
        blocks = np.cumsum(np.append(False, _matches(graph, _BLOCK)[:-1]))
        yield _shares(blocks, np.array(graph.op_types) == "Conv", row.devices)


def _matches(graph: Graph, pattern: str) -> BoolArray:
    return np.array([re.match(pattern, name) is not None for name in graph.op_names])


def _numbers(graph: Graph, pattern: str) -> IntArray:
    """[N] the number in the name, FREE where it has none."""
    found = (re.match(pattern, name) for name in graph.op_names)
    return np.array([int(match[1]) if match else FREE for match in found], dtype=np.int32)


def _layers_of_cells(graph: Graph, step: str) -> IntArray:
    """[N] layer of the cells of unrolled LSTMs, as they are stored one after the other in each step.

    A cell begins with a concatenation and ends with its third product, of gate and state.
    """
    layer = np.full(graph.num_ops, FREE, dtype=np.int32)
    begun: dict[str, int] = {}  # the layer that is being stored, by step
    for op, name in enumerate(graph.op_names):
        if found := re.match(step, name):
            current = begun.setdefault(found[1], 0)
            ended = begun.get(found[1] + "ended", 0)
            if ended > current and "/concatenate" in name:
                begun[found[1]] = current = ended
            layer[op] = current
            if re.search(r"/mul_\d+$", name) and int(name.rpartition("_")[2]) % 3 == 2:
                begun[found[1] + "ended"] = current + 1
    return layer


def _is_attention(graph: Graph) -> BoolArray:
    """[N] what a step of GNMT's decoder runs before its first cell, which begins with a slice."""
    is_attention = np.zeros(graph.num_ops, dtype=np.bool_)
    begun = set()
    for op, name in enumerate(graph.op_names):
        if found := re.match(r"decoder/\d+/", name):
            if name.endswith("/slice"):
                begun.add(found[0])
            is_attention[op] = found[0] not in begun
    return is_attention


def _closed(graph: Graph, layer: IntArray) -> IntArray:
    """Layers as devices; an op that has none follows the last of those it reads from."""
    device = layer.copy()
    ptr, read = graph.predecessors
    for op in np.flatnonzero(layer == FREE):
        device[op] = max(device[read[ptr[op] : ptr[op + 1]]], default=0)
    return device


def _shares(block: IntArray, is_layer: BoolArray, devices: int) -> IntArray:
    """[N] contiguous blocks on one device after the other, with equally many layers on each."""
    layers = np.bincount(block, weights=is_layer)
    middle = np.cumsum(layers) - layers / 2
    of_block = np.minimum(middle * devices / layers.sum(), devices - 1).astype(np.int32)
    return of_block[block]
