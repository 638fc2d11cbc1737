"""Errors of readers, named by the path in the request."""

from __future__ import annotations

import pytest

from go_opt.errors import GraphError, InfeasibleError, PlanError
from go_opt.proto import graph_pb2, plan_pb2
from go_opt.service.messages.request_part import request_part


@pytest.mark.parametrize(
    ("field", "path"),
    [
        ("", "plan"),
        ("placement", "plan.placement"),
        ("relays[0].chips", "plan.relays[0].chips"),
        ("op 'a'", "plan"),
    ],
)
def test_a_field_of_the_message_is_named_by_its_path(field: str, path: str) -> None:
    with pytest.raises(PlanError, match="it is wrong") as error, request_part("plan", plan_pb2.Plan):
        raise PlanError("it is wrong.", field=field)
    assert error.value.field == path


def test_a_part_without_fields_is_named_itself() -> None:
    with pytest.raises(GraphError) as error, request_part("target"):
        raise GraphError("it is wrong.", field="name")
    assert error.value.field == "target"


def test_other_errors_pass() -> None:
    with pytest.raises(InfeasibleError), request_part("graph", graph_pb2.Graph):
        raise InfeasibleError("no plan.")
