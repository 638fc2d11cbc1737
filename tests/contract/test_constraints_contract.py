"""Constraints over every transport: kept, refused with the conflict, and judged."""

from __future__ import annotations

from typing import Any

import pytest

from go_opt import api
from go_opt.errors import InfeasibleError, InvalidInputError
from go_opt.given_request import load_constraints
from go_opt.solver.problem.user_constraints import ChipLimit, Colocate, CutAfter, Forbid, Pin
from tests.contract.test_service_contract import chain

FEW = {"max_evaluations": 8, "policy": None}
ASKED = (
    Pin("op1", 0),
    Forbid("op[56]", [0]),
    Colocate(["op2", "op3"]),
    CutAfter("op3"),
    ChipLimit(0, at_most_bytes=1e6),
)


ASKED_TOML = """
[[pin]]
ops = "op1"
chip = 0
[[forbid]]
ops = "op[56]"
chips = [0]
[[colocate]]
ops = ["op2", "op3"]
[[cut_after]]
ops = "op3"
[[limit]]
chip = 0
at_most_bytes = 1e6
"""


def test_they_are_kept(client: Any, tmp_path) -> None:
    graph = chain(8)
    result = client.optimize(graph, "mcm-2x2", constraints=ASKED, **FEW)
    assert api.verify(graph, "mcm-2x2", result.plan, ASKED) == []
    assert result.plan.placement[3] > result.plan.placement[2] == result.plan.placement[1]
    path = tmp_path / "constraints.toml"
    path.write_text(ASKED_TOML, "utf-8")
    assert load_constraints(path) == ASKED
    again = client.optimize(graph, "mcm-2x2", constraints=path, **FEW)
    assert again.plan.placement.tolist() == result.plan.placement.tolist()


def test_a_conflict_is_named(client: Any) -> None:
    with pytest.raises(InfeasibleError) as caught:
        client.optimize(chain(8), "mcm-2x2", constraints=[Pin("op2", 1), Pin("op5", 0), *ASKED[2:]], **FEW)
    assert "pin 'op2' to chip 1 and pin 'op5' to chip 0" in str(caught.value)
    assert "colocate" not in str(caught.value)


def test_what_is_about_nothing_is_refused(client: Any) -> None:
    with pytest.raises(InvalidInputError) as caught:
        client.optimize(chain(8), "mcm-2x2", constraints=[Pin("nothing", 1)], **FEW)
    assert str(caught.value) == "pin 'nothing' to chip 1: 'nothing' matches no op."
    assert caught.value.field == "constraints"


def test_a_plan_is_judged_by_them(client: Any) -> None:
    graph = chain(8)
    plan = client.optimize(graph, "mcm-2x2", constraints=ASKED, **FEW).plan
    assert client.evaluate(graph, "mcm-2x2", plan, constraints=ASKED).valid
    metrics = client.evaluate(graph, "mcm-2x2", plan, constraints=[Pin("op1", 3)])
    assert not metrics.valid
    assert metrics.reason == "pin 'op1' to chip 3: op 'op1' is on chip 0."
