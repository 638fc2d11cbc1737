"""Collectives among the parts of ops: which ones, by hand what they take, and as the slow twins have it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings

from go_opt.env import cost_tables, evaluate_plan, load_target
from go_opt.env.analytical_timeline import analytical_timeline
from go_opt.env.copies.splits import split_graph
from go_opt.env.gpu.figures import Collective
from go_opt.env.simulator.simulate import simulate_plan
from go_opt.env.target import Target
from go_opt.errors import PlanError
from go_opt.model.graph import Graph
from go_opt.model.plan import Plan, Split
from tests.env.numpy_twin import COLLECTIVES, Twin
from tests.env.random_models import RandomModel, random_splits
from tests.env.simulator.test_twin import compare, with_room
from tests.env.test_analytical import assert_agrees
from tests.env.test_splits import checked, model
from tests.strategies import examples, make_plan, random_plan, random_simulated_target, seeds, small_mcm

# A latency, and nothing else that is felt.
FIGURES = tuple(
    Collective(op, start_s * 1e-6, 1e30)
    for op, start_s in (("all_reduce", 40), ("all_gather", 30), ("reduce_scatter", 20), ("all_to_all", 10))
)


def layers(rows: int = 8, width: int = 4, inner: int = 16) -> Graph:
    """Two feed-forward layers: the second reads what the first one adds."""
    weights = {"v": (width, inner), "w": (inner, width), "u": (width, inner), "z": (inner, width)}
    return model(
        {"x": (rows, width), **weights},
        ("first", "MatMul", "x v", (rows, inner), {}),
        ("act", "Relu", "first", (rows, inner), {}),
        ("second", "MatMul", "act w", (rows, width), {}),
        ("third", "MatMul", "second u", (rows, inner), {}),
        ("last", "MatMul", "third z", (rows, width), {}),
    )


def tensor_parallel(parts: int, *, collective: bool = True) -> tuple[Split, ...]:
    """Megatron's: columns, then sums, which are added on all chips."""
    return (
        Split("first", "j", parts, joined=False),
        Split("act", "d1", parts, joined=False),
        Split("second", "k", parts, collective=collective),
        Split("third", "j", parts, joined=False),
        Split("last", "k", parts, collective=collective),
    )


def exchanged(graph: Graph) -> list[str]:
    return [op_type for op_type in graph.op_types if op_type in COLLECTIVES]


def spread(graph: Graph, target: Target) -> Plan:
    """Part, send, copy or slice i of each op on chip i, and what is whole on the first."""
    number: dict[tuple[str, str], int] = {}
    chips = []
    for op, name in enumerate(graph.op_names):
        key = name.split("/")[0], graph.op_types[op]
        number[key] = number.get(key, -1) + 1
        chips.append(number[key])
    return make_plan(graph, target, tuple(chips))


def two_ops(first: Split, *others: Split) -> Graph:
    """x [8, 6] by v [6, 6], then a Relu."""
    graph = model(
        {"x": (8, 6), "v": (6, 6)},
        ("first", "MatMul", "x v", (8, 6), {}),
        ("act", "Relu", "first", (8, 6), {}),
    )
    return checked(graph, first, *others)


@pytest.mark.parametrize(
    ("factor", "reader", "expected"),
    [
        ("k", "d0", "ReduceScatter"),  # sums of which each part needs some rows
        ("k", None, "AllReduce"),
        ("j", "d0", "AllToAll"),  # columns, then rows
        ("j", None, "AllGather"),
    ],
)
def test_which_collective(factor: str, reader: str | None, expected: str) -> None:
    others = [] if reader is None else [Split("act", reader, 2)]
    assert exchanged(two_ops(Split("first", factor, 2, collective=True), *others)) == [expected] * 2


def test_readers_of_the_same_pieces_exchange_nothing() -> None:
    assert exchanged(two_ops(Split("first", "j", 2, collective=True), Split("act", "d1", 2))) == []


def test_parts_go_on_beside_a_collective() -> None:
    """Rows that one reader has in the same parts, and another one as a whole: 5 and 4 of 9, for both."""
    graph = model(
        {"x": (9, 6), "v": (6, 6)},
        ("first", "MatMul", "x v", (9, 6), {}),
        ("act", "Relu", "first", (9, 6), {}),
        ("last", "Exp", "first", (9, 6), {}),
    )
    split = checked(
        graph,
        Split("first", "i", 2, joined=False, collective=True),
        Split("act", "d0", 2, joined=False),
        Split("last", "d1", 2),
    )
    assert exchanged(split) == ["AllGather"] * 2
    part, other = (split.op_index[f"{name}/part 1 of 2"] for name in ("act", "last"))
    assert [split.tensor_names[k] for k, _ in split.reads_of(part)] == ["first/part 1 of 2"]
    assert split.op_types[split.tensor_producer[split.reads_of(other)[0][0]]] == "Slice"


def test_other_numbers_of_parts_read_the_first_copy() -> None:
    graph = two_ops(Split("first", "k", 2, collective=True), Split("act", "d0", 4))
    assert exchanged(graph) == ["AllReduce"] * 2
    assert [len(graph.readers_of(graph.tensor_index[name])) for name in ("first", "first/copy 2 of 2")] == [
        4,
        0,
    ]


@pytest.mark.parametrize(
    "splits",
    [
        [Split("first", "j", 2, collective=True), Split("first", "k", 2)],
        [Split("first", "j", 2), Split("first", "k", 2, collective=True)],
    ],
)
def test_a_collective_of_one_split(splits: list[Split]) -> None:
    with pytest.raises(PlanError, match=r"^splits: op 'first' has a collective, so it must be split only "):
        two_ops(*splits)


def test_two_layers_by_hand() -> None:
    """Float32 at 500 FLOPs/us, 1 us overhead, all-reduces of 40 us; x and the result 0.64 us each.

    first, third: 564 FLOPs, 2.128 us; act: 64 at 100/us, 1.64 us; second, last: 520 on the first chip, which
    adds once what is no multiply-add, 2.04 us, and 512 on the other, 2.024 us.
    """
    target, copying = replace(small_mcm(), collectives=FIGURES), small_mcm()
    split = checked(layers(), *tensor_parallel(2))
    plan = spread(split, target)
    metrics = evaluate_plan(split, target, plan)
    assert metrics.compute_s * 1e6 == pytest.approx([89.976, 89.944])
    assert not metrics.link_s[:-2].any()
    # The second chip waits for the first; x crosses the host's link once.
    assert metrics.makespan_s * 1e6 == pytest.approx(89.976 + 2 * 0.64)
    assert metrics.latency_s == pytest.approx(metrics.makespan_s)
    simulated = simulate_plan(split, target, plan)
    assert simulated.latency_s * 1e6 == pytest.approx(89.976 + 0.64)  # from the first kernel on
    kernels = analytical_timeline(split, target, plan, 1).kernels
    sums = [(one.resource, round(one.start_s * 1e6, 3)) for one in kernels if one.name == "AllReduce"]
    assert sorted(sums) == [(chip, start) for chip in (0, 1) for start in (6.448, 50.616)]
    # Without figures each chip copies what the others have: links are busy, and each copy is a kernel.
    copied = evaluate_plan(split, copying, make_plan(split, copying, plan.placement.tolist()))
    assert (copied.link_s[:-2] > 0).any()


def test_seconds_on_gpus_by_hand() -> None:
    """An all-reduce of 64 MiB among 8 H100: 4.646 us + 7 * 1.56 us of latency, 2 * 7/8 and 1 of the bytes."""
    rows, width = 8192, 4096
    graph, target = layers(rows, width, 16384), load_target("h100-sxm-8")
    split = split_graph(graph, tensor_parallel(8))
    seconds = cost_tables(split, replace(target, native_dtype="bfloat16")).measured_s[0]
    num_bytes = rows * width * 4  # float32, as it is
    moving_s = num_bytes * (2 * 7 / 8 / 790.8e9 + 1 / 540.3e9)
    latency_s = 4.646e-6 + 7 * 1.56e-6
    expected_s = latency_s * (1 + (moving_s / latency_s) ** 0.6) ** (1 / 0.6)
    for name in ("second", "second/copy 8 of 8", "last"):
        assert seconds[split.op_index[name]] == pytest.approx(expected_s)
    assert seconds[split.op_index["second/sent 3 of 8"]] == 0.0


def test_figures_of_a_group_go_before_those_of_any() -> None:
    of_two = replace(FIGURES[0], start_s=1e-3, group=2)
    split = split_graph(layers(), tensor_parallel(2))
    for collectives, start_s in (((FIGURES[0],), 40e-6), ((of_two, FIGURES[0]), 1e-3), ((of_two,), 1e-3)):
        tables = cost_tables(split, replace(small_mcm(), collectives=collectives))
        assert tables.measured_s[0, split.op_index["second"]] == pytest.approx(start_s)
    others = replace(small_mcm(), collectives=(replace(of_two, group=3),))
    assert np.isnan(cost_tables(split, others).measured_s).all()


def test_ops_of_a_model_with_the_name_of_a_collective_are_no_collective() -> None:
    graph = model({"x": (8, 4)}, ("sum", "AllReduce", "x", (8, 4), {}))
    assert np.isnan(cost_tables(graph, replace(small_mcm(), collectives=FIGURES)).measured_s).all()


def drawn(seed: int, **fields: Any) -> tuple[np.random.Generator, Graph, Target]:
    rng = np.random.default_rng(seed)
    graph = RandomModel(rng, int(rng.integers(2, 10))).graph()
    splits = random_splits(rng, graph)
    split = split_graph(graph, splits) if splits else graph
    assume(exchanged(split))
    target = random_simulated_target(rng, **fields)
    figures: dict[tuple[str, int], Collective] = {}
    for op in 2 * tuple(COLLECTIVES.values()):
        rates = [float(10.0 ** rng.uniform(low, low + 2)) for low in (-7, 7, -7, 7)]
        one = Collective(op, *rates, group=int(rng.integers(0, 4)))
        figures[op, one.group] = one
    return rng, split, replace(target, collectives=tuple(figures.values()))


@given(seeds)
@settings(max_examples=examples(60), deadline=None)
def test_agrees_with_the_twins(seed: int) -> None:
    """Terms of the interval, memory, latency and makespan."""
    rng, graph, target = drawn(seed, overlap=bool(seed % 3), rates_differ=False)
    plan = random_plan(rng, graph, target, monotone=target.constraints.acyclic)
    assert_agrees(graph, target, plan)
    metrics = evaluate_plan(graph, target, plan)
    makespan_s = Twin(graph, target, plan).makespan(metrics.stream_bytes.tolist())
    assert metrics.makespan_s == pytest.approx(makespan_s, rel=1e-9, abs=0)
    assert metrics.makespan_s >= metrics.latency_s * (1 - 1e-9)


@given(seeds)
@settings(max_examples=examples(60), deadline=None)
def test_engine_matches_the_slow_simulator(seed: int) -> None:
    """With a link for each pair of chips: those that leave a collective together would tie for one link."""
    rng, graph, target = drawn(seed, overlap=bool(seed % 3), topology="all_to_all")
    kinds = tuple(replace(kind, dma_engines=0) for kind in target.simulator.kinds)
    target = replace(target, simulator=replace(target.simulator, kinds=kinds))
    plan = random_plan(rng, graph, target, monotone=target.constraints.acyclic)
    compare(graph, with_room(graph, target, plan), plan)
