"""Throughput on chips without an order: copies of a plan, pipelines of copies where memory asks for them."""

from __future__ import annotations

import numpy as np
import pytest

import go_opt
from go_opt.env import Target, evaluate_plan
from go_opt.model.builder import GraphBuilder
from go_opt.model.graph import Graph
from go_opt.result import Request
from go_opt.search.methods.slices import copies
from go_opt.search.state import Search
from tests.benchmarks.bench_gpus import copies_interval_s, one_gpu
from tests.strategies import chip_kind, small_mcm

US = 1e-6


def chain(*seconds: float, weight_bytes: int = 0, input_bytes: int = 0, kind: str = "chip") -> Graph:
    """Ops one behind the other that take so long, with weights of their own and 100 bytes between them."""
    b = GraphBuilder("chain")
    if input_bytes:
        b.add_tensor("in", input_bytes, "int8", "input")
    for i, op_s in enumerate(seconds):
        reads = [(f"t{i - 1}", None)] if i else [("in", None)] * bool(input_bytes)
        if weight_bytes:
            b.add_tensor(f"w{i}", weight_bytes, "int8", "weight")
            reads.append((f"w{i}", None))
        writes = [(f"t{i}", 100, "int8")]
        b.add_op(
            f"op{i}", "Exp", "vector", flops=1, dtype="int8", reads=reads, writes=writes,
            measured_s={kind: op_s},
        )  # fmt: skip
    return b.build()


@pytest.mark.parametrize("name", ["gpu-2", "gpu-8"])
@pytest.mark.parametrize("zoo", ["mobilenet_v2", "gpt2"])
def test_never_worse_than_copies_of_the_plan_of_one_gpu(name: str, zoo: str) -> None:
    graph, target = go_opt.load(f"zoo:{zoo}"), go_opt.target(name)
    one, all_of_them = (
        go_opt.optimize(graph, node, max_evaluations=40, policy="none") for node in (one_gpu(name), target)
    )
    assert all_of_them.metrics.interval_s <= copies_interval_s(graph, target, one) * (1 + 1e-9)
    assert go_opt.verify(graph, target, all_of_them.plan) == []


def test_all_chips_run_all_ops_where_one_chip_holds_them() -> None:
    target = small_mcm(4, topology="all_to_all")
    # Branches of 5 and 6 us cannot be shared out evenly otherwise.
    result = go_opt.optimize(chain(5 * US, 6 * US), target, max_evaluations=20, policy="none")
    assert result.metrics.interval_s == pytest.approx(11 * US / 4)
    assert (result.status, result.plan.chips_used) == ("OPTIMAL", 4)


def test_weights_that_fit_no_chip_are_shared_by_stages_of_several() -> None:
    # Each chip holds the weights of one op; of both, 3000 bytes would stream, 15 us an inference.
    target = small_mcm(4, topology="all_to_all", sram_bytes=5000)
    graph = chain(10 * US, 10 * US, weight_bytes=4000)
    result = go_opt.optimize(graph, target, max_evaluations=60, policy="none")
    assert result.plan.replication.tolist() == [2, 2]
    assert sorted(result.plan.placement.tolist()) == [0, 2]
    assert result.metrics.interval_s == pytest.approx(5 * US)
    assert result.metrics.stream_bytes.tolist() == [0] * 4


def test_without_replication_every_op_has_one_chip() -> None:
    target = small_mcm(4, topology="all_to_all")
    graph = chain(5 * US, 6 * US)
    result = go_opt.optimize(graph, target, replication=False, max_evaluations=40, policy="none")
    assert result.plan.replication.tolist() == [1, 1]
    assert result.metrics.interval_s == pytest.approx(6 * US)


def copied(graph: Graph, target: Target) -> list[tuple[int, int]]:
    """(first chip, copies) of what is proposed for each op a kernel of its own."""
    search = Search(graph, target, Request())
    order = np.arange(graph.num_ops, dtype=np.int32)
    found = []
    for proposal in copies(search, "all", order, order):
        assert proposal.replication is not None
        search.take(proposal)
        found.append((int(proposal.placement[0]), int(proposal.replication[0])))
    return found


def test_as_many_copies_as_the_host_keeps_busy() -> None:
    # 1000 bytes take the host 5 us: four chips share 20 us of work as well as eight.
    graph = chain(20 * US, input_bytes=1000)
    assert copied(graph, small_mcm(8, topology="all_to_all")) == [(0, 8), (0, 4)]
    assert copied(graph, small_mcm(3, topology="all_to_all")) == [(0, 3)]
    assert copied(graph, small_mcm(8)) == []  # on a ring a slicing is all that is needed


def test_copies_are_of_one_kind_that_runs_all() -> None:
    kinds = [chip_kind("slow", 2), chip_kind("chip", 3)]
    graph = chain(20 * US)
    target = small_mcm(topology="all_to_all", kinds=kinds)
    assert copied(graph, target) == [(0, 2), (2, 3)]
    result = go_opt.optimize(graph, target, max_evaluations=30, policy="none")
    assert evaluate_plan(graph, target, result.plan).interval_s <= 20 * US / 3 * (1 + 1e-9)
