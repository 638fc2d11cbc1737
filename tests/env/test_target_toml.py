"""A target written as a file parses to the same target."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings

from go_opt.agents.training.problems.cases import Variation, varied_target
from go_opt.env import Target, load_target, parse_target, target_names
from go_opt.env.target.toml import target_to_toml
from go_opt.errors import TargetError
from tests.strategies import examples, random_simulated_target, random_target, seeds


def assert_same(got: Any, want: Any) -> None:
    for field in fields(want):
        a, b = getattr(got, field.name), getattr(want, field.name)
        if field.name == "topology":
            assert (a.kind, a.is_ring) == (b.kind, b.is_ring) or b.kind == "mesh2d"
            for name in ("link_from", "link_to", "rate_bytes_per_s", "latency_s"):
                np.testing.assert_array_equal(getattr(a, name), getattr(b, name))
        elif field.name not in ("fingerprint", "source"):
            assert a == b, field.name


def again(target: Target) -> Target:
    return parse_target(target_to_toml(target), target.source)


@pytest.mark.parametrize("name", target_names())
def test_shipped_targets(name: str) -> None:
    assert_same(again(load_target(name)), load_target(name))


@pytest.mark.parametrize("name", target_names())
def test_varied_targets(name: str) -> None:
    target = varied_target(load_target(name), Variation(5, 1.37, 0.61, 1.9))
    assert_same(again(target), target)


@settings(max_examples=examples(60))
@given(seed=seeds)
def test_random_targets(seed: int) -> None:
    target = random_target(np.random.default_rng(seed))
    assert_same(again(target), target)


@settings(max_examples=examples(30))
@given(seed=seeds)
def test_targets_with_simulator_tables(seed: int) -> None:
    rng = np.random.default_rng(seed)
    target = random_simulated_target(rng, topology="listed")
    assert_same(again(target), target)


def test_text_that_must_be_escaped() -> None:
    target = replace(load_target("mcm-2x2"), description='a "quoted"\\ line\nand é\x7f\0 \U0001f600')
    assert_same(again(target), target)


def test_links_that_no_file_can_say() -> None:
    target = load_target("mcm-2x2")
    links = replace(target.topology, rate_bytes_per_s=np.arange(1.0, 5.0))
    with pytest.raises(TargetError, match="target 'mcm-2x2': the links of a ring differ"):
        target_to_toml(replace(target, topology=links))
