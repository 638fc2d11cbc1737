"""Bytes that stand beside seconds take these seconds at the rate of their link or memory."""

from __future__ import annotations

import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from go_opt.common.units import parse_amount
from go_opt.env import Target, evaluate_plan
from go_opt.explanations import explain_op, explain_plan
from go_opt.explanations.terms import Term, Terms, terms_of
from go_opt.model.graph import Graph
from go_opt.model.plan import Plan
from go_opt.report.explanation import print_op_explanation
from go_opt.report.page.facts import MOST_PARTS, Subject, limit_rows
from go_opt.report.parts.plan_lines import term_lines
from go_opt.report.parts.wording import StageNames
from go_opt.solver.verify.verifier import verify
from tests.env.test_replication import random_case, random_case_anywhere
from tests.go_opt.explanations.test_replicated import printed, toy
from tests.replicated import anywhere, random_forwards
from tests.strategies import examples, kind_names, random_graph, random_plan, random_simulated_target, seeds

_TENSOR = re.compile(r" *(?P<seconds>\S+ \S+) +\d+%  (link \S+: |host \w+: )?(?P<bytes>\S+ k?M?G?B) of .*`.*")
_NOTE = re.compile(
    r"\w+ of (?P<bytes>\S+ k?M?G?B)( from chips? \S+)? over (?P<link>(link|host) [^,]+)(, .*)?"
)


@settings(max_examples=examples(60))
@given(seed=seeds, num_ops=st.integers(1, 18), is_ring=st.booleans())
def test_bytes_at_the_rate_are_the_seconds_beside_them(seed: int, num_ops: int, is_ring: bool) -> None:
    rng = np.random.default_rng(seed)
    case = random_case if is_ring else random_case_anywhere
    graph, target, plan = case(rng, num_ops)
    plan = random_forwards(rng, target, plan)
    terms, metrics = terms_of(graph, target, plan), evaluate_plan(graph, target, plan)
    told = explain_plan(graph, target, plan)
    for index in np.flatnonzero(terms.total_s()):
        check_term(terms, terms.term(int(index)), told.metrics.interval_s)
    for chip in told.chips:
        parts_s = chip.compute_s + chip.sram_s + chip.overhead_s + chip.measured_s
        assert parts_s == pytest.approx(chip.busy_s) == pytest.approx(metrics.compute_s[chip.chip])
        assert chip.stream_bytes == metrics.stream_bytes[chip.chip]
        assert chip.peak_bytes == metrics.peak_bytes[chip.chip]
    for use in told.links:
        link = target.link_names.index(use.name)
        assert use.seconds == metrics.link_s[link]
        takes(terms, use.size_bytes, link, use.seconds)
        takes(terms, use.largest.mean_bytes, link, use.largest.seconds)
        assert use.largest.seconds == max(part.seconds for part in terms.link(link))
    for relay in told.relays:
        assert relay.moved_bytes == 2 * len(relay.chips) * relay.size_bytes
    check_page(terms, Subject(graph, target, plan, told))


def check_term(terms: Terms, term: Term, interval_s: float) -> None:
    """A term's parts by their own bytes, and the text about them."""
    assert term.seconds <= interval_s * (1.0 + 1e-9)
    for kernel in term.kernels:
        kind = terms.loads.tables.chip_kind[kernel.chip]
        if kernel.measured_s == 0.0:
            traffic_s = kernel.moved_bytes * terms.loads.tables.sram_s_per_byte[kind]
            assert kernel.sram_s == pytest.approx(traffic_s)
        modelled_s = max(kernel.compute_s, kernel.sram_s) + kernel.overhead_s
        assert kernel.seconds == pytest.approx(modelled_s + kernel.measured_s)
    for part in term.tensors:
        link = terms.target.link_names.index(part.link)
        takes(terms, part.mean_bytes, link, part.seconds)
        takes(terms, part.size_bytes, link, part.seconds / part.share)
    lines = [found for line in term_lines(term, StageNames({})) if (found := _TENSOR.fullmatch(line))]
    for line, part in zip(lines, term.tensors, strict=False):
        size, seconds = (
            parse_amount(line["bytes"], "size", "bytes"),
            parse_amount(line["seconds"], "seconds", "s"),
        )
        takes(terms, round(size), terms.target.link_names.index(part.link), seconds)
    assert len(lines) == min(len(term.tensors), 6)


def check_page(terms: Terms, subject: Subject) -> None:
    rows = limit_rows(subject)["binding"]
    for row, term in zip(rows, subject.explanation.binding, strict=False):
        shares = sum(part["share"] for part in row["parts"])
        # A chip may be all that binds and have nothing to do, where no op takes time.
        assert shares + row["left_out_share"] == pytest.approx(1.0 if term.seconds > 0 else 0.0)
        notes = [(part, found) for part in row["parts"] if (found := _NOTE.fullmatch(part["note"]))]
        assert len(row["parts"]) == min(len(term.kernels) + len(term.tensors), MOST_PARTS)
        assert len(notes) >= len(row["parts"]) - len(term.kernels)
        for part, note in notes:
            size, link = (
                parse_amount(note["bytes"], "size", "bytes"),
                terms.target.link_names.index(note["link"]),
            )
            takes(terms, round(size), link, part["seconds"])


def takes(terms: Terms, size_bytes: int, link: int, seconds: float) -> None:
    """As texts have four digits, and mean bytes are whole, both may differ by their last digit."""
    tables = terms.loads.tables
    rates = (*tables.link_s_per_byte, tables.host_in_s_per_byte, tables.host_out_s_per_byte)
    assert size_bytes * rates[link] == pytest.approx(seconds, abs=2e-3 * seconds + 0.51 * rates[link])


def test_a_tensor_of_some_inferences_is_shown_with_the_bytes_of_its_seconds() -> None:
    # Of three chips that share the inferences, two get x over the link: 1000 bytes in 5 us.
    graph, target, plan = toy([1, 3, 2], [0, 1, 1, 1, 1, 2], link_bytes_per_s=2e8)
    terms = terms_of(graph, target, plan)
    _, line, _ = term_lines(terms.term(target.num_chips + 1), StageNames({}))
    assert line.startswith("  3.333 us   67%  667 B of `x`, from `embed` (chip 0), to ")
    assert line.endswith(", 1 kB in 66.7% of all inferences")


def test_transfers_of_a_replica_are_said_to_be_means() -> None:
    graph, target, plan = toy([1, 3, 2], [0, 1, 1, 1, 1, 2], overlap=False)
    term = terms_of(graph, target, plan).term(1)
    kernels_s, transfers_s = sum(part.seconds for part in term.kernels), sum(p.seconds for p in term.tensors)
    assert term.seconds == pytest.approx(kernels_s / 3 + transfers_s)
    text = "\n".join(term_lines(term, StageNames({1: 3})))
    assert "26 us an inference, of which each chip runs one in 3; transfers are means of all inf" in text


def test_moves_do_not_count_waits_and_say_so() -> None:
    graph, target, plan = next(filter(None, map(waiting_case, range(147, 400))))
    told = explain_op(graph, target, plan, graph.op_names[0])
    assert told.cost.interval_s < evaluate_plan(graph, target, plan).interval_s
    assert "Without waits for streamed weights, the interval is" in printed(print_op_explanation, told)


def waiting_case(seed: int) -> tuple[Graph, Target, Plan] | None:
    """A random valid plan, if its chips wait for streamed weights."""
    rng = np.random.default_rng(seed)
    target = random_simulated_target(rng, topology="ring", rates_differ=False)
    graph = random_graph(rng, 14, kinds=kind_names(target))
    plan = anywhere(rng, target, random_plan(rng, graph, target, monotone=True, fusion="legal"))
    plan = random_forwards(rng, target, plan)
    waits = evaluate_plan(graph, target, plan).waits and not verify(graph, target, plan)
    return (graph, target, plan) if waits else None
