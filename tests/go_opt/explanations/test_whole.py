"""A plan explained as a whole: by hand on the toy graph, and the text of it."""

from __future__ import annotations

import io
import json
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from rich.console import Console

from go_opt import optimize
from go_opt.env import cost_tables, evaluate_batch, load_target, load_zoo, zoo_entries
from go_opt.env.model.metrics import WAITING
from go_opt.env.target.definition import first_chips
from go_opt.errors import PlanError
from go_opt.explanations import PlanExplanation, explain_op, explain_plan
from go_opt.explanations.moves import FASTER, OneMoreChip, one_more_chip
from go_opt.model.plan import Relay
from go_opt.report.explanation import print_op_explanation, print_plan_explanation, summary_lines
from go_opt.result_json import explanation_to_dict
from go_opt.solver import Bound, Pin
from tests.env.test_makespan import measured_graph
from tests.strategies import (
    examples,
    kind_names,
    make_plan,
    random_graph,
    random_plan,
    random_target,
    seeds,
    small_mcm,
    toy_graph,
)
from tests.zoo import first_plans, zoo_sample


def test_a_plan_that_waits_for_streamed_weights() -> None:
    graph, target = load_zoo("dlrm_terabyte"), load_target("mcm-2x2")
    plan = optimize(graph, target, max_evaluations=2, policy=None).plan
    told = explain_plan(graph, target, plan)
    # No chip or link is busy all the time, and only without streaming is there a closed form.
    assert told.metrics.bottleneck == WAITING
    assert told.metrics.interval_s > 1.05 * told.binding[0].seconds
    changes = [what_if.change for what_if in told.what_ifs]
    assert changes == [
        "memory for all weights, so that none stream",
        "4 MB more memory on each chip",
        "10 % more bandwidth of the host",
    ]
    assert sum(chip.end <= chip.sram_bytes for chip in told.buffers) == len(told.chips)
    assert told.what_ifs[0].interval_s == pytest.approx(told.binding[0].seconds)
    assert (told.moves, told.resize) == (None, None)
    text = "\n".join(summary_lines(told))
    assert f"What binds: {WAITING}, " in text
    assert "then chip 1 compute binds" in text
    assert "of speed for what binds" not in text


def text_of(told: PlanExplanation) -> str:
    out = io.StringIO()
    print_plan_explanation(Console(file=out, width=240), told)
    return out.getvalue()


# --------------------------------------------------------------------------- by hand


def test_what_binds_and_what_comes_next() -> None:
    graph, target = toy_graph(), small_mcm(2)
    told = explain_plan(graph, target, make_plan(graph, target, [0, 0, 0, 0, 1, 1]))
    assert [term.name for term in told.binding] == ["chip 0 compute"]
    names = [name for name, _ in told.next_terms]
    assert sorted(names[:2]) == ["chip 1 compute", "link 0->1"]
    assert names[2:] == ["host out", "host in"]
    assert [seconds for _, seconds in told.next_terms] == pytest.approx([2e-5, 2e-5, 1e-5, 2e-6])
    assert (told.chips_used, told.num_kernels, told.violations) == (2, 6, ())
    assert told.idle_share == pytest.approx(1 - 43.4 / 46.8)


def test_terms_that_are_equal_bind_together() -> None:
    graph, target = toy_graph(), small_mcm(2, host_out_bytes_per_s=2000 / 23.4e-6)
    told = explain_plan(graph, target, make_plan(graph, target, [0, 0, 0, 0, 1, 1]))
    assert sorted(term.name for term in told.binding) == ["chip 0 compute", "host out"]
    assert "What binds together: " in text_of(told)


def test_what_would_help_is_costed_again() -> None:
    graph, target = toy_graph(), small_mcm(2, link_bytes_per_s=5e7)
    told = explain_plan(graph, target, make_plan(graph, target, [0, 0, 0, 0, 1, 1]))
    # The link takes 40 us; at 1.1 times the rate 36.4 us, at twice the rate chip 0 binds.
    assert [(what_if.change, what_if.interval_s, what_if.bottleneck) for what_if in told.what_ifs] == [
        ("twice the bandwidth on every link", pytest.approx(23.4e-6), "chip 0 compute"),
        ("10 % more bandwidth on link 0->1", pytest.approx(40e-6 / FASTER), "link 0->1"),
    ]


def test_of_the_makespan_where_that_was_asked_for() -> None:
    graph, target = toy_graph(), small_mcm(2, link_bytes_per_s=5e7)
    plan = make_plan(graph, target, [0, 0, 0, 0, 1, 1])
    told = explain_plan(graph, target, plan, objective="latency", bound=Bound(2e-5, "by hand"))
    assert told.path is not None
    assert told.reached_s == told.path.makespan_s == told.metrics.makespan_s
    assert (told.moves, told.resize) == (None, None)
    assert all(what_if.makespan_s < told.reached_s for what_if in told.what_ifs)
    text = text_of(told)
    for words in (
        f"makespan {told.reached_s * 1e6:.4g} us of one inference alone",
        "What binds: the critical path",
        "idle        ",
        "kernels of other chips",
        "no plan has a makespan below 20 us",
        " kernel ",
        " transfer ",
    ):
        assert words in text, words
    of_op = explain_op(graph, target, plan, "mix", objective="latency").alone
    assert of_op is not None
    assert of_op.start_s + of_op.seconds + of_op.slack_s <= told.reached_s


def test_one_more_chip_by_hand() -> None:
    gpus = load_target("gpu-4")
    two = replace(first_chips(gpus, 2), kinds=(replace(gpus.kinds[0], name="chip", count=2),))
    graph = measured_graph({"a": 6, "b": 6, "c": 6}, {})
    told = explain_plan(graph, two, make_plan(graph, two, [0, 0, 0]), objective="latency")
    assert told.one_more_chip == OneMoreChip(pytest.approx(6e-6), pytest.approx(12e-6))
    assert "A list schedule of the same kernels: 12 us, with one more chip 6 us" in text_of(told)
    assert explain_plan(graph, two, make_plan(graph, two, [0, 0, 0])).one_more_chip is None
    ring = small_mcm(2)
    assert (
        explain_plan(graph, ring, make_plan(graph, ring, [0, 0, 1]), objective="latency").one_more_chip
        is None
    )


@settings(max_examples=examples(20))
@given(seeds)
def test_one_more_chip_is_the_target_with_one_more(seed: int) -> None:
    rng = np.random.default_rng(seed)
    graph, gpus = random_graph(rng, 20), load_target("gpu-4")
    three = first_chips(gpus, 3)
    fewer, more = (one_more_chip(graph, on, make_plan(graph, on, [0] * 20)) for on in (three, gpus))
    assert fewer is not None
    assert more is not None
    assert fewer.makespan_s == more.makespan_without_s


def test_how_full_chips_and_links_are() -> None:
    graph, target = toy_graph(), small_mcm(2)
    told = explain_plan(graph, target, make_plan(graph, target, [0, 0, 0, 0, 1, 1]))
    first, second = told.chips
    assert (first.chip, first.ops, first.kernels) == (0, 4, 4)
    # dense 8 and relu 5 of compute; embed 2.4 and mix 4 of traffic; 1 a kernel.
    assert (first.compute_s, first.sram_s, first.overhead_s) == pytest.approx((13e-6, 6.4e-6, 4e-6))
    assert first.dearest.ops == ("dense",)
    assert (first.weight_bytes, second.weight_bytes) == (14_000, 10_000)
    assert [(use.name, use.size_bytes, use.tensors) for use in told.links] == [
        ("link 0->1", 2000, 2),
        ("host in", 400, 1),
        ("host out", 2000, 1),
    ]


def test_relays_are_listed_with_their_cost() -> None:
    graph, target = toy_graph(), small_mcm(3, triangle="adjacent")
    plan = make_plan(graph, target, [0, 1, 1, 1, 2, 2])
    told = explain_plan(graph, target, replace(plan, relays=(Relay("x", (1,)),)))
    (relay,) = told.relays
    assert (relay.tensor, relay.source.chip, relay.chips, relay.farthest.op) == ("x", 0, (1,), "add")
    assert (relay.size_bytes, relay.seconds) == (1000, pytest.approx(3e-6))
    assert told.violations == ()
    assert "copies of tensors on chips that they would pass" in text_of(told)


def test_broken_rules_and_constraints_are_told_first() -> None:
    graph, target = toy_graph(), small_mcm(3)
    plan = make_plan(graph, target, [0, 0, 0, 2, 2, 2])
    text = text_of(explain_plan(graph, target, plan))
    assert text.startswith("INVALID, no_skip: chip 1 runs no op, but chip 2 does.")
    good = make_plan(graph, target, [0, 0, 0, 1, 1, 2])
    told = explain_plan(graph, target, good, constraints=(Pin("mix", 0),))
    assert [violation.constraint for violation in told.violations] == ["pin"]


def test_what_is_no_plan_is_refused() -> None:
    graph, target = toy_graph(), small_mcm(2)
    plan = make_plan(graph, target, [0, 0, 0, 0, 1, 9])
    with pytest.raises(PlanError, match="chip 9"):
        explain_plan(graph, target, plan)
    with pytest.raises(PlanError, match="chip 9"):
        explain_op(graph, target, plan, "mix")
    with pytest.raises(PlanError, match="another target"):
        explain_plan(graph, small_mcm(3), plan)


SUMMARY = """\
toy on small-mcm: 6 ops in 6 kernels on 2 of 2 chips
interval 40 us (25000 inferences/s), latency 76.4 us

What binds: link 0->1, 40 us
  link 0->1 carries 2 kB of 2 tensors
       20 us   50%  1 kB of `x`, from `embed` (chip 0), to `add` (chip 1)
       20 us   50%  1 kB of `s`, from `mix` (chip 0), to `add` (chip 1)
Next: chip 0 compute 23.4 us (-41.5%), chip 1 compute 20 us (-50.0%), host out 10 us (-75.0%), \
host in 2 us (-95.0%)

What would help, with this plan as it is:
  twice the bandwidth on every link: 23.4 us (-41.5%), then chip 0 compute binds
  10 % more bandwidth on link 0->1: 36.36 us (-9.1%), which still binds
  beyond 70.9% of speed for what binds, chip 0 compute binds instead
  moving one of these kernels: of 3 moves tried, 2 legal, the best, `add` to chip 0, \
shortens the interval to 29.4 us (-26.5%)

Bound: no plan with one chip per stage has an interval below 20 us, this plan takes 2 times that: by hand"""


def test_the_summary_word_for_word() -> None:
    graph, target = toy_graph(), small_mcm(2, link_bytes_per_s=5e7)
    plan = make_plan(graph, target, [0, 0, 0, 0, 1, 1])
    told = explain_plan(graph, target, plan, bound=Bound(2e-5, "by hand"))
    assert "\n".join(summary_lines(told)) == SUMMARY


# --------------------------------------------------------------------------- at random


@settings(max_examples=examples(60))
@given(seeds)
def test_any_plan_is_explained_and_what_ifs_are_exact(seed: int) -> None:
    rng = np.random.default_rng(seed)
    target = random_target(rng, num_chips=int(rng.integers(1, 6)))
    graph = random_graph(rng, int(rng.integers(1, 15)), kinds=kind_names(target))
    plan = random_plan(rng, graph, target, fusion="legal", monotone=target.constraints.acyclic)
    told = explain_plan(graph, target, plan)
    assert {term.name for term in told.binding} >= {told.metrics.bottleneck}
    by_change = {what_if.change: what_if for what_if in told.what_ifs}
    tables = cost_tables(graph, target)
    faster = tables._replace(op_s=tables.op_s / FASTER)
    terms = evaluate_batch(faster, plan.placement[None], plan.order[None], plan.fusion_group[None])
    if "10 % higher compute rates" in by_change:
        assert by_change["10 % higher compute rates"].interval_s == terms.interval_s[0]
    for what_if in told.what_ifs:
        assert what_if.interval_s < told.metrics.interval_s
    assert text_of(told)
    json.dumps(explanation_to_dict(told), allow_nan=False)


@pytest.mark.parametrize("name", zoo_sample()[::4])
def test_zoo_graphs(name: str) -> None:
    graph, target = load_zoo(name), load_target("mcm-6x6")
    greedy, sliced = first_plans(graph, target)
    plan = sliced or greedy
    told = explain_plan(graph, target, plan)
    for use in told.chips:
        parts_s = use.compute_s + use.sram_s + use.overhead_s + use.measured_s
        assert parts_s == pytest.approx(use.busy_s)
    assert len(told.next_terms) + len(told.binding) >= len(told.chips)
    assert text_of(told).count("\n") > len(told.chips)
    told_op = explain_op(graph, target, plan, graph.op_names[graph.num_ops // 2])
    out = io.StringIO()
    print_op_explanation(Console(file=out, width=240), told_op)
    json.dumps(explanation_to_dict(told_op), allow_nan=False)


def test_targets_without_a_ring() -> None:
    entry = next(entry for entry in zoo_entries() if entry.name == "inception_v3_b32")
    graph, target = load_zoo(entry.name), load_target(entry.target)
    plan = make_plan(graph, target, np.arange(graph.num_ops) % target.num_chips)
    told = explain_plan(graph, target, plan)
    assert told.violations == ()
    assert "link" in text_of(told)
