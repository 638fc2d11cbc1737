"""How many chips a model needs: parts of a package, counts, and the fewest that are fast enough."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest

import go_opt
from go_opt.common.units import parse_rate_per_s
from go_opt.env.target import first_chips, parse_target, target_text
from go_opt.errors import InfeasibleError, InvalidInputError, TargetError
from go_opt.result import Request

COUNTED = Request(max_evaluations=30)


def test_the_first_chips_of_a_ring_are_a_chain() -> None:
    part = first_chips(go_opt.target("mcm-6x6"), 3)
    assert part.num_chips == 3
    assert list(zip(part.topology.link_from, part.topology.link_to, strict=True)) == [(0, 1), (1, 2)]
    assert part.fingerprint != go_opt.target("mcm-6x6").fingerprint


def test_the_first_chips_around_a_host_keep_their_links() -> None:
    part = first_chips(go_opt.target("gpu-4"), 2)
    links = list(zip(part.topology.link_src, part.topology.link_dst, strict=True))
    assert links == [("0", "host"), ("host", "0"), ("1", "host"), ("host", "1")]


def test_packages_that_have_no_part_are_refused_by_name() -> None:
    ring = target_text("mcm-2x2").replace("acyclic = true", "acyclic = false")
    ring = re.sub(r'triangle = "\w+"', 'triangle = "off"', ring)
    with pytest.raises(TargetError, match="go around the whole ring"):
        first_chips(parse_target(ring, "ring"), 2)
    full = re.sub(r'no_skip = "\w+"', 'no_skip = "all"', target_text("mcm-2x2"))
    with pytest.raises(TargetError, match="use all of its chips"):
        first_chips(parse_target(full, "full"), 2)
    with pytest.raises(TargetError, match="which has 1 to 36"):
        first_chips(go_opt.target("mcm-6x6"), 37)


def test_counts_grow_faster_and_hold_on_the_whole_package() -> None:
    graph, target = go_opt.load("zoo:mobilenet_v2"), go_opt.target("mcm-2x2")
    found = list(go_opt.chip_counts(graph, target, COUNTED, policy=None))
    assert [one.chips for one in found] == [1, 2, 4]
    intervals_s = []
    for one in found:
        assert one.result is not None
        assert one.result.plan.chips_used <= one.chips
        assert go_opt.verify(graph, target, one.result.plan) == []
        again = go_opt.evaluate(graph, target, one.result.plan)
        assert again.interval_s == one.result.metrics.interval_s >= one.result.lower_bound_s * (1 - 1e-9)
        intervals_s.append(again.interval_s)
    assert intervals_s == sorted(intervals_s, reverse=True)


def test_the_fewest_chips_are_as_few_as_the_table_says() -> None:
    graph, target = go_opt.load("zoo:mobilenet_v2"), go_opt.target("mcm-2x2")
    counts = [
        one.result for one in go_opt.chip_counts(graph, target, COUNTED, counts=[1, 2, 3, 4], policy=None)
    ]
    intervals_s = [one.metrics.interval_s for one in counts if one is not None]
    for enough in (1, 2, 3, 4):
        rate_per_s = 0.999 / intervals_s[enough - 1]
        found = go_opt.fewest_chips(graph, target, COUNTED, rate_per_s=rate_per_s, policy=None)
        assert found.chips == enough == found.result.plan.chips_used
        assert found.result.metrics.throughput_per_s >= rate_per_s
        assert go_opt.verify(graph, target, found.result.plan) == []
        below = counts[enough - 2]
        if enough == 1:
            assert "no package with fewer" in found.claim
        elif below is not None and below.lower_bound_s * rate_per_s > 1.0:
            assert found.is_proven


def test_a_rate_beyond_all_chips_is_refused_with_what_is_known() -> None:
    graph = go_opt.load("zoo:mobilenet_v2")
    with pytest.raises(InfeasibleError, match="the best takes") as refused:
        go_opt.fewest_chips(graph, "mcm-2x2", COUNTED, rate_per_s=1e9, policy=None)
    assert refused.value.is_proven


def test_latency_alone_needs_one_chip() -> None:
    graph = go_opt.load("zoo:mobilenet_v2")
    asked = replace(COUNTED, max_latency_s=1e-3)
    assert go_opt.fewest_chips(graph, "mcm-2x2", asked, policy=None).chips == 1


@pytest.mark.parametrize("rate_per_s", [0.0, -1.0, np.inf, np.nan, None])
def test_what_is_no_question_is_refused(rate_per_s: float | None) -> None:
    with pytest.raises(InvalidInputError):
        go_opt.fewest_chips(go_opt.load("zoo:mobilenet_v2"), "mcm-2x2", COUNTED, rate_per_s=rate_per_s)


def test_rates_are_numbers_with_a_unit_of_time() -> None:
    assert [parse_rate_per_s(text, "rate") for text in ("40000/s", "2.5e4", "90/m", "2 / ms")] == [
        40000, 25000, 1.5, pytest.approx(2000)
    ]  # fmt: skip
    for text in ("", "fast", "3/day", "-1/s", "0", "nan/s", "1/0"):
        with pytest.raises(InvalidInputError, match="rate"):
            parse_rate_per_s(text, "rate")
