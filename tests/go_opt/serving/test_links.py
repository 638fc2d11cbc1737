"""Which links to add: packages, links for a plan, brute force over all choices, and the bound."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations
from typing import Final

import numpy as np
import pytest

import go_opt
from go_opt.env import Target, evaluate_plan, parse_target
from go_opt.env.target.toml import target_to_toml
from go_opt.errors import InvalidInputError
from go_opt.model.builder import GraphBuilder
from go_opt.model.graph import Graph
from go_opt.model.plan import Plan
from go_opt.result import Request
from go_opt.search.optimizer import optimize_request
from go_opt.serving.links.design import design_links, links_for, parse_links
from go_opt.serving.links.packages import (
    missing_links,
    with_every_link,
    with_free_links,
    with_links,
    with_memory,
    with_order,
)

QUICK: Final = Request(
    objective="latency", max_evaluations=40, simulate=False, replication=False, splits=False
)


def package(chips: int, kind: str = "chain", rate_bytes_per_s: float = 30e9) -> Target:
    text = f"""
name = "tiny"
native_dtype = "bfloat16"
overlap = true
constraints = {{acyclic = false, no_skip = "off", triangle = "off"}}
topology = {{kind = "{kind}", rate_bytes_per_s = {rate_bytes_per_s}, latency_s = 1e-7}}
host = {{in_bytes_per_s = 64e9, out_bytes_per_s = 64e9}}
[[kinds]]
name = "chip"
count = {chips}
sram_bytes = 1000000
sram_bytes_per_s = 1e12
kernel_overhead_s = 1e-7
pays_transfers = true
matrix_flops_per_s = {{default = 1e12}}
vector_flops_per_s = {{default = 1e11}}
"""
    return parse_target(text, "tiny")


def net(seed: int, ops: int = 12) -> Graph:
    """Products that read one or two of the three before."""
    random = np.random.default_rng(seed)
    builder = GraphBuilder("net")
    builder.add_tensor("x", 64, "bf16", "input")
    for i in range(ops):
        builder.add_tensor(f"w{i}", 1000, "bf16", "weight")
        read = {int(random.integers(max(0, i - 3), i)) for _ in range(2)} if i else set()
        reads = [(f"t{j}", None) for j in sorted(read)] or [("x", None)]
        flops, elements = float(random.uniform(0.5, 2)) * 1e6, int(random.integers(500, 8000))
        builder.add_op(
            f"op{i}",
            "MatMul",
            "matrix",
            flops=flops,
            dtype="bf16",
            reads=[*reads, (f"w{i}", None)],
            writes=[(f"t{i}", elements, "bf16")],
        )
    builder.mark_output(f"t{ops - 1}")
    return builder.build()


@pytest.mark.parametrize("seed", [2, 3, 5])
def test_a_design_is_the_best_of_all_choices(seed: int) -> None:
    graph, base = net(seed), with_free_links(package(3))
    design = design_links(graph, base, 2, QUICK)
    choices = [links for number in range(3) for links in combinations(missing_links(base), number)]
    found = [optimize_request(graph, with_links(base, links), QUICK) for links in choices]
    least_s = min(one.objective_s for one in found)
    assert design.result.objective_s <= least_s * (1 + 1e-9)
    assert design.bound.seconds <= least_s * (1 + 1e-9)
    assert design.result.objective_s <= design.before.objective_s
    assert len(design.added) <= 2
    assert go_opt.verify(graph, design.target, design.result.plan) == []
    for one in design.added:  # each is needed
        rest = with_links(base, [other for other in design.added if other != one])
        plan = replace(design.result.plan, target_fingerprint=rest.fingerprint)
        is_slower = evaluate_plan(graph, rest, plan).makespan_s > design.result.objective_s
        assert is_slower or go_opt.verify(graph, rest, plan)


def scattered(graph: Graph, target: Target, seed: int) -> Plan:
    chips = np.random.default_rng(seed).integers(0, target.num_chips, graph.num_ops).astype(np.int32)
    alone = np.arange(graph.num_ops, dtype=np.int32)
    return Plan.create(
        graph,
        target.source,
        target.fingerprint,
        placement=chips,
        order=alone,
        fusion_group=alone,
        provenance="test",
    )


@pytest.mark.parametrize("seed", range(4))
def test_links_for_a_plan_are_the_best_of_all(seed: int) -> None:
    graph, base = net(seed), with_free_links(package(4, "ring"))
    plan = scattered(graph, base, seed)
    request = replace(QUICK, objective="throughput")
    missing = missing_links(base)

    def interval_s(links: tuple[tuple[int, int], ...]) -> float:
        return evaluate_plan(graph, with_links(base, links), plan).interval_s

    for number in (1, 2):
        links = links_for(graph, base, plan, missing, number, request)
        best_s = min(interval_s(choice) for choice in combinations(missing, number))
        assert interval_s(links) == pytest.approx(best_s)
    # Each chip of the ring has a link on either side already: one more each.
    found = links_for(graph, base, plan, missing, 8, request, ports=2)
    for side in (0, 1):
        ends = [link[side] for link in found]
        assert len(set(ends)) == len(ends)


@pytest.mark.parametrize("seed", range(4))
def test_every_link_is_no_slower_for_any_plan(seed: int) -> None:
    graph, base = net(seed), with_free_links(package(4, "ring"))
    every = with_every_link(base)
    random = np.random.default_rng(seed)
    missing = missing_links(base)
    for _ in range(5):
        plan = scattered(graph, base, int(random.integers(1000)))
        there = evaluate_plan(graph, every, plan)
        picked = [missing[i] for i in random.permutation(len(missing))[:3]]
        here = evaluate_plan(graph, with_links(base, picked), plan)
        assert there.interval_s <= here.interval_s * (1 + 1e-12)
        assert there.latency_s <= here.latency_s * (1 + 1e-12)


def test_packages() -> None:
    mcm = go_opt.target("mcm-2x2")
    base = with_free_links(mcm)
    assert base.constraints.triangle == "off"
    assert missing_links(base) == [(0, 2), (0, 3), (1, 0), (1, 3), (2, 0), (2, 1), (3, 1), (3, 2)]
    more = with_links(base, [(0, 2)])
    assert (more.topology.num_links, more.topology.rate_bytes_per_s[-1]) == (5, 16e9)
    again = parse_target(target_to_toml(more), "more")
    assert again.topology.link_to.tolist() == more.topology.link_to.tolist()
    assert missing_links(with_every_link(base)) == []
    assert with_memory(mcm, 5_000_000).chip_sram_bytes.tolist() == [5_000_000] * 4
    with pytest.raises(InvalidInputError, match="links already"):
        design_links(net(0), package(3, "all_to_all"), 1, QUICK)
    with pytest.raises(InvalidInputError, match="no link is added"):
        with_free_links(package(3, "host_star"))


def test_an_order_of_chips() -> None:
    mixed = target_to_toml(package(3)).replace('name = "chip"\ncount = 3', 'name = "a"\ncount = 2')
    kind = mixed[mixed.index("[[kinds]]") :].replace('"a"', '"b"').replace("1000000000000.0", "2e12")
    target = parse_target(mixed + kind.replace("count = 2", "count = 1"), "mixed")
    turned = with_order(target, "1*a,b,1*a")
    assert [(one.name, one.count) for one in turned.kinds] == [("a", 1), ("b", 1), ("a-2", 1)]
    assert turned.kinds[1].sram_bytes_per_s == 2e12
    for order in ("2*a", "3*a,1*b", "2*a,1*c", "a,b"):
        with pytest.raises(InvalidInputError, match=r"must have the chips 2\*a,1\*b"):
            with_order(target, order)


def test_numbers_of_links() -> None:
    assert (parse_links("+8 links"), parse_links("1 link")) == (8, 1)
    for text in ("8", "-1 links", "+0 links", "5s"):
        with pytest.raises(InvalidInputError, match="--budget must be links to add"):
            parse_links(text)
