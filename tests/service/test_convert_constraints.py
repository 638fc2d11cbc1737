"""Constraints as messages: the same back, and refused in one sentence."""

from __future__ import annotations

import pytest

from go_opt.errors import InvalidInputError
from go_opt.proto import optimizer_pb2
from go_opt.result import Request
from go_opt.service.messages.convert import (
    constraint_to_proto,
    constraints_from_proto,
    request_from_proto,
    request_to_proto,
)
from go_opt.solver.problem.user_constraints import ChipLimit, Colocate, CutAfter, Forbid, Pin, Stages

CONSTRAINTS = (
    Pin(["encoder/.*", "é"], 3),
    ChipLimit(0, at_most_bytes=8e6, at_least_s=0.0),
    Forbid("head", [0, 1]),
    Colocate("c"),
    CutAfter(["a", "b"]),
    ChipLimit(2, at_most_s=1e-3, at_least_bytes=1),
    ChipLimit(1, at_most_ops=4.0, at_most_kernels=2.0),
    Stages(3),
    Pin(chip=2, op_types="LSTM"),
    Forbid("a", [1], op_types=["LSTM", ".*Conv"]),
)


def test_they_come_back_as_they_were() -> None:
    assert constraints_from_proto(map(constraint_to_proto, CONSTRAINTS)) == CONSTRAINTS
    request = Request(constraints=CONSTRAINTS)
    assert request_from_proto(request_to_proto(request)) == request


@pytest.mark.parametrize(
    ("message", "sentence"),
    [
        ({}, "constraints[1] is of no kind."),
        ({"pin": {"chip": 1}}, "constraints[1]: Pin names no op."),
        ({"pin": {"ops": ["a"], "chip": -1}}, "constraints[1]: Pin: a chip must be a whole number of 0"),
        ({"forbid": {"ops": ["a"]}}, "constraints[1]: forbid 'a' forbids no chip."),
        ({"stages": {}}, "constraints[1]: Stages: count must be a whole number of 1 or more, not 0."),
        ({"limit": {"chip": 0}}, "constraints[1]: limit of chip 0: give one of at_most_bytes"),
        ({"limit": {"at_most_s": float("inf")}}, "at_most_s must be a finite number of 0 or more, not inf."),
    ],
)
def test_a_mistake_is_one_sentence(message, sentence: str) -> None:
    messages = [optimizer_pb2.Constraint(**part) for part in ({"colocate": {"ops": ["a"]}}, message)]
    with pytest.raises(InvalidInputError) as caught:
        constraints_from_proto(messages)
    assert sentence in str(caught.value)
    assert caught.value.field == "constraints"
