"""The graphs that ship with go-opt."""

from __future__ import annotations

import tomllib
from importlib.resources import files
from pathlib import Path

import numpy as np
import pytest

from go_opt.env import cost_tables, evaluate_plan, load_target, loop_roles
from go_opt.env.peak_memory import op_that_runs_nowhere
from go_opt.env.zoo import (
    INDEX_NAME,
    SPLITS,
    graph_file_name,
    load_zoo,
    shipped_bytes,
    zoo_entries,
    zoo_families,
)
from go_opt.errors import ModelError
from go_opt.model.dtypes import size_bytes
from go_opt.model.graph import MATRIX, WEIGHT, Graph
from go_opt.solver import throughput_bound
from go_opt.solver.verify.verifier import verify
from tests.strategies import JIT_IS_ON
from tests.zoo import first_plans, stateless, zoo_sample
from tests.zoo_recipes.build import index_text, main
from tests.zoo_recipes.recipes import RECIPES

ENTRIES = {entry.name: entry for entry in zoo_entries()}

# Weights and multiply-adds as their authors state them or as a formula gives them, for each kind of model.
PUBLISHED = {
    name: figures
    for path in sorted((Path(__file__).parent.parent / "data" / "zoo_published").glob("*.toml"))
    for name, figures in tomllib.loads(path.read_text("utf-8")).items()
}


# By sizes it has one, but holes between activations and the buffer for streamed
# weights find no room in it.
NO_ADJACENT_SLICE = {"longt5_base"}

# A graph counts for the split it is in where it fits the package; other targets count apart.
ON_PACKAGE = [entry for entry in ENTRIES.values() if entry.target == "mcm-6x6"]


@pytest.fixture(scope="module", params=sorted(ENTRIES) if JIT_IS_ON else zoo_sample())
def graph(request: pytest.FixtureRequest) -> Graph:
    """Every graph in turn, loaded once; loading validates it."""
    return load_zoo(request.param)


def test_index_matches_graph(graph: Graph) -> None:
    entry = ENTRIES[graph.name]
    assert (graph.num_ops, graph.num_edges) == (entry.ops, entry.edges)
    assert graph.op_flops.sum() == pytest.approx(entry.flops)
    sizes = size_bytes(graph.tensor_elements, graph.tensor_dtype)
    assert sizes[graph.tensor_kind == WEIGHT].sum() == entry.weight_bytes
    assert sum(sizes[[state.read, state.next]].max() for state in graph.states) == entry.state_bytes
    assert graph.fingerprint == entry.fingerprint


def test_graph_is_one_model(graph: Graph) -> None:
    assert 50 <= graph.num_ops <= 60_000
    assert (graph.edge_src < graph.edge_dst).all()
    assert graph.tensor_is_output.any()
    read = np.diff(graph.reader_ptr) > 0
    assert (read | (graph.tensor_producer >= 0)).all()


def test_target_is_the_package_where_every_op_fits_it(graph: Graph) -> None:
    fits = not op_that_runs_nowhere(graph, load_target("mcm-6x6"))
    assert ENTRIES[graph.name].target == ("mcm-6x6" if fits else "gpu-8")


def test_first_plans_evaluate_and_verify(graph: Graph) -> None:
    """Without states, which the first plans do not know."""
    graph = stateless(graph.name) if graph.states else graph  # to load one takes as long as to plan it
    target = load_target(ENTRIES[graph.name].target)
    tables, roles = cost_tables(graph, target), loop_roles(graph)
    bound = throughput_bound(graph, tables, roles, fusion_is_open=True, replication_is_open=False)
    greedy, sliced = first_plans(graph, target)
    # Greedy does not look at memory; it is valid in all else.
    assert {violation.constraint for violation in verify(graph, target, greedy)} <= {"memory"}
    assert (sliced is None) == (graph.name in NO_ADJACENT_SLICE)
    assert sliced is None or verify(graph, target, sliced) == []
    for plan in (greedy, sliced) if sliced is not None else (greedy,):
        assert 0 < bound.seconds <= evaluate_plan(graph, target, plan).interval_s * (1 + 1e-9)


@pytest.mark.parametrize("name", sorted(PUBLISHED))
def test_published_figures(name: str) -> None:
    graph, published = load_zoo(name), PUBLISHED[name]
    if "matrix_macs" in published:
        matrix_flops = graph.op_flops[graph.op_class == MATRIX].sum()
        assert matrix_flops == pytest.approx(2 * published["matrix_macs"], rel=0.05)
    of_model = [state.read for state in graph.states if state.scope == "model"]
    weights = graph.tensor_elements[graph.tensor_kind == WEIGHT].sum() + graph.tensor_elements[of_model].sum()
    assert weights == pytest.approx(published["weights_m"] * 1e6, rel=0.05)
    kept = [(state.read, state.next) for state in graph.states if state.scope == "sequence"]
    assert sum(graph.tensor_elements[list(pair)].max() for pair in kept) == published.get("states", 0)


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
    families = zoo_families()
    assert set(families) == {entry.family for entry in ENTRIES.values()}
    assert all(entry.split == families[entry.family].split for entry in ENTRIES.values())


def test_every_family_has_a_reason() -> None:
    assert all(len(family.reason.split()) >= 3 for family in zoo_families().values())


@pytest.mark.parametrize(("split", "least"), [("train", 66), ("validation", 5), ("test", 16)])
def test_graphs_of_a_split(split: str, least: int) -> None:
    assert split in SPLITS
    assert sum(entry.split == split for entry in ON_PACKAGE) >= least


@pytest.mark.parametrize(("ops", "least"), [(0, 87), (2_000, 10), (10_000, 3), (50_000, 1)])
def test_graphs_above_a_size(ops: int, least: int) -> None:
    assert sum(entry.ops > ops for entry in ENTRIES.values()) >= least


def test_files_are_those_of_the_index() -> None:
    shipped = {path.name for path in files("go_opt.env.zoo.data").iterdir()}
    assert {name for name in shipped if name.endswith(".pb.xz")} == {graph_file_name(n) for n in ENTRIES}
    assert shipped_bytes() <= 15e6


def test_index_is_that_of_the_recipes() -> None:
    assert {(recipe.name, recipe.family) for recipe in RECIPES} == {
        (entry.name, entry.family) for entry in ENTRIES.values()
    }
    written = (files("go_opt.env.zoo.data") / INDEX_NAME).read_text("utf-8")
    assert written == index_text(ENTRIES.values())


def test_builder_refuses_unknown_name() -> None:
    with pytest.raises(ModelError, match="no recipe is called 'resnet'"):
        main(["resnet50", "resnet"])
