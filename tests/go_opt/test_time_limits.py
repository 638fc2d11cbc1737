"""Every search ends within its budget: nested ones, those without a plan, and those of a service."""

from __future__ import annotations

import time
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import onnx
import pytest
from numba.core import event

import go_opt
from go_opt.env import load_target, load_zoo
from go_opt.env.simulator import simulate as simulator
from go_opt.env.simulator.simulate import simulate_batch
from go_opt.model.codecs.wire import graph_to_proto
from go_opt.model.graph import Graph
from go_opt.model.plan import Candidate
from go_opt.result import Request
from go_opt.search.compiling.warm_up import warm_up
from go_opt.search.methods.events import Event
from go_opt.search.shared import context as shared
from go_opt.search.shared.context import Context
from go_opt.search.splits.rows import row_ways
from go_opt.search.splits.ways import divisible_ops, row_divisible
from go_opt.search.state import Search
from go_opt.service.messages.convert import request_to_proto
from go_opt.service.workers.optimizer import LocalOptimizer, SearchControl
from tests.exports import LIGHT, info, model, node
from tests.searches import GRAPHS, each_option, search
from tests.strategies import small_mcm, toy_graph

BUDGET_S = 0.4
LATE_S = 1.5 * (BUDGET_S + 2.0)  # machines may be slow


class ProcessorTime:
    """A clock that stands still while other processes run, however many there are."""

    skipped_s = 0.0

    def __call__(self) -> float:
        return time.process_time() + self.skipped_s


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> ProcessorTime:
    """What searches take for the time, and tests."""
    monkeypatch.setattr(time, "monotonic", clock := ProcessorTime())
    return clock


@pytest.fixture(scope="module")
def head(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A language-model head whose last weight is larger than any package's part of it can hold."""
    weights, nodes = [], []
    for i in range(6):
        weights.append(onnx.numpy_helper.from_array(np.zeros((768, 768), np.float32), f"w{i}"))
        nodes += [
            node("MatMul", f"x{i} w{i}", f"m{i}"),
            node("Relu", f"m{i}", f"r{i}"),
            node("Add", f"r{i} x{i}", f"x{i + 1}"),
        ]
    folder = tmp_path_factory.mktemp("head")
    weights.append(_stored_apart(folder, "vocabulary", 768, 120_000))
    nodes += [
        node("MatMul", "x6 vocabulary", "logits"),
        node("ArgMax", "logits", "token", axis=-1, keepdims=0),
    ]
    outputs = [info("token", [1, 64], onnx.TensorProto.INT64)]
    onnx.save(model(nodes, [info("x0", [1, 64, 768])], outputs, weights), folder / "head.onnx")
    return folder / "head.onnx"


def _stored_apart(folder: Path, name: str, *shape: int) -> onnx.TensorProto:
    """Zeros in a sparse file."""
    num_bytes = 4 * int(np.prod(shape))
    with (folder / name).open("wb") as file:
        file.truncate(num_bytes)
    tensor = onnx.TensorProto(
        name=name, dims=shape, data_type=onnx.TensorProto.FLOAT, data_location=onnx.TensorProto.EXTERNAL
    )
    for key, value in (("location", name), ("offset", "0"), ("length", str(num_bytes))):
        tensor.external_data.add(key=key, value=value)
    return tensor


@pytest.mark.usefixtures("clock")
def test_nested_searches_keep_the_deadline(head: Path) -> None:
    """Splits of the head leave searches without a plan, which once went on for ever."""
    began_s, budget_s = time.monotonic(), 3.0
    hang_s = 60.0
    result = go_opt.optimize(head, budget_s=budget_s, should_stop=lambda: time.monotonic() > began_s + hang_s)
    assert result.wall_s < 1.5 * (budget_s + 2.0)
    assert go_opt.verify(head, None, result.plan) == []


@pytest.mark.usefixtures("clock")
@pytest.mark.parametrize("number", range(len(each_option())))
def test_every_option_ends_in_time(number: int) -> None:
    graph = load_zoo(GRAPHS[number % len(GRAPHS)])
    target = load_target(("mcm-2x2", "mcm-6x6", "gpu-2")[number % 3])
    result = search(graph, target, budget_s=BUDGET_S, **each_option()[number])
    assert result is None or result.wall_s < LATE_S


def test_a_search_without_a_plan_ends_soon_after_its_time() -> None:
    search = Search(toy_graph(), small_mcm(2), Request(budget_s=1e-9))
    assert search.is_late
    assert not search.is_done()
    search.context.limit_s = -shared.OVERTIME_S
    assert search.is_done()


def test_whole_ops_are_searched_even_if_their_tables_take_the_time() -> None:
    graph, target, limit_s = go_opt.load(LIGHT / "light_squeezenet.onnx"), load_target("mcm-6x6"), 1.0
    assert divisible_ops(graph, target, Request(max_latency_s=limit_s)).any()
    result = search(graph, target, budget_s=1e-6, **each_option()[0] | {"max_latency_s": limit_s})
    assert result is not None
    assert result.method.startswith("greedy")


def test_a_plan_is_simulated_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """For its answer a search simulates plans again, which takes a second on large graphs."""
    simulate, graph, target = Mock(wraps=simulate_batch), toy_graph(), small_mcm(2)
    monkeypatch.setattr(simulator, "simulate_batch", simulate)
    order = np.arange(graph.num_ops, dtype=np.int32)
    plan, equal = (Candidate("", np.zeros_like(order), order, order).plan(graph, target) for _ in range(2))
    seen = [
        simulator.simulate_plan(graph, target, one, without=without)
        for one in (plan, plan)
        for without in ((), [])
    ]
    assert all(one is seen[0] for one in seen)
    assert simulate.call_count == 1
    simulator.simulate_plan(graph, target, plan, without=("dma",))
    simulator.simulate_plan(graph, target, plan, seed=1)
    simulator.simulate_plan(graph, target, equal)
    assert simulate.call_count == 4


def test_the_clock_stands_still_while_kernels_compile_but_not_for_ever(clock: ProcessorTime) -> None:
    context = Context(1.0)
    with context.compiling():
        clock.skipped_s += 100.0
    assert context.elapsed_s < 50.0
    for _ in range(3):
        with context.compiling(at_most_s=100.0):
            clock.skipped_s += 100.0
    assert 150.0 < context.elapsed_s < 250.0


def answered(graph: Graph, deadline_s: float) -> float:
    """Seconds until a worker of the service answers a request for an hour of search."""
    message = request_to_proto(Request(budget_s=3600.0))
    message.graph.CopyFrom(graph_to_proto(graph))
    message.target.name = "mcm-6x6"
    began_s = time.monotonic()
    control = SearchControl(deadline_s=began_s + deadline_s)
    LocalOptimizer().optimize(message.SerializeToString(), control)
    return time.monotonic() - began_s


@pytest.mark.usefixtures("clock")
def test_the_deadline_of_a_call_holds(head: Path) -> None:
    assert answered(go_opt.load(head), 3.0) < 1.5 * (3.0 + 2.0)


def test_the_deadline_of_a_call_holds_while_kernels_compile(
    monkeypatch: pytest.MonkeyPatch, clock: ProcessorTime
) -> None:
    """Then the clock of the search stands still, that of the caller does not."""

    def slowly(self: Search, proposed: Event) -> bool:
        with event.trigger_event("numba:compile"):
            clock.skipped_s += 1.0
        return take(self, proposed)

    take = Search.take
    warm_up()
    monkeypatch.setattr(Search, "take", slowly)
    assert answered(load_zoo("mobilenet_v2"), 4.5) < 6.5


@pytest.mark.usefixtures("clock")
def test_ways_by_rows_are_found_in_time() -> None:
    """Finding all of them takes seconds."""
    graph, target = load_zoo("inception_v3_b32"), load_target("mcm-6x6")
    rows = row_divisible(graph, target, Request(max_latency_s=1.0))
    began_s = time.monotonic()
    row_ways(graph, target, rows, lambda: time.monotonic() > began_s + BUDGET_S)
    assert time.monotonic() - began_s < LATE_S
