"""The schema of target files and the reader of target files say the same."""

from __future__ import annotations

import copy
import re
import tomllib
from collections.abc import Iterator
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from go_opt.env import parse_target, target_names, target_text
from go_opt.env.target import target_schema
from go_opt.env.target.topology import TOPOLOGIES
from go_opt.errors import TargetError
from go_opt.model.dtypes import DTYPE_NAMES

SCHEMA = target_schema()
VALIDATOR = Draft202012Validator(SCHEMA)
Path = tuple[str | int, ...]


def full(topology: str) -> dict[str, Any]:
    """A target that states every field, on four chips."""
    data = tomllib.loads(target_text("mcm-2x2"))
    data["analytical"] = {"effects": ["shapes"]}
    data["constraints"]["triangle"] = "off"
    data["kinds"][0]["dependency_overhead_s"] = 1e-6
    data["kinds"][0]["op_types"] = ["Conv", "Relu"]
    data["kinds"][0]["flops_per_s_by_op_type"] = {"Conv": {"int8": 1e12}}
    factor = {"op_type": "Conv", "factor": 1.5, "shape": [1, 49, 512, 512]}
    data["kinds"][0]["simulator"]["op_factors"] = [factor]
    shape: dict[str, Any] = {"kind": topology, "rate_bytes_per_s": 1e9, "latency_s": 0.0}
    if topology == "mesh2d":
        shape["columns"] = 2
    if topology == "listed":
        link = {"source": 0, "destination": 1, "rate_bytes_per_s": 1e9, "latency_s": 1e-6}
        shape = {"kind": "listed", "links": [link]}
    return data | {"topology": shape}


def written(value: Any) -> str:
    """A value as TOML, tables inline."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key} = {written(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(written, value)) + "]"
    return {True: "true", False: "false"}[value] if isinstance(value, bool) else repr(value)


def problem(data: dict[str, Any]) -> str:
    """What the reader has against a target; empty: nothing."""
    try:
        parse_target("".join(f"{key} = {written(value)}\n" for key, value in data.items()), "t")
    except TargetError as error:
        return str(error)
    return ""


def places(value: Any, path: Path = ()) -> Iterator[Path]:
    """Every table, list and figure of a target."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in items:
        yield (*path, key)
        yield from places(item, (*path, key))


def changed(data: dict[str, Any], path: Path, value: Any) -> dict[str, Any]:
    result = copy.deepcopy(data)
    inner: Any = result
    for key in path[:-1]:
        inner = inner[key]
    if value is None:
        del inner[path[-1]]
    else:
        inner[path[-1]] = value
    return result


def test_it_is_a_schema() -> None:
    Draft202012Validator.check_schema(SCHEMA)


@pytest.mark.parametrize("name", target_names())
def test_shipped_targets_validate(name: str) -> None:
    VALIDATOR.validate(tomllib.loads(target_text(name)))


@pytest.mark.parametrize("name", [*DTYPE_NAMES, "default", "float31"])
def test_types_of_rates(name: str) -> None:
    data = changed(full("ring"), ("kinds", 0, "vector_flops_per_s"), {name: 1e9})
    assert (problem(data) == "") == VALIDATOR.is_valid(data) == (name != "float31")


# What the reader says of fields that do not go together: no schema can.
TOGETHER = re.compile(
    r"chips in all|a chip from 0 to 3|another chip than|constraints\.triangle needs|columns"
)
VALUES = (None, "text", "", True, 0, -1, 3, 1.5, -0.5, [], ["text"], [1.5], [1, 1, 1], {}, {"unknown": 1})


@pytest.mark.parametrize("topology", TOPOLOGIES)
def test_both_refuse_the_same(topology: str) -> None:
    data = full(topology)
    assert VALIDATOR.is_valid(data)
    refused = 0
    for path in places(data):
        if topology != "ring" and path[0] != "topology":
            continue
        for value in VALUES:
            given = changed(data, path, value)
            if isinstance(path[-1], str) and value == 3:
                given = changed(given, (*path[:-1], "unknown_field"), 1)
            trouble = problem(given)
            if not TOGETHER.search(trouble):
                assert VALIDATOR.is_valid(given) == (trouble == ""), (path, value, trouble)
            refused += trouble != ""
    assert refused > 20
