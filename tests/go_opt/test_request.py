"""``Request`` is the only list of the options of a search: what else takes options has each of them."""

from __future__ import annotations

import inspect
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

import go_opt
from go_opt.cli.commands.searching import Search
from go_opt.errors import InvalidInputError
from go_opt.given_request import as_request
from go_opt.model.start import OpStart, Start
from go_opt.result import Request
from go_opt.service.messages.convert import request_from_proto, request_to_proto

# A value of each field that is not its default, and the command's option for it, if there is one.
OPTIONS: dict[str, tuple[Any, dict[str, Any]]] = {
    "objective": ("step", {"objective": "step"}),
    "budget_s": (0.5, {"budget": "500ms"}),
    "max_evaluations": (7, {"max_evaluations": 7}),
    "seed": (3, {"seed": 3}),
    "policy": ("default", {"policy": "default"}),
    "decide": ("placement", {"decide": "placement"}),
    "fidelity": ("simulated", {"fidelity": "simulated"}),
    "simulate": (False, {"no_simulate": True}),
    "relays": (False, {"no_relays": True}),
    "replication": (False, {"no_replication": True}),
    "splits": (False, {"no_splits": True}),
    "rewrite": (False, {"no_rewrite": True}),
    "early_end": (False, {"no_early_end": True}),
    "max_latency_s": (2e-3, {"max_latency": "2ms"}),
    "sequences": (4, {"sequences": "4"}),
    "constraints": ((go_opt.Stages(2),), {"stages": 2}),
    "start": (Start({"a": OpStart(1, 1, 0, 0)}), {}),
}
FIELDS = tuple(field.name for field in fields(Request))
DOORS = (
    *(go_opt.optimize, go_opt.fewest_chips, go_opt.chip_counts),
    *(go_opt.Client.optimize, go_opt.Client.optimize_stream, go_opt.Client.fewest_chips),
)


def test_each_field_is_tested() -> None:
    assert tuple(OPTIONS) == FIELDS
    assert all(getattr(Request(), name) != value for name, (value, _) in OPTIONS.items())


@pytest.mark.parametrize("door", DOORS)
def test_each_door_shows_each_option(door: Any) -> None:
    shown = inspect.signature(door).parameters
    assert {name: shown[name].default for name in FIELDS} == vars(Request())
    assert all(parameter.kind is not parameter.VAR_KEYWORD for parameter in shown.values())


@pytest.mark.parametrize("name", FIELDS)
def test_each_option_arrives(name: str) -> None:
    value, options = OPTIONS[name]
    request = Request(**{name: value})
    assert repr(request_from_proto(request_to_proto(request))) == repr(request)
    assert as_request(Request(), {name: value}, None) == request
    if options:
        assert Search(**options).request() == request


def test_an_option_replaces_a_field_of_the_request() -> None:
    given = Request(seed=3, relays=False)
    assert as_request(Request(sequences=3), {"sequences": "auto"}, None) == Request()
    changed = as_request(given, {"relays": True, "budget_s": "2s"}, None)
    assert changed == Request(seed=3, budget_s=2.0)
    with pytest.raises(TypeError, match="unexpected keyword argument 'buget_s'"):
        go_opt.optimize("zoo:dcn_v2", buget_s=1)


def test_a_service_is_sent_no_file_of_a_policy() -> None:
    with pytest.raises(InvalidInputError, match="policy must be the name of one that the service has"):
        request_to_proto(Request(policy=Path("policy.safetensors")))
