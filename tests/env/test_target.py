"""Targets: the shipped files, the mistakes a file can hold, rates of types, routes."""

from __future__ import annotations

import itertools
import re
import tomllib
from pathlib import Path

import networkx as nx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from go_opt.env import evaluate_plan, load_target, parse_target, shipped_target, target_names, target_text
from go_opt.errors import TargetError
from go_opt.model.dtypes import DTYPES
from tests.env.numpy_twin import shortest_route
from tests.strategies import (
    chip_kind,
    examples,
    make_plan,
    random_target,
    seeds,
    small_mcm,
    target_toml,
    toy_graph,
)

# --------------------------------------------------------------------------- shipped


@pytest.mark.parametrize("name", target_names())
def test_shipped_target_loads(name: str) -> None:
    target = load_target(name)
    assert target.name == target.source == name
    assert len(target.link_names) == target.topology.num_links + 2
    assert load_target(name) is target


def test_names_of_the_shipped_targets() -> None:
    assert target_names() == (
        *("dgx-a100-8", "dgx-h100-8", "edgetpu-4", "ethernet-a100-8"),
        *("gpu-2", "gpu-2-graph", "gpu-4", "gpu-4-graph", "gpu-8", "gpu-8-graph"),
        *("h100-pcie-2", "h100-pcie-4"),
        *("h100-sxm-1", "h100-sxm-2", "h100-sxm-4", "h100-sxm-8", "hailo8-1", "hailo8-4"),
        *("jetson-orin", "l4-1", "mcm-2x2", "mcm-6x6", "rtx4090-2", "wormhole-8x4"),
    )


# Machines that people own; the others are made up.
SOURCED = [name for name in target_names() if not name.startswith("mcm-")]
FIGURE = re.compile(r"(power_w|tile\w*|fill_s|\w+_bytes\w*|\w+_s|buffers|noise|vector_lanes|dma_engines) = ")
RATE = re.compile(r"(default|b?float\d+\w*|int\d+) = ")


@pytest.mark.parametrize("name", SOURCED)
def test_each_figure_says_where_it_is_from(name: str) -> None:
    text = target_text(name)
    figures = [line for line in text.splitlines() if FIGURE.match(line) or RATE.match(line)]
    assert len(figures) >= 10
    for line in figures:
        assert re.search(r"# .*(\[[1-9]\]|assumed|of no link|fitted)", line), line
    assert ("# fitted" in text) is bool(load_target(name).fitted_to)
    given = set(re.findall(r"^# (\[[1-9]\]) ", text, re.MULTILINE))
    assert set(re.findall(r"\[[1-9]\]", text)) == given


@pytest.mark.parametrize("count", [2, 4, 8])
def test_captured_graphs_change_launches_alone(count: int) -> None:
    launched, captured = (tomllib.loads(target_text(f"gpu-{count}{end}")) for end in ("", "-graph"))
    of_launches = ("kernel_overhead_s", "dependency_overhead_s", "dma_setup_s")
    (kind,), (node,) = launched["kinds"], captured["kinds"]
    kind, node = kind | kind.pop("simulator"), node | node.pop("simulator")
    assert [kind.pop(name) for name in of_launches] == [4e-6, 0.0, 2e-6]
    assert [node.pop(name) for name in of_launches] == [1e-6, 1e-6, 1e-6]
    assert node == kind
    for target in (launched, captured):
        del target["name"], target["description"], target["kinds"]
    assert captured == launched


def test_a_node_of_half_the_gpus_is_a_part_of_the_node() -> None:
    graph = toy_graph()
    for end in ("", "-graph"):
        nodes = [load_target(f"gpu-{count}{end}") for count in (2, 4, 8)]
        of_node = {
            evaluate_plan(graph, node, make_plan(graph, node, [0, 0, 1, 0, 1, 1])).makespan_s
            for node in nodes
        }
        assert len(of_node) == 1


def test_wiring_of_shipped_machines() -> None:
    star = load_target("h100-sxm-8").topology
    pointers, links = star.routes
    route = links[pointers[8 * 1 + 6] : pointers[8 * 1 + 7]]
    assert [(star.link_src[link], star.link_dst[link]) for link in route] == [("1", "host"), ("host", "6")]
    bridged = load_target("h100-pcie-4").topology
    rates = {
        (int(a), int(b)): float(rate)
        for a, b, rate in zip(bridged.link_from, bridged.link_to, bridged.rate_bytes_per_s, strict=True)
    }
    assert {pair for pair, rate in rates.items() if rate == 300e9} == {(0, 1), (1, 0), (2, 3), (3, 2)}
    assert len(rates) == 12
    mesh = load_target("wormhole-8x4").topology
    assert mesh.num_links == 2 * (8 * 3 + 7 * 4)
    assert sorted(mesh.link_to[mesh.link_from == 5]) == [1, 4, 6, 9]
    orin = load_target("jetson-orin")
    assert orin.chip_kind.tolist() == [0, 1, 1]


def test_default_target_is_that_of_the_design() -> None:
    target = load_target("mcm-6x6")
    (kind,) = target.kinds
    assert (target.num_chips, target.topology.kind, target.native_dtype) == (36, "ring", "bfloat16")
    assert dict(kind.matrix_flops_per_s) == {"int8": 24e12, "bfloat16": 12e12}
    assert dict(kind.vector_flops_per_s) == {"default": 0.4e12}
    assert (kind.sram_bytes, kind.sram_bytes_per_s, kind.kernel_overhead_s) == (32_000_000, 1e12, 0.1e-6)
    assert set(target.topology.rate_bytes_per_s) == {16e9}
    assert set(target.topology.latency_s) == {0.2e-6}
    assert (target.host_in_bytes_per_s, target.host_out_bytes_per_s, target.power_w) == (64e9, 64e9, 290)
    assert target.constraints.acyclic
    assert (target.constraints.no_skip, target.constraints.triangle) == ("prefix", "longest_path")
    assert target.link_names[0] == "link 0->1"
    assert target.link_names[35:] == ("link 35->0", "host in", "host out")


def test_fingerprint_is_of_all_but_the_description() -> None:
    text = target_text("mcm-2x2")
    plain = parse_target(text, "a")
    other = parse_target(text.replace("4-chip package", "four dies"), "b")
    faster = parse_target(text.replace("16e9", "17e9"), "a")
    assert plain.description != other.description
    assert plain.fingerprint == other.fingerprint == load_target("mcm-2x2").fingerprint
    assert plain.fingerprint != faster.fingerprint


# --------------------------------------------------------------------------- mistakes

TEXT = target_text("mcm-2x2")
MISTAKES = [
    ('name = "mcm-2x2"', "", "name", "name is missing"),
    ('name = "mcm-2x2"', 'name = ""', "name", "name must be a non-empty text"),
    ('native_dtype = "bfloat16"', 'native_dtype = "bf17"', "native_dtype", "unknown dtype 'bf17'"),
    ("overlap = true", 'overlap = "yes"', "overlap", "overlap must be true or false"),
    ("power_w = 32.2", "power_w = -1", "power_w", "power_w must be above zero"),
    ("acyclic = true", "acyclic = 1", "constraints.acyclic", "must be true or false, not 1"),
    ('no_skip = "prefix"', 'no_skip = "some"', "constraints.no_skip", "must be one of prefix, all, off"),
    ('triangle = "longest_path"', "", "constraints.triangle", "constraints.triangle is missing"),
    ("[constraints]", "[constrains]", "constraints", "constraints is missing"),
    ('kind = "ring"', 'kind = "torus"', "topology.kind", "must be one of ring, chain, mesh2d"),
    ('kind = "ring"', 'kind = "mesh2d"', "topology.columns", "topology.columns is missing"),
    ('kind = "ring"', 'kind = "all_to_all"', "constraints.triangle", "triangle needs a ring or a chain"),
    ("rate_bytes_per_s = 16e9", "rate_bytes_per_s = 0", "topology.rate_bytes_per_s", "above zero"),
    ("rate_bytes_per_s = 16e9", "rate_bytes_per_s = inf", "topology.rate_bytes_per_s", "a finite number"),
    ("latency_s = 0.2e-6", "latency_s = nan", "topology.latency_s", "a finite number, not nan"),
    ("latency_s = 0.2e-6", "latency_s = -1", "topology.latency_s", "zero or more"),
    ("in_bytes_per_s = 64e9", 'in_bytes_per_s = "64G"', "host.in_bytes_per_s", "a finite number, not '64G'"),
    ("[host]", "[hots]", "host", "host is missing"),
    ("[[kinds]]", "[kinds]", "kinds", "kinds must be a list of one or more tables"),
    ("count = 4", "count = 0", "kinds[0].count", "a whole number of 1 or more"),
    ("count = 4", "count = 4.0", "kinds[0].count", "a whole number of 1 or more"),
    ("count = 4", "count = 5000", "kinds", "5000 chips in all, must be 1 to 4096"),
    ("sram_bytes = 32_000_000", "sram_bytes = true", "kinds[0].sram_bytes", "a whole number"),
    ("sram_bytes_per_s = 1e12", "", "kinds[0].sram_bytes_per_s", "is missing"),
    ("kernel_overhead_s = 0.1e-6", "kernel_overhead_s = -1", "kinds[0].kernel_overhead_s", "zero or more"),
    ("count = 4", "count = 4\ndependency_overhead_s = -1", "kinds[0].dependency_overhead_s", "zero or more"),
    ("int8 = 24e12", "int9 = 24e12", "kinds[0].matrix_flops_per_s", "unknown dtype 'int9'"),
    ("int8 = 24e12", "int8 = 0", "kinds[0].matrix_flops_per_s.int8", "above zero"),
    ("default = 0.4e12", "", "kinds[0].vector_flops_per_s", "a table with at least one rate"),
    ("count = 4", "count = 4\nsram_byte = 1", "kinds[0].sram_byte", "did you mean 'sram_bytes'"),
    ("overlap = true", "overlap = true\ncolour = 1", "colour", "unknown field colour"),
]


@pytest.mark.parametrize(("old", "new", "field", "says"), MISTAKES)
def test_mistake_is_one_sentence_that_names_the_field(old: str, new: str, field: str, says: str) -> None:
    assert old in TEXT
    with pytest.raises(TargetError) as caught:
        parse_target(TEXT.replace(old, new, 1), "mine.toml")
    assert_one_sentence(caught.value)
    assert str(caught.value).startswith("target 'mine.toml': ")
    assert field in str(caught.value)
    assert caught.value.field == field
    assert says in str(caught.value)


@pytest.mark.parametrize(
    ("link", "field", "says"),
    [
        ((0, 2, 1e9, 0.0), "topology.links[0].destination", "a chip from 0 to 1, not 2"),
        ((-1, 1, 1e9, 0.0), "topology.links[0].source", "a chip from 0 to 1, not -1"),
        ((1, 1, 1e9, 0.0), "topology.links[0].destination", "another chip than the source"),
        ((0, 1, 0.0, 0.0), "topology.links[0].rate_bytes_per_s", "above zero"),
        ((0, 1, 1e9, -1.0), "topology.links[0].latency_s", "zero or more"),
    ],
)
def test_mistake_in_a_listed_link(link: tuple[int, int, float, float], field: str, says: str) -> None:
    with pytest.raises(TargetError, match=says) as caught:
        small_mcm(2, topology="listed", links=[link])
    assert_one_sentence(caught.value)
    assert caught.value.field == field


def test_two_kinds_of_one_name() -> None:
    with pytest.raises(TargetError, match="two kinds have the same name"):
        small_mcm(kinds=[chip_kind("a"), chip_kind("a")])


def test_any_value_in_any_field_is_accepted_or_refused_in_one_sentence() -> None:
    lines = target_toml(num_chips=2, topology="mesh2d").splitlines()
    values = ['""', '"x"', "-1", "0", "0.5", "nan", "inf", "true", "[]", "{}", "[{}]", "1e308", "2979-05-27"]
    refused: list[tuple[str, TargetError]] = []
    for i, value in itertools.product(range(len(lines)), values):
        key = lines[i].partition(" = ")[0]
        text = "\n".join([*lines[:i], f"{key} = {value}", *lines[i + 1 :]])
        try:
            parse_target(text, "fuzzed")
        except TargetError as error:
            refused.append((key, error))
    assert len(refused) > len(lines)
    for key, error in refused:
        assert_one_sentence(error)
        assert error.field.startswith(key)


def test_text_that_is_no_toml() -> None:
    with pytest.raises(TargetError, match=r"target 'mine': not valid TOML: Invalid value") as caught:
        parse_target("name =", "mine")
    assert_one_sentence(caught.value)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("a = " + "[" * 10_000, "nested too deep"),
        ("a = " + "{a=" * 10_000, "nested too deep"),
        ("a = " + "9" * 5000, "a number too long"),
        ("a." * 20_000 + "a = 1", "more than 200 dots"),  # the parser would take seconds
        ("[" + "a." * 20_000 + "a]", "more than 200 dots"),
        ("#" * (2**20 + 1), "a text of 1048577 characters, the limit is 1048576"),
    ],
    ids=["arrays", "tables", "digits", "key", "header", "size"],
)
def test_text_that_a_parser_chokes_on(text: str, reason: str) -> None:
    with pytest.raises(TargetError, match=reason) as caught:
        parse_target(text, "mine")
    assert_one_sentence(caught.value)


@pytest.mark.parametrize("key", ["in_bytes_per_s", "count"])
@pytest.mark.parametrize("value", ["0x" + "f" * 6000, "9" * 400])
def test_a_number_larger_than_any_float(key: str, value: str) -> None:
    text = re.sub(rf"(?m)\b{key} = \S+?(?=[,}}\s])", f"{key} = {value}", target_toml(num_chips=2))
    assert value in text
    with pytest.raises(TargetError, match=f"{key} must be .*, not an integer of") as caught:
        parse_target(text, "mine")
    assert_one_sentence(caught.value)


def test_no_file_is_looked_for_where_only_shipped_targets_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine").write_text(target_toml(num_chips=2), "utf-8")
    assert load_target("mine").num_chips == 2
    for name in ("mine", "mind", str(tmp_path / "mine"), "a\0b", "x" * 10_000):
        with pytest.raises(TargetError, match=r"unknown target .*; or give a \.toml file\)"):
            shipped_target(name)
    assert shipped_target("gpu-2") is load_target("gpu-2")


def test_unknown_name_names_near_misses() -> None:
    with pytest.raises(TargetError, match=r"unknown target 'mcm-6x' .*; did you mean 'mcm-6x6'"):
        load_target("mcm-6x")


def test_unknown_name_without_near_misses() -> None:
    with pytest.raises(TargetError, match="known: dgx-a100-8, dgx-h100-8, edgetpu-4, ethernet-a100-8, gpu-2"):
        load_target("zzz")


def test_file(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(TEXT)
    assert load_target(path).fingerprint == load_target("mcm-2x2").fingerprint
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(TargetError, match="not UTF-8"):
        load_target(path)
    with pytest.raises(TargetError, match="No such file"):
        load_target(tmp_path / "other.toml")


def assert_one_sentence(error: TargetError) -> None:
    message = str(error)
    assert message.endswith((".", "?"))
    assert "\n" not in message
    assert len(message) < 200


# --------------------------------------------------------------------------- rates


def test_rates_of_types_not_listed() -> None:
    (kind,) = load_target("mcm-6x6").kinds
    rates = dict(zip(DTYPES, kind.rates(kind.matrix_flops_per_s, "bfloat16"), strict=True))
    listed = {"bfloat16": 12e12, "int8": 24e12}
    # Not listed: the native rate, scaled by 16 bits over the type's where it is wider.
    wider = {"float32": 6e12, "float64": 3e12, "int32": 6e12, "complex128": 1.5e12}
    narrower = {"float16": 12e12, "uint8": 12e12, "int4": 12e12, "bool": 12e12}
    for name, rate in (listed | wider | narrower).items():
        assert rates[name] == rate, name


def test_default_rate_is_that_of_all_types_not_listed() -> None:
    (kind,) = load_target("gpu-2").kinds
    rates = dict(zip(DTYPES, kind.rates(kind.vector_flops_per_s, "bfloat16"), strict=True))
    assert rates["float32"] == 19.5e12
    assert {rate for name, rate in rates.items() if name != "float32"} == {39e12}


def test_fastest_type_stands_for_a_native_one_that_is_not_listed() -> None:
    kind = small_mcm(matrix_flops_per_s={"int8": 2e9, "int32": 1e9}).kinds[0]
    rates = dict(zip(DTYPES, kind.rates(kind.matrix_flops_per_s, "bfloat16"), strict=True))
    assert (rates["bfloat16"], rates["float32"], rates["int32"]) == (2e9, 1e9, 1e9)


def test_aliases_of_types() -> None:
    kind = small_mcm(matrix_flops_per_s={"bf16": 3e9}).kinds[0]
    assert dict(kind.matrix_flops_per_s) == {"bfloat16": 3e9}


# --------------------------------------------------------------------------- topologies


@pytest.mark.parametrize(
    ("topology", "num_links"),
    # 10 columns, 10 rows: 2 * 2 * 9 * 10 directed links.
    [("ring", 100), ("chain", 99), ("mesh2d", 360), ("all_to_all", 9900), ("host_star", 200)],
)
def test_more_than_64_chips(topology: str, num_links: int) -> None:
    graph, target = toy_graph(), small_mcm(100, topology=topology, columns=10)
    assert target.topology.num_links == num_links
    metrics = evaluate_plan(graph, target, make_plan(graph, target, (0, 70, 71, 98, 99, 99)))
    assert metrics.valid
    assert metrics.compute_s[[0, 70, 71, 98, 99]] == pytest.approx(np.array([3.4, 9, 6, 5, 20]) * 1e-6)


def test_kinds_stand_one_after_the_other() -> None:
    target = small_mcm(kinds=[chip_kind("a", 2, sram_bytes=10), chip_kind("b", 3, sram_bytes=20)])
    assert target.chip_kind.tolist() == [0, 0, 1, 1, 1]
    assert target.chip_sram_bytes.tolist() == [10, 10, 20, 20, 20]


def test_ring_and_chain() -> None:
    ring, chain = small_mcm(3).topology, small_mcm(3, topology="chain").topology
    assert list(zip(ring.link_from, ring.link_to, strict=True)) == [(0, 1), (1, 2), (2, 0)]
    assert list(zip(chain.link_from, chain.link_to, strict=True)) == [(0, 1), (1, 2)]
    assert ring.has_route(2, 0)
    assert chain.has_route(0, 2)
    assert not chain.has_route(2, 0)
    assert (ring.route(2, 1), ring.route(1, 1)) == ([2, 0], [])
    assert (chain.route(0, 2), chain.route(2, 0)) == ([0, 1], [])
    assert small_mcm(1).topology.num_links == 0


def test_mesh_with_a_ragged_last_row() -> None:
    # 0 1 2
    # 3 4
    mesh = small_mcm(5, topology="mesh2d", columns=3).topology
    ends = set(zip(mesh.link_from.tolist(), mesh.link_to.tolist(), strict=True))
    one_way = {(0, 1), (1, 2), (0, 3), (1, 4), (3, 4)}
    assert ends == one_way | {(b, a) for a, b in one_way}
    # From 3 to 2 three ways lead over 3 links; 3->0 is the lowest link that leaves 3.
    assert [int(mesh.link_to[link]) for link in mesh.route(3, 2)] == [0, 1, 2]


def test_star_goes_through_the_host() -> None:
    star = small_mcm(3, topology="host_star").topology
    assert star.route(0, 2) == [0, 5]
    assert star.route(1, 1) == []
    assert star.link_src == ("0", "host", "1", "host", "2", "host")
    assert star.link_dst == ("host", "0", "host", "1", "host", "2")


def test_listed_links_may_leave_chips_apart() -> None:
    topology = small_mcm(3, topology="listed", links=[(0, 2, 1e9, 0.0)]).topology
    assert topology.has_route(0, 2)
    assert topology.has_route(1, 1)
    assert not topology.has_route(2, 0)
    assert not topology.has_route(0, 1)


@settings(max_examples=examples(100))
@given(seed=seeds, kind=st.sampled_from(["mesh2d", "all_to_all", "listed"]))
def test_routes_are_shortest_paths(seed: int, kind: str) -> None:
    target = random_target(np.random.default_rng(seed), topology=kind)
    topology = target.topology
    links = list(zip(topology.link_from.tolist(), topology.link_to.tolist(), strict=True))
    graph = nx.DiGraph(links)
    graph.add_nodes_from(range(target.num_chips))
    hops = dict(nx.all_pairs_shortest_path_length(graph))
    for a, b in itertools.product(range(min(target.num_chips, 9)), repeat=2):
        route = topology.route(a, b)
        assert len(route) == hops[a].get(b, 0)
        assert [links[link][0] for link in route] == [a, *(links[link][1] for link in route)][: len(route)]
        assert topology.has_route(a, b) == (b in hops[a])
        assert tuple(route) == shortest_route(topology, a, b)
