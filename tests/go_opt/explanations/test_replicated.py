"""Replicated stages explained: by hand, against the model, and as text."""

from __future__ import annotations

import io
import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from rich.console import Console

from go_opt.common.arrays import IntArray
from go_opt.env import Target, evaluate_plan
from go_opt.explanations import explain_op, explain_plan
from go_opt.explanations.moves import Mover, best_resize
from go_opt.explanations.terms import Place, terms_of
from go_opt.model.graph import Graph
from go_opt.model.plan import Plan
from go_opt.report.explanation import print_op_explanation, print_plan_explanation
from go_opt.report.tables import print_metrics
from go_opt.result_json import explanation_to_dict
from go_opt.solver.verify.verifier import verify
from tests.copies import with_legal_relays
from tests.env.test_replication import random_case, random_case_anywhere, with_states
from tests.replicated import replicated_plan
from tests.strategies import examples, seeds, small_mcm, toy_graph

EMBED, DENSE, RELU, MIX, ADD, LOGITS = range(6)


def toy(sizes: list[int], stage_of_op: list[int], **changes: object) -> tuple[Graph, Target, Plan]:
    graph, target = toy_graph(), small_mcm(6, **changes)
    return graph, target, replicated_plan(graph, target, np.array(stage_of_op), np.array(sizes))


def printed(show: object, *told: object) -> str:
    out = io.StringIO()
    show(Console(file=out, width=240), *told)  # type: ignore[operator]
    return out.getvalue()


# --------------------------------------------------------------------------- by hand


def test_a_stage_is_one_term_and_one_row() -> None:
    # embed | dense relu mix add on three chips | logits on two: 3.4, 26/3 and 14/2 us, links 10 us.
    graph, target, plan = toy([1, 3, 2], [0, 1, 1, 1, 1, 2], link_bytes_per_s=2e8)
    told = explain_plan(graph, target, plan)
    (term,) = told.binding
    assert (term.name, term.replicas, term.seconds) == ("host out", 1, pytest.approx(10e-6))
    assert [(use.chip, use.replicas, use.ops, use.kernels) for use in told.chips] == [
        (0, 1, 1, 1),
        (1, 3, 4, 4),
        (4, 2, 1, 1),
    ]
    busy = told.chips[1]
    assert busy.busy_s == pytest.approx(26e-6 / 3)
    assert busy.compute_s + busy.sram_s + busy.overhead_s == pytest.approx(busy.busy_s)
    assert told.chips_used == 6
    assert told.next_terms[0] == ("chip 1 compute", pytest.approx(26e-6 / 3))
    # x in and y out of the three chips, y into the two: 5 us in full; inside the fullest alone.
    assert [(use.name, use.among, use.seconds) for use in told.links[:4]] == [
        ("link 0->1", 1, pytest.approx(5e-6)),
        ("link 1->2", 2, pytest.approx(5e-6)),
        ("link 3->4", 1, pytest.approx(5e-6)),
        ("link 4->5", 1, pytest.approx(2.5e-6)),
    ]
    inside = terms_of(graph, target, plan).link(1)
    assert [(part.tensor, part.share) for part in inside] == [
        ("x", pytest.approx(2 / 3)),
        ("y", pytest.approx(1 / 3)),
    ]
    assert inside[0].readers == (Place("dense", 1, 3), Place("add", 1, 3))


def test_one_more_chip_for_what_binds() -> None:
    graph, target, plan = toy([1, 3, 2], [0, 1, 1, 1, 1, 2], link_bytes_per_s=1e9, host_out_bytes_per_s=1e9)
    taken = best_resize(graph, target, plan, 1)
    # 26/4 and 14 us: logits is alone then.
    assert taken is not None
    assert (taken.chip, taken.giver, taken.cost.interval_s) == (1, 4, pytest.approx(14e-6))
    assert explain_plan(graph, target, plan).resize == taken
    graph, target, plan = toy([1, 2, 2], [0, 1, 1, 1, 1, 2], link_bytes_per_s=1e9, host_out_bytes_per_s=1e9)
    free = best_resize(graph, target, plan, 1)
    assert free is not None
    assert (free.giver, free.cost.interval_s) == (None, pytest.approx(26e-6 / 3))
    graph, target, plan = toy([6], [0] * 6)
    assert best_resize(graph, target, plan, 0) is None


def test_kernels_move_between_stages() -> None:
    graph, target, plan = toy([1, 3, 2], [0, 1, 1, 1, 1, 2], link_bytes_per_s=1e9, host_out_bytes_per_s=1e9)
    mover = Mover(graph, target, plan)
    move = mover.move(ADD, 2)
    # x, which passes the three chips to add, is relayed there: 3 us.
    assert (move.chip, move.replicas, move.forbidden, move.relays) == (4, 2, "", 1)
    late = mover.move(DENSE, 2)
    assert (late.ops_along, late.blocker) == (3, Place("relu", 1, 3))
    assert late.forbidden == "chips 1-3 would run no op."
    told = explain_op(graph, target, plan, "relu")
    assert (told.chip, told.replicas) == (1, 3)
    assert [move.chip for move in told.moves] == [0, 4]
    assert told.kernel.seconds == pytest.approx(6e-6)
    assert told.chip_busy_s == pytest.approx(26e-6)


def test_the_text_names_all_chips_of_a_stage() -> None:
    graph, target, plan = toy([1, 3, 2], [0, 1, 1, 1, 1, 2], link_bytes_per_s=1e9, host_out_bytes_per_s=1e9)
    text = printed(print_plan_explanation, explain_plan(graph, target, plan))
    for words in (
        "6 ops in 6 kernels on 6 of 6 chips",
        "What binds: chips 1-3 compute, 8.667 us",
        "26 us an inference, of which each chip runs one in 3",
        "Next: chips 4-5 compute 7 us",
        "one more chip for chips 1-3, one of chips 4-5, lengthens the interval to 14 us",
        "\n 1-3 x3",
        "xN: N chips share the inferences",
        "link 1->2 (busiest of 2)",
    ):
        assert words in text, words
    of_op = printed(print_op_explanation, explain_op(graph, target, plan, "relu"))
    assert "runs on chips 1-3 in turn" in of_op
    assert "2 us of the interval: each chip runs one inference in 3" in of_op
    table = printed(print_metrics, graph, target, plan, evaluate_plan(graph, target, plan), "throughput")
    assert "\n 1-3 x3" in table
    assert "bottleneck  chips 1-3 compute\nstatus      valid" in table
    _, rows = table.split("\n\n")
    assert len(rows.splitlines()) == 6  # a head, three stages, the host's two links


# --------------------------------------------------------------------------- at random


@settings(max_examples=examples(60))
@given(seed=seeds, num_ops=st.integers(1, 18))
def test_the_parts_add_up_to_the_terms_of_the_model(seed: int, num_ops: int) -> None:
    assert_terms_add_up(*random_case(np.random.default_rng(seed), num_ops))


@settings(max_examples=examples(60))
@given(seed=seeds, num_ops=st.integers(1, 18))
def test_the_parts_add_up_on_any_topology(seed: int, num_ops: int) -> None:
    assert_terms_add_up(*random_case_anywhere(np.random.default_rng(seed), num_ops))


@settings(max_examples=examples(80))
@given(seed=seeds, num_ops=st.integers(1, 18))
def test_the_parts_add_up_where_replicas_keep_sequences(seed: int, num_ops: int) -> None:
    rng = np.random.default_rng(seed)
    case = (random_case if rng.random() < 0.6 else random_case_anywhere)(rng, num_ops)
    assert_terms_add_up(*with_states(rng, *case))


def assert_terms_add_up(graph: Graph, target: Target, plan: Plan) -> None:
    terms = terms_of(graph, target, plan)
    metrics = terms.metrics
    for chip in range(target.num_chips):
        kernels_s = sum(kernel.seconds for kernel in terms.kernels(chip)) * terms.loads.share[chip]
        assert kernels_s == pytest.approx(metrics.compute_s[chip])
        assert sum(part.size_bytes for part in terms.streamed(chip)) == metrics.stream_bytes[chip]
    for link in range(len(metrics.link_s)):
        assert sum(part.seconds for part in terms.link(link)) == pytest.approx(metrics.link_s[link])
    total_s = terms.total_s()
    if graph.states and metrics.bottleneck == target.bottleneck_name(len(total_s)):
        return  # sequences wait
    assert total_s.max() == pytest.approx(metrics.interval_s)
    binding = target.bottleneck_name(int(np.argmax(total_s)))
    assert binding == metrics.bottleneck or np.isclose(total_s, total_s.max()).sum() > 1
    for index in np.flatnonzero(total_s):
        term = terms.term(int(index))
        kernels_s = sum(kernel.seconds for kernel in term.kernels) * term.own_share
        parts_s = kernels_s + sum(part.seconds for part in term.tensors)
        assert term.seconds == pytest.approx(parts_s) == pytest.approx(total_s[index])


@settings(max_examples=examples(40))
@given(seed=seeds, num_ops=st.integers(1, 14))
def test_any_plan_is_explained(seed: int, num_ops: int) -> None:
    rng = np.random.default_rng(seed)
    assert_explained(rng, *random_case(rng, num_ops, sram_bytes=10**6))


@settings(max_examples=examples(40))
@given(seed=seeds, num_ops=st.integers(1, 14))
def test_any_plan_is_explained_on_any_topology(seed: int, num_ops: int) -> None:
    rng = np.random.default_rng(seed)
    fields = {"sram_bytes": 10**6, "triangle": "off", "no_skip": "off"}
    assert_explained(rng, *random_case_anywhere(rng, num_ops, **fields))


def assert_explained(rng: np.random.Generator, graph: Graph, target: Target, plan: Plan) -> None:
    told = explain_plan(graph, target, plan)
    assert told.violations == ()
    assert [use.chip for use in told.chips] == np.unique(plan.placement).tolist()
    assert told.chips_used == plan.chips_used
    op = int(rng.integers(graph.num_ops))
    told_op = explain_op(graph, target, plan, graph.op_names[op])
    for text in (printed(print_plan_explanation, told), printed(print_op_explanation, told_op)):
        assert text
    for each in (told, told_op):
        json.dumps(explanation_to_dict(each), allow_nan=False)


@settings(max_examples=examples(40))
@given(seed=seeds, num_ops=st.integers(2, 12))
def test_moves_are_plans_evaluated_and_verified(seed: int, num_ops: int) -> None:
    rng = np.random.default_rng(seed)
    graph, target, plan = random_case(rng, num_ops, sram_bytes=10**6)
    mover = Mover(graph, target, plan)
    size = mover.stages.size
    for op in range(num_ops):
        stage = int(rng.integers(len(size)))
        move = mover.move(op, stage)
        stage_of_op = closed(graph, plan, mover.stages.number(plan.placement), op, stage)
        moved = replicated_plan(
            graph, target, stage_of_op, size, order=plan.order, fusion_group=plan.fusion_group
        )
        moved = with_legal_relays(graph, target, moved)
        metrics = evaluate_plan(graph, target, moved)
        assert (move.chip, move.replicas) == (moved.placement[op], moved.replication[op])
        assert move.cost.interval_s == metrics.interval_s
        assert bool(move.forbidden) == bool(verify(graph, target, moved) or not metrics.valid)


def closed(graph: Graph, plan: Plan, stage_of_op: NDArray, op: int, stage: int) -> IntArray:
    """Stages with the kernel of ``op`` in another, and with it kernels that would be read before they run."""
    moved, is_up = stage_of_op.copy(), stage > stage_of_op[op]
    pushed = {int(plan.fusion_group[op])}
    while True:
        moved[np.isin(plan.fusion_group, list(pushed))] = stage
        backwards = moved[graph.edge_src] > moved[graph.edge_dst]
        if not backwards.any():
            return moved
        follow = (graph.edge_dst if is_up else graph.edge_src)[backwards]
        pushed |= set(plan.fusion_group[follow].tolist())
