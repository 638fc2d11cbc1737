"""Plans whose chips forward streamed weights, from the search to files, the wire and explanations."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest

import go_opt
from go_opt.env.copies.relays import plan_tables
from go_opt.explanations import explain_plan
from go_opt.explanations.terms import Loads, Terms
from go_opt.model.builder import GraphBuilder
from go_opt.model.codecs.plan_json import load_plan, save_plan
from go_opt.model.codecs.wire import plan_from_proto, plan_to_proto
from go_opt.proto import plan_pb2
from go_opt.report.tables import chips_table
from go_opt.result import OptimizeResult

TARGET = go_opt.target("mcm-6x6")
WEIGHTS, SIDE = 80, 4096  # 80 weights of 33.6 MB, of which a chip holds none


@cache
def heavy_layers() -> go_opt.Graph:
    """A chain of products with more weights than all memories hold: 2.7 GB of 1.2 GB."""
    b = GraphBuilder("heavy layers")
    b.add_tensor("t0", 256 * SIDE, "bfloat16", "input")
    for i in range(WEIGHTS):
        b.add_tensor(f"w{i}", SIDE * SIDE, "bfloat16", "weight")
        b.add_op(
            f"layer{i}", "MatMul", "matrix", flops=2.0 * 256 * SIDE * SIDE, dtype="bfloat16",
            reads=[(f"t{i}", None), (f"w{i}", None)], writes=[(f"t{i + 1}", 256 * SIDE, "bfloat16")],
        )  # fmt: skip
    b.mark_output(f"t{WEIGHTS}")
    return b.build()


@cache
def optimized() -> OptimizeResult:
    return go_opt.optimize(heavy_layers(), TARGET, max_evaluations=12, policy=None, splits=False)


def test_the_search_forwards_what_no_memory_holds() -> None:
    result, total_bytes = optimized(), 2 * WEIGHTS * SIDE * SIDE
    assert result.plan.forwards
    assert go_opt.verify(heavy_layers(), TARGET, result.plan) == []
    # Without forwarding the host's link carries all weights for each inference, at 64 GB/s.
    assert result.metrics.interval_s < 0.2 * total_bytes / 64e9
    # With it, no more than all links together carry.
    assert result.lower_bound_s <= result.metrics.interval_s
    assert result.metrics.interval_s >= total_bytes / (36 * 16e9 + 64e9)
    simulated = go_opt.evaluate(heavy_layers(), TARGET, result.plan, fidelity="simulated")
    assert simulated.interval_s == pytest.approx(result.metrics.interval_s, rel=1e-6)


def test_files_and_wire_are_exact(tmp_path: Path) -> None:
    plan = optimized().plan
    save_plan(plan, tmp_path / "plan.json")
    sent = plan_pb2.Plan.FromString(plan_to_proto(plan).SerializeToString())
    for again in (load_plan(tmp_path / "plan.json"), plan_from_proto(sent)):
        assert again.forwards == plan.forwards
        assert go_opt.evaluate(heavy_layers(), TARGET, again).interval_s == optimized().metrics.interval_s


def test_explained_parts_add_up() -> None:
    plan = optimized().plan
    tables = plan_tables(heavy_layers(), TARGET, plan).tables
    loads, metrics = Loads(heavy_layers(), tables, plan), go_opt.evaluate(heavy_layers(), TARGET, plan)
    terms = Terms(TARGET, loads, metrics, {})
    for link, seconds in enumerate(metrics.link_s):
        assert sum(part.seconds for part in terms.link(link)) == pytest.approx(seconds, rel=1e-9)
    told = explain_plan(heavy_layers(), TARGET, plan)
    ((chip, weights),) = [(chip, weights) for chip, weights in told.streamed if chip in plan.forwards]
    size = int(np.max(plan.replication[plan.placement == chip]))
    assert {part.share for part in weights} == {1 / size}


def test_a_plan_that_names_no_chip_is_shown_all_the_same() -> None:
    result = optimized()
    wrong = replace(result.plan, forwards=(99, *result.plan.forwards))
    rows = chips_table(TARGET, result.plan, result.metrics).row_count
    assert chips_table(TARGET, wrong, result.metrics).row_count == rows
    assert [v.constraint for v in go_opt.verify(heavy_layers(), TARGET, wrong)] == ["forwarding"]
