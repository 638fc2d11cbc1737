"""The graphs that ship with go-opt."""

from __future__ import annotations

from importlib.resources import files

import numpy as np
import pytest

from go_opt.dtypes import size_bytes
from go_opt.env.zoo import SPLITS, load_zoo, zoo_entries
from go_opt.env.zoo.build import index_text, main
from go_opt.env.zoo.catalogue import INDEX_NAME, graph_file_name
from go_opt.env.zoo.recipes import RECIPES
from go_opt.errors import ModelError
from go_opt.graph import MATRIX, WEIGHT, Graph

ENTRIES = {entry.name: entry for entry in zoo_entries()}

# Multiply-adds of the matrix ops of one inference.
_MATRIX_MACS = {
    # A layer of width h has 12 h^2 weights: 4 h^2 in the attention, 8 h^2 behind it. Over n tokens
    # its two attention products add 2 n^2 h.
    # 12 layers of 128 tokens, h = 768: 12 (128 * 12 * 768^2 + 2 * 128^2 * 768); pooler 768^2.
    "bert_base": 12 * (128 * 12 * 768**2 + 2 * 128**2 * 768) + 768**2,
    # The same stack, and the projection of all tokens to 50,257 words.
    "gpt2": 12 * (128 * 12 * 768**2 + 2 * 128**2 * 768) + 128 * 768 * 50_257,
    # 196 patches of 16 * 16 * 3 = 768 values and a class token, 1,000 classes.
    "vit_b16": 196 * 768**2 + 12 * (197 * 12 * 768**2 + 2 * 197**2 * 768) + 768 * 1000,
    # h = 512, behind the attention 2 * 512 * 2048 = 8 h^2. Six encoder layers, six decoder layers
    # with a second attention over the encoder (4 h^2, 2 n^2 h), and 32,128 words.
    "t5_small": 6 * (128 * 12 * 512**2 + 2 * 128**2 * 512)
    + 6 * (128 * 16 * 512**2 + 4 * 128**2 * 512)
    + 128 * 512 * 32_128,
    # Per token two layers of (2048 + 2048) x (4 * 2048), and 10,000 words.
    "rnnlm_2x2048": 192 * (2 * 4096 * 8192 + 2048 * 10_000),
    # As published: He et al. (3.8e9, strides in the 1x1 convolutions), Zoph et al. (23.8e9, 564e6),
    # Szegedy et al. (5.7e9 at 299x299), Huang et al. (2.8e9), Sandler et al. (300e6),
    # Liu et al. (4.5e9), Ho et al. (6.1e9).
    "resnet50": 3.86e9,
    "nasnet_large": 23.8e9,
    "nasnet_mobile": 564e6,
    "inception_v3": 5.7e9,
    "densenet121": 2.85e9,
    "mobilenet_v2": 300e6,
    "swin_t": 4.5e9,
    "unet": 6.1e9,
}

# Weights as published, in millions; GPT-2's and T5's output layers share the embedding's table.
# Position tables keep the rows that are read; Swin's attention masks are stored beside its weights.
_WEIGHTS_M = {
    "bert_base": 109.5,
    "densenet121": 8.06,
    "gpt2": 124.4,
    "inception_v3": 23.9,
    "mobilenet_v2": 3.5,
    "nasnet_large": 88.9,
    "nasnet_mobile": 5.3,
    "resnet50": 25.6,
    "rnnlm_2x2048": 108.1,  # 2 * 10,000 * 2048 + 2 * 4096 * 8192
    "swin_t": 28.3,
    "t5_small": 60.5,
    "unet": 35.7,
    "vit_b16": 86.6,
}


@pytest.fixture(scope="module", params=sorted(ENTRIES))
def graph(request: pytest.FixtureRequest) -> Graph:
    return load_zoo(request.param)


def test_index_matches_graph(graph: Graph) -> None:
    entry = ENTRIES[graph.name]
    assert (graph.num_ops, graph.num_edges) == (entry.ops, entry.edges)
    assert graph.op_flops.sum() == pytest.approx(entry.flops)
    weights = graph.tensor_kind == WEIGHT
    weight_bytes = size_bytes(graph.tensor_elements[weights], graph.tensor_dtype[weights]).sum()
    assert weight_bytes == entry.weight_bytes
    assert graph.fingerprint == entry.fingerprint


def test_graph_is_one_model(graph: Graph) -> None:
    assert 50 <= graph.num_ops <= 60_000
    assert (graph.edge_src < graph.edge_dst).all()
    assert graph.tensor_is_output.any()
    read = np.diff(graph.reader_ptr) > 0
    assert (read | (graph.tensor_producer >= 0)).all()


def test_matrix_flops(graph: Graph) -> None:
    matrix_flops = graph.op_flops[graph.op_class == MATRIX].sum()
    assert matrix_flops == pytest.approx(2 * _MATRIX_MACS[graph.name], rel=0.05)
    assert graph.op_flops.sum() < 1.2 * matrix_flops


def test_weights(graph: Graph) -> None:
    elements = graph.tensor_elements[graph.tensor_kind == WEIGHT].sum()
    assert elements == pytest.approx(_WEIGHTS_M[graph.name] * 1e6, rel=0.05)


def test_precision_is_no_part_of_the_stored_graph() -> None:
    native, as_is = load_zoo("resnet50"), load_zoo("resnet50", precision="as-is")
    assert (native.precision, as_is.precision) == ("native", "as-is")
    assert native.op_names == as_is.op_names
    assert native.fingerprint != as_is.fingerprint


def test_unknown_name_names_near_misses() -> None:
    with pytest.raises(ModelError, match="no graph 'resnet_50'; did you mean 'resnet50'"):
        load_zoo("resnet_50")


def test_unknown_name_without_near_miss() -> None:
    with pytest.raises(ModelError, match="`go-opt zoo list` names them all"):
        load_zoo("qqqq")


def test_families_do_not_cross_splits() -> None:
    split_of = {entry.family: entry.split for entry in ENTRIES.values()}
    assert all(split_of[entry.family] == entry.split for entry in ENTRIES.values())
    assert set(split_of.values()) == set(SPLITS)


def test_one_graph_is_above_5000_ops() -> None:
    assert max(entry.ops for entry in ENTRIES.values()) > 5000


def test_files_are_those_of_the_index() -> None:
    shipped = {path.name: path for path in files("go_opt.env.zoo.data").iterdir()}
    graphs = {name for name in shipped if name.endswith(".pb.xz")}
    assert graphs == {graph_file_name(name) for name in ENTRIES}
    assert sum(len(shipped[name].read_bytes()) for name in graphs) < 5e6


def test_index_is_that_of_the_recipes() -> None:
    assert {(recipe.name, recipe.family) for recipe in RECIPES} == {
        (entry.name, entry.family) for entry in ENTRIES.values()
    }
    written = (files("go_opt.env.zoo.data") / INDEX_NAME).read_text("utf-8")
    assert written == index_text(ENTRIES.values())


def test_builder_refuses_unknown_name() -> None:
    with pytest.raises(ModelError, match="no recipe is called 'resnet'"):
        main(["resnet50", "resnet"])
