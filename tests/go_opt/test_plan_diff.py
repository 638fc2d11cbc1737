"""What differs between two plans."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np

import go_opt
from go_opt.explanations.plan_diff import Move, PlanDiff, plan_diff
from go_opt.model.codecs.plan_json import save_plan
from go_opt.model.plan import Relay
from go_opt.model.start import Start
from go_opt.result_json import plan_facts
from tests.cli.conftest import Cli, cli
from tests.strategies import make_plan, small_mcm, toy_graph

__all__ = ["cli"]  # the fixture


def start(placement: list[int], kernels: list[int], names: tuple[str, ...] | None = None) -> Start:
    """Of the toy graph: embed, dense, relu, mix, add, logits."""
    graph = toy_graph()
    plan = make_plan(graph, small_mcm(), np.array(placement), fusion_group=np.array(kernels))
    return Start.of_plan(plan, names or graph.op_names)


def test_nothing() -> None:
    one = start([0, 0, 1, 1, 1, 2], [0, 1, 2, 3, 4, 5])
    assert plan_diff(one, one) == PlanDiff(6, (), (), (), (), (), (), (), ())


def test_moves_and_kernels_by_hand() -> None:
    before = start([0, 0, 1, 1, 1, 2], [0, 1, 2, 3, 4, 5])
    after = start([0, 0, 0, 0, 1, 1], [0, 1, 1, 2, 3, 4])
    found = plan_diff(before, after)
    assert found.moves == (Move((1, 1), (0, 1), ("relu", "mix")), Move((2, 1), (1, 1), ("logits",)))
    assert found.num_moved == 3
    assert found.fused_otherwise == ("dense", "relu")


def test_ops_of_one_plan_alone_are_not_compared() -> None:
    before = start([0, 0, 1, 1, 1, 2], [0, 1, 1, 2, 3, 4])
    names = ("embed", "dense", "gelu", "mix", "add", "logits")
    found = plan_diff(before, start([0, 0, 1, 1, 1, 2], [0, 1, 1, 2, 3, 4], names))
    assert (found.in_both, found.only_before, found.only_after) == (5, ("relu",), ("gelu",))
    assert found.fused_otherwise == ()


def test_relays_and_forwarding() -> None:
    one = start([0, 0, 1, 1, 1, 2], [0, 1, 2, 3, 4, 5])
    assert one.plan is not None
    plan = replace(one.plan, relays=(Relay("x", (1, 2)),))
    found = plan_diff(one, replace(one, plan=plan))
    assert (found.relays_before, found.relays_after) == ((), (("x", 1), ("x", 2)))
    found = plan_diff(replace(one, plan=replace(one.plan, forwards=(2,))), one)
    assert (found.forwards_before, found.forwards_after) == ((2,), ())


def test_the_command(cli: Cli, tmp_path: Path) -> None:
    graph, target = go_opt.load("zoo:squeezenet"), go_opt.target("mcm-6x6")
    intervals_us = []
    for name, replication in (("a.json", True), ("b.json", False)):
        options = {"policy": None, "simulate": False, "splits": False, "replication": replication}
        result = go_opt.optimize(graph, target, max_evaluations=4, **options)
        save_plan(result.plan, tmp_path / name, plan_facts(graph, result))
        intervals_us.append(1e6 * result.metrics.interval_s)
    run = cli("diff", "a.json", "b.json", "--model", "zoo:squeezenet")
    assert run.code == 0
    first, *_, last = run.out.splitlines()
    before, after = intervals_us
    assert first.startswith(f"interval    {before:.4g} us to {after:.4g} us, {after / before:.4g}x")
    assert before < after  # with replicas, and without
    assert last == "relays      0 of the first plan alone, 0 of the second alone"
    assert "65 in both plans, 65 on other chips" in run.out
    found = cli("diff", "a.json", "b.json", "--json").json
    assert sum(len(move["ops"]) for move in found["moves"]) == 65
    cli("diff", "a.json", "gone.json").is_refused("gone.json")
