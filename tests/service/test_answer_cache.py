"""Answers kept: which questions count as the same, and how many there is room for."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from go_opt.env import Target, load_target, parse_target
from go_opt.errors import PolicyError
from go_opt.model.graph import Graph, NodeWithoutOp
from go_opt.result import Request
from go_opt.service.messages.sent_graph import SentGraph
from go_opt.service.workers.answer_cache import AnswerCache, Policy, answer_key
from go_opt.solver.problem.user_constraints import Colocate, CutAfter

TARGET = load_target("mcm-2x2")
TEXT = (Path(__file__).parents[2] / "env" / "targets" / "mcm-2x2.toml").read_text("utf-8")
BASE = Request(max_evaluations=3)
OTHERS = {
    "objective": "latency",
    "budget_s": 2.0,
    "max_evaluations": 4,
    "seed": 1,
    "decide": "placement",
    "relays": False,
    "replication": False,
    "fidelity": "simulated",
    "constraints": (Colocate("a"),),
    "max_latency_s": 1.0,
}


def key_of(graph: Graph, target: Target, request: Request, policy: Policy) -> str:
    return answer_key(SentGraph(graph), target, request, policy)


def test_an_answer_is_found_again_and_the_oldest_makes_room() -> None:
    cache = AnswerCache(max_bytes=10)
    cache.put("a", b"1234")
    cache.put("b", b"5678")
    assert cache.get("a") == b"1234"
    cache.put("c", b"90ab")
    assert [cache.get(key) for key in "abc"] == [b"1234", None, b"90ab"]
    cache.put("huge", bytes(11))
    assert cache.get("huge") is None
    assert cache.get("a") == b"1234"


@given(st.lists(st.tuples(st.sampled_from("abcd"), st.integers(0, 12))))
def test_it_never_holds_more_than_it_may(answers: list[tuple[str, int]]) -> None:
    cache = AnswerCache(max_bytes=10)
    for key, size in answers:
        cache.put(key, bytes(size))
        held = [cache.get(key) or b"" for key in "abcd"]
        assert sum(map(len, held)) <= 10
        if size <= 10:
            assert cache.get(key) == bytes(size)


@pytest.mark.parametrize("field", OTHERS)
def test_every_part_of_a_request_counts(graph: Graph, field: str) -> None:
    other = replace(BASE, **{field: OTHERS[field]})
    assert key_of(graph, TARGET, other, None) != key_of(graph, TARGET, BASE, None)


def test_constraints_of_equal_fields_are_told_apart(graph: Graph) -> None:
    asked = [replace(BASE, constraints=(kind(["a", "b"]),)) for kind in (Colocate, CutAfter)]
    keys = {key_of(graph, TARGET, request, None) for request in asked}
    assert len(keys) == 2
    assert key_of(graph, TARGET, replace(BASE, constraints=(Colocate(("a", "b")),)), None) in keys


def test_a_default_written_out_is_the_same_question(graph: Graph) -> None:
    assert key_of(graph, TARGET, Request(), None) == key_of(graph, TARGET, Request(budget_s=5.0), None)


def test_graph_and_target_count_by_what_they_are(graph: Graph) -> None:
    key = key_of(graph, TARGET, BASE, None)
    assert key_of(replace(graph, name="other"), TARGET, BASE, None) == key
    assert key_of(replace(graph, op_names=("a", "c")), TARGET, BASE, None) != key
    assert key_of(replace(graph, dims={"batch": 3}), TARGET, BASE, None) != key
    assert key_of(graph, load_target("mcm-6x6"), BASE, None) != key
    inline = parse_target(TEXT, "mine")
    assert key_of(graph, inline, BASE, None) != key  # the plan says where its target is from


def test_what_only_the_answer_shows_counts(graph: Graph) -> None:
    turned = SentGraph(graph, np.array([1, 0], dtype=np.int32))
    assert answer_key(turned, TARGET, BASE, None) != key_of(graph, TARGET, BASE, None)
    imported = replace(graph, nodes_without_op=(NodeWithoutOp("shape", "folded", None),))
    assert key_of(imported, TARGET, BASE, None) != key_of(graph, TARGET, BASE, None)


def test_a_policy_counts_by_its_content(graph: Graph, tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    first.write_bytes(b"weights")
    second.write_bytes(b"weights")
    key = key_of(graph, TARGET, BASE, first)
    assert key == key_of(graph, TARGET, BASE, second)
    assert key != key_of(graph, TARGET, BASE, None)
    second.write_bytes(b"other weights")
    os.utime(second, ns=(1, 1))
    assert key != key_of(graph, TARGET, BASE, second)
    with pytest.raises(PolicyError, match="cannot be read"):
        key_of(graph, TARGET, BASE, tmp_path / "missing")
