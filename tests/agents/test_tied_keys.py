"""Keys tied by repeated structure: classes, what genomes say of kernels, and the search with them."""

from __future__ import annotations

from itertools import islice

import numpy as np
import pytest

from go_opt.env import list_schedule
from go_opt.model.builder import GraphBuilder
from go_opt.model.graph import Graph
from go_opt.model.plan import Plan
from go_opt.solver import verify
from go_opt.solver.orders.cheapest import Slicer
from go_opt.solver.orders.instance import instance
from go_opt.solver.orders.joint_orders import joint_orders
from go_opt.solver.orders.tied_keys import TiedKeys, tied_keys
from tests.strategies import small_mcm, toy_graph


def branching_stack(blocks: int) -> Graph:
    """``blocks`` of two chains of two ops, stored in turn, and the op that joins them, after a stem."""
    b = GraphBuilder("stack")
    b.add_op("stem", "Conv", "matrix", flops=10, dtype="int8", reads=[], writes=[("t", 9, "int8")])
    tail = "t"
    for i in range(blocks):
        for step in range(2):
            for chain in "ab":
                reads = [(tail if step == 0 else f"{chain}{i}.0", None)]
                writes = [(f"{chain}{i}.{step}", 100, "int8")]
                b.add_op(
                    f"{chain}{i}.{step}", "MatMul", "matrix", flops=1000, dtype="int8",
                    reads=reads, writes=writes,
                )  # fmt: skip
        reads = [(f"a{i}.1", None), (f"b{i}.1", None)]
        b.add_op(
            f"join {i}", "Concat", "data_movement", flops=0, dtype="int8",
            reads=reads, writes=[(f"t{i}", 9, "int8")],
        )  # fmt: skip
        tail = f"t{i}"
    b.mark_output(tail)
    return b.build()


def test_kernels_at_the_same_place_of_blocks_share_a_class() -> None:
    graph = branching_stack(4)
    tie = tied_keys(graph, np.arange(graph.num_ops, dtype=np.int32))
    assert tie is not None
    # The stem, and four blocks of five.
    classes = tie.class_of[1:].reshape(4, 5)
    assert (classes == classes[0]).all()
    assert len({*classes[0], tie.class_of[0]}) == 6
    assert tie.blocks_before[1:].tolist() == np.repeat([1, 2, 3, 4], 5).tolist()
    assert tie.num_keys == 7


def test_nothing_is_tied_where_nothing_repeats() -> None:
    graph = toy_graph()
    assert tied_keys(graph, np.arange(graph.num_ops, dtype=np.int32)) is None


def test_the_last_gene_says_how_strictly_blocks_follow_each_other() -> None:
    tie = TiedKeys(np.array([0, 1, 0, 1]), np.array([0.0, 0.0, 1.0, 1.0]))
    keys = np.array([[0.2, 0.9, 0.1], [0.2, 0.9, 0.5], [0.2, 0.9, 0.9]])
    expected = [[0.2, 0.9, 0.2, 0.9], [0.2, 0.9, -0.3, 0.4], [0.2, 0.9, -0.8, -0.1]]
    assert tie.expanded(keys) == pytest.approx(np.array(expected))


def test_the_closest_genome_has_the_mean_order_of_blocks() -> None:
    tie = TiedKeys(np.array([0, 1, 0, 1]), np.array([0.0, 0.0, 1.0, 1.0]))
    assert tie.tied(np.array([0.9, 0.5, 0.4, 0.1]), 0.5).tolist() == [0.75, 0.25, 0.5]


def test_tied_keys_put_the_same_order_inside_every_block() -> None:
    graph = branching_stack(3)
    group = np.arange(graph.num_ops, dtype=np.int32)
    tie = tied_keys(graph, group)
    assert tie is not None
    names = np.array(graph.op_names)
    first_a = tie.tied(np.array(["a" in name for name in names], dtype=float), 1.0)
    order = list_schedule(graph, group, tie.expanded(first_a[None])[0])
    along = "stem " + " ".join(f"a{i}.0 a{i}.1 b{i}.0 b{i}.1 join {i}" for i in range(3))
    assert " ".join(names[order]) == along


def test_searches_with_ties_repeat_themselves_and_make_valid_plans() -> None:
    graph, target = branching_stack(6), small_mcm(8, topology="ring")
    of_graph = instance(graph, target)
    slicer = Slicer(of_graph, "adjacent")
    assert tied_keys(graph, of_graph.order) is not None

    def reached() -> list[float | None]:
        plans = islice(joint_orders(slicer, seed=3), 160)
        return [None if plan is None else plan.interval_s for plan in plans]

    assert reached() == reached()
    for found in filter(None, islice(joint_orders(slicer, seed=3), 160)):
        plan = Plan.create(
            graph, target.source, target.fingerprint,
            placement=found.placement, order=found.order, fusion_group=found.fusion_group,
            provenance="test",
        )  # fmt: skip
        assert verify(graph, target, plan) == []
