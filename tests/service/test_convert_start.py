"""What a search begins with, as a message."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from go_opt.errors import InvalidInputError
from go_opt.model.codecs.plan_json import plan_to_dict
from go_opt.model.start import NO_KERNEL, OpStart, Start
from go_opt.proto import optimizer_pb2, plan_pb2
from go_opt.service.messages.convert import start_from_proto, start_to_proto
from tests.strategies import examples, random_graph, random_plan, random_target, seeds

NUMBERS = st.integers(0, 2**31 - 1)
OPS = st.dictionaries(
    st.text(st.characters(codec="utf-8"), max_size=5),
    st.builds(OpStart, NUMBERS, NUMBERS.map(lambda n: max(n, 1)), st.just(NO_KERNEL) | NUMBERS, NUMBERS),
    max_size=5,
)


@settings(max_examples=examples(100))
@given(ops=OPS)
def test_ops_come_back(ops: dict[str, OpStart]) -> None:
    sent = start_to_proto(Start(ops)).SerializeToString()
    got = start_from_proto(optimizer_pb2.Start.FromString(sent))
    assert list(got.ops.items()) == list(ops.items())
    assert got.plan is None


@settings(max_examples=examples(50))
@given(seed=seeds)
def test_a_plan_comes_back_with_what_it_says_of_ops(seed: int) -> None:
    rng = np.random.default_rng(seed)
    target = random_target(rng)
    graph = random_graph(rng, int(rng.integers(1, 10)))
    start = Start.of_plan(random_plan(rng, graph, target), graph.op_names)
    got = start_from_proto(start_to_proto(start))
    assert got.ops == start.ops
    assert got.plan is not None
    assert start.plan is not None
    assert plan_to_dict(got.plan) == plan_to_dict(start.plan)


@pytest.mark.parametrize(
    ("op", "field", "words"),
    [
        ({"chip": -1}, "start.ops[0].chip", "chip of op 'x' must be 0 or more, not -1"),
        ({"replication": 0}, "start.ops[0].replication", "must be 1 or more, not 0"),
        ({"kernel": -1}, "start.ops[0].kernel", "must be 0 or more, not -1"),
    ],
)
def test_ops_out_of_range(op: dict[str, Any], field: str, words: str) -> None:
    with pytest.raises(InvalidInputError, match=words) as error:
        start_from_proto(optimizer_pb2.Start(ops=[optimizer_pb2.OpStart(op="x", **op)]))
    assert error.value.field == field


def test_a_plan_without_names_and_a_plan_beside_ops() -> None:
    lists = {name: [0] for name in ("placement", "order", "fusion_group", "op_provenance")}
    plan = plan_pb2.Plan(**lists, replication=[1], provenance=["a test"])
    with pytest.raises(InvalidInputError, match="must name its 1 ops, op_names has 0") as error:
        start_from_proto(optimizer_pb2.Start(plan=plan))
    assert error.value.field == "start.plan.op_names"
    plan.op_names.append("x")
    assert start_from_proto(optimizer_pb2.Start(plan=plan)).ops == {"x": OpStart(0, 1, 0, 0)}
    with pytest.raises(InvalidInputError, match="ops or a plan, not both"):
        start_from_proto(optimizer_pb2.Start(plan=plan, ops=[optimizer_pb2.OpStart(op="x")]))
