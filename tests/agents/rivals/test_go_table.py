"""The rivals of GO's table: valid plans that take what is said, and schedules worked out by hand."""

from __future__ import annotations

import math
from importlib.util import find_spec

import numpy as np
import pytest
from hypothesis import given, settings

import go_opt
from go_opt.env import Target, evaluate_plan
from go_opt.model.builder import GraphBuilder
from go_opt.model.graph import Graph
from go_opt.solver.verify.verifier import verify
from tests.benchmarks import go_table_rivals as rivals
from tests.benchmarks import hdp
from tests.benchmarks.go_table_kernels import FUSIONS, Best, Kernels, earliest_finish, kernels_of
from tests.benchmarks.go_table_rows import ROWS, human_placements
from tests.strategies import examples, random_graph, seeds, small_mcm

SEARCHES = {
    "one device": rivals.one_device,
    "heft": rivals.heft,
    "peft": rivals.peft,
    "critical path": rivals.critical_path,
    "join-all": rivals.join_all,
    "metis": rivals.metis,
}
US = 1e-6


def named(*names: str) -> list:
    needs_metis = pytest.mark.skipif(find_spec("pymetis") is None, reason="pymetis")
    return [pytest.param(name, marks=[needs_metis] if name == "metis" else []) for name in names]


def devices(count: int, transfer_us: float) -> Target:
    """Linked to each other, with transfers that take a latency and next to nothing besides."""
    rates = dict.fromkeys(("link_bytes_per_s", "host_in_bytes_per_s", "host_out_bytes_per_s"), 1e15)
    return small_mcm(count, topology="all_to_all", link_latency_s=transfer_us * US, sram_bytes=10**9, **rates)


def fork(*branch_us: float, beside_us: float | None = None) -> Graph:
    """A first op of 1 us, others that read it, and a last one of 1 us that reads those; one op beside."""
    b = GraphBuilder("fork")

    def add(name: str, seconds_us: float, *reads: str) -> str:
        read, made = [(read, None) for read in reads], [(f"of {name}", 1, "int8")]
        measured_s = {"chip": seconds_us * US}
        b.add_op(name, "Exp", "matrix", flops=1, dtype="int8", reads=read, writes=made, measured_s=measured_s)
        return f"of {name}"

    first = add("first", 1.0)
    b.mark_output(add("last", 1.0, *[add(f"branch {i}", s, first) for i, s in enumerate(branch_us)]))
    if beside_us is not None:
        b.mark_output(add("beside", beside_us))
    return b.build()


def fusions(graph: Graph, target: Target) -> list[Kernels]:
    return [kernels_of(graph, target, fusion) for fusion in FUSIONS]


def best_of(name: str, graph: Graph, target: Target) -> Best:
    """Of the plans of a rival, which is valid and takes what is said."""
    best = Best()
    SEARCHES[name](fusions(graph, target), best, 0, lambda: 0.0)
    assert best.plan is not None
    assert verify(graph, target, best.plan) == []
    metrics = evaluate_plan(graph, target, best.plan)
    assert metrics.valid
    assert math.isclose(metrics.makespan_s, best.makespan_s, rel_tol=1e-12)
    return best


@pytest.mark.parametrize("name", named(*SEARCHES))
@settings(max_examples=examples(15))
@given(seed=seeds)
def test_plans_are_valid_and_take_what_is_said(name: str, seed: int) -> None:
    rng = np.random.default_rng(seed)
    best_of(name, random_graph(rng, int(rng.integers(2, 40))), devices(int(rng.integers(2, 5)), 3.0))


@pytest.mark.parametrize(
    ("name", "makespan_us"),
    # On two devices: one runs first and branch 0 until 4 us, the other branch 1 from 2 to 5 us, then last.
    [("one device", 8.0), ("heft", 6.0), ("peft", 6.0), ("critical path", 6.0), ("join-all", 6.0)],
)
def test_a_fork_by_hand(name: str, makespan_us: float) -> None:
    best = best_of(name, fork(3.0, 3.0), devices(2, 1.0))
    assert math.isclose(best.makespan_s, makespan_us * US, rel_tol=1e-6)


@pytest.mark.parametrize("inserts", [True, False])
def test_a_kernel_goes_into_the_time_before_an_operand_arrives(inserts: bool) -> None:
    # Device 0 is busy until 6 us; device 1 from 5 to 9 us, for what branch 1 reads takes 4 us to arrive.
    kernels = kernels_of(fork(5.0, 4.0, beside_us=5.0), devices(2, 4.0), "default")
    device, _ = earliest_finish(kernels, kernels.upward_rank(kernels.transfer_s), inserts=inserts)
    of_op = dict(zip(kernels.graph.op_names, device[kernels.kernel_of], strict=True))
    assert of_op["branch 0"] == of_op["first"] != of_op["branch 1"]
    assert (of_op["beside"] == of_op["branch 1"]) == inserts


def test_the_rank_is_the_longest_way_to_the_end() -> None:
    kernels = kernels_of(fork(5.0, 4.0), devices(2, 4.0), "default")
    rank_us = kernels.upward_rank(kernels.transfer_s) / US
    of_op = dict(zip(kernels.graph.op_names, rank_us[kernels.kernel_of], strict=True))
    by_hand = {"last": 1.0, "branch 0": 10.0, "branch 1": 9.0, "first": 15.0}
    assert of_op == pytest.approx(by_hand, rel=1e-6)


@pytest.mark.parametrize("name", ["rnnlm_2x2048", "gnmt_2", "transformer_xl_4", "wavenet_2x18"])
def test_experts_place_layers(name: str) -> None:
    """The state of a recurrent layer stays on its device, and most that moves goes to the next one."""
    (row,) = (row for row in ROWS if row.graph == name)
    graph = go_opt.load(f"zoo:{name}")
    names = np.array(graph.op_names)
    for device in human_placements(row, graph):
        assert set(device.tolist()) == set(range(row.devices))
        source, reader = graph.edge_src, graph.edge_dst
        is_sent = device[source] != device[reader]
        assert is_sent.mean() < 0.1
        if name.startswith("rnnlm"):
            step = [name.split("/")[1] if "/" in name else "" for name in names]
            assert all(step[s] == step[r] for s, r in zip(source[is_sent], reader[is_sent], strict=True))
            assert (device[reader] - device[source])[is_sent].tolist() == [1] * is_sent.sum()


def test_hdp_learns_to_leave_dear_transfers() -> None:
    """Where each transfer costs more than everything else, what it draws comes closer to one device."""
    kernels = kernels_of(fork(*[1.0] * 12), devices(2, 50.0), "default")
    draws_s: list[float] = []

    class Watched(Best):
        def add_scheduled(self, kernels: Kernels, device: np.ndarray, by: str) -> float:
            draws_s.append(super().add_scheduled(kernels, device, by))
            return draws_s[-1]

    best, turns = Watched(), iter(range(150, -1, -1))
    hdp.train(kernels, best, 0, lambda: next(turns), hdp.Settings(hidden=8))
    assert math.isclose(best.makespan_s, 14 * US, rel_tol=1e-6)
    assert np.mean(draws_s[-80:]) < 0.7 * np.mean(draws_s[1:81])
