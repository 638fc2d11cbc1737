"""Why nothing fits: demand, limit, the tensors to blame, and what would fit, by hand."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
from hypothesis import given, settings

from go_opt.env import cost_tables
from go_opt.env.peak_memory import op_activation_bytes, op_that_runs_nowhere, why_no_plan
from go_opt.explanations.uses import SplitUse
from go_opt.model.builder import GraphBuilder
from go_opt.model.graph import Graph
from go_opt.report.parts.plan_lines import split_lines
from tests.env.simulator.test_by_hand import package
from tests.strategies import make_plan, random_graph, random_target, seeds, small_mcm, toy_graph


def one_op(**changes: str) -> Graph:
    """An op that reads 100 and 50 elements, and writes 25."""
    b = GraphBuilder("one", **changes)  # type: ignore[arg-type]
    b.add_tensor("a", 100, "float32", "input")
    b.add_tensor("b", 50, "float32", "input")
    reads = [("a", None), ("b", None)]
    b.add_op("only", "Add", "vector", flops=100, dtype="float32", reads=reads, writes=[("c", 25, "float32")])
    b.mark_output("c")
    return b.build()


def test_the_tensors_to_blame_and_what_would_fit() -> None:
    # Two bytes an element and two buffers each: 400 + 200 + 100.
    assert op_that_runs_nowhere(one_op(), small_mcm(sram_bytes=600)) == (
        "op 'only' fits no chip of small-mcm as a kernel of its own: its activations need 700 bytes "
        "('a' 400 in two buffers, 'b' 200 in two buffers, 'c' 100 in two buffers), the limit is 600 bytes; "
        "what would fit: a chip with 700 bytes, or tensors of at most 0.85 times these sizes, "
        "as of a smaller batch."
    )
    assert op_that_runs_nowhere(one_op(), small_mcm(sram_bytes=700)) == ""


def test_the_native_precision_is_named_where_it_would_fit() -> None:
    as_is = one_op(precision="as-is")
    assert "or the native precision (700 bytes), or" in op_that_runs_nowhere(as_is, small_mcm(sram_bytes=700))
    assert "native" not in op_that_runs_nowhere(as_is, small_mcm(sram_bytes=699))


def test_the_closest_plan_is_told() -> None:
    graph, target = toy_graph(), small_mcm(2, sram_bytes=5000)
    closest = make_plan(graph, target, [0, 0, 0, 0, 1, 1])
    # Chip 1: s and x from chip 0, each twice, y 1000, out 2000 twice.
    assert why_no_plan(graph, target, "", closest) == (
        "no valid plan was found on small-mcm: activations do not fit; the plan that comes closest needs "
        "9000 bytes on chip 1 at op 'add' ('out' 4000 in two buffers, 'x' 2000 in two buffers, "
        "'s' 2000 in two buffers and 1 more), the limit is 5000 bytes; chips with 9000 bytes would hold "
        "that plan."
    )


def test_without_a_plan_no_memory_is_blamed() -> None:
    why = why_no_plan(toy_graph(), small_mcm(2, sram_bytes=5000), "")  # which holds each op alone
    assert why == "no valid plan was found on small-mcm: no method proposed one."


def test_a_closest_plan_that_lacks_only_the_stream_buffer() -> None:
    graph, target = toy_graph(), package(1, {"stream_buffer_bytes": 1000}, fields={"sram_bytes": 8000})
    closest = make_plan(graph, target, [0] * 6)  # 7800 bytes of activations
    assert why_no_plan(graph, target, "", closest) == (
        "no valid plan was found on small-mcm; the plan that comes closest is out of memory: chip 0 needs "
        "7800 bytes for activations beside a buffer of 1000 bytes for streamed weights and has 8000."
    )


def test_a_rule_that_stands_in_the_way_goes_first() -> None:
    why = why_no_plan(toy_graph(), small_mcm(2), "chip 0 runs no op, but chip 1 does.")
    assert why.endswith("the first one that fits breaks a rule: chip 0 runs no op, but chip 1 does.")


@given(seed=seeds)
@settings(max_examples=100)
def test_demands_exceed_the_memory_of_chips_that_may_run_the_op(seed: int) -> None:
    """On chips of unequal memories, some of which exclude ops."""
    rng = np.random.default_rng(seed)
    target = random_target(rng)
    kinds = tuple(replace(kind, sram_bytes=int(10 ** rng.uniform(2, 6))) for kind in target.kinds)
    target = replace(target, kinds=kinds)
    graph = random_graph(rng, int(rng.integers(1, 12)), kinds=[kind.name for kind in kinds])
    may_run = cost_tables(graph, target).can_run[target.chip_kind]
    fits = op_activation_bytes(graph, target) <= target.chip_sram_bytes[:, None]
    why = op_that_runs_nowhere(graph, target)
    assert bool(why) == (not (may_run & fits).any(axis=0).all())
    if figures := re.search(r"op '(\S+)' fits .* need (\d+) bytes .* limit is (\d+) bytes", why):
        op = graph.op_index[figures[1]]
        assert int(figures[2]) > int(figures[3]) == target.chip_sram_bytes[may_run[:, op]].max()


def test_weights_that_fit_a_chip_are_no_reason_for_a_split() -> None:
    heavy = SplitUse("op", ("j",), 2, True, False, False, weight_bytes=80_000_000, sram_bytes=64_000_000)
    assert "take 80 MB, a chip has 64 MB" in next(split_lines([heavy]))
    assert "a chip has" not in next(split_lines([replace(heavy, sram_bytes=256_000_000)]))
