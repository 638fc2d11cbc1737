"""The graphs that ship with go-opt."""

from __future__ import annotations

import tomllib
from importlib.resources import files
from pathlib import Path

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

# Weights and multiply-adds as their authors state them or as a formula gives them, for each kind of model.
PUBLISHED = {
    name: figures
    for path in sorted((Path(__file__).parent.parent / "data" / "zoo_published").glob("*.toml"))
    for name, figures in tomllib.loads(path.read_text("utf-8")).items()
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


@pytest.mark.parametrize("name", sorted(PUBLISHED))
def test_published_figures(name: str) -> None:
    graph, published = load_zoo(name), PUBLISHED[name]
    if "matrix_macs" in published:
        matrix_flops = graph.op_flops[graph.op_class == MATRIX].sum()
        assert matrix_flops == pytest.approx(2 * published["matrix_macs"], rel=0.05)
    elements = graph.tensor_elements[graph.tensor_kind == WEIGHT].sum()
    assert elements == pytest.approx(published["weights_m"] * 1e6, rel=0.05)


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
