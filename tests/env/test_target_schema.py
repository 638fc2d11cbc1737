"""The schema of target files and the reader of target files say the same."""

from __future__ import annotations

import copy
import dataclasses
import re
import tomllib
from collections.abc import Iterator
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from go_opt.env import parse_target, target_names, target_text
from go_opt.env.gpu.figures import Collective, KernelFigures
from go_opt.env.target import ChipKind, Target, target_schema
from go_opt.env.target.definition import Constraints, Level
from go_opt.env.target.kinds import KindParameters, SimulatorParameters
from go_opt.env.target.toml import target_to_toml
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
    data |= {"kernel_patterns": ["attention"], "fitted_to": "products: 50 rows"}
    gpus = tomllib.loads(target_text("h100-sxm-2"))
    gpu = gpus["kinds"][0] | {"count": 1, "not_op_types": ["LSTM"], "name": "another"}
    gpu["kernels"] |= {"cache_bytes": 4e6, "cache_bytes_per_s": 5e12}
    gpu["kernels"] |= {"attention_matrix_ratio": 1.1, "attention_memory_ratio": 1.2}
    data["kinds"] = [data["kinds"][0] | {"count": 3}, gpu]
    data["collectives"] = [gpus["collectives"][0] | {"group": 2}]
    level = tomllib.loads(target_text("dgx-h100-16"))["levels"][0]
    data["levels"] = [level | {"size": 4}]
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


def toml_of(data: dict[str, Any]) -> str:
    return "".join(f"{key} = {written(value)}\n" for key, value in data.items())


def problem(data: dict[str, Any]) -> str:
    """What the reader has against a target; empty: nothing."""
    try:
        parse_target(toml_of(data), "t")
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


def stated_fields(schema: dict[str, Any], values: list[Any]) -> Iterator[tuple[str, bool]]:
    """Each field that a schema knows of some values, and whether one of them states it."""
    rows = [row for value in values for row in (value if isinstance(value, list) else [value])]
    for name, of_field in schema.get("items", schema).get("properties", {}).items():
        found = [row[name] for row in rows if isinstance(row, dict) and name in row]
        yield name, bool(found)
        yield from stated_fields(of_field, found)


def test_every_field_is_stated_here() -> None:
    """So that the tests below and above are of all of them."""
    data = full("ring")
    # A type is one of rates; a topology's fields are tested one by one.
    missing = {name for name, is_stated in stated_fields(SCHEMA, [data]) if not is_stated}
    assert missing <= {*DTYPE_NAMES, "default"}


def test_every_figure_of_a_target_is_a_field_of_the_schema() -> None:
    derived = {"topology": (), "source": (), "fingerprint": ()}
    places = {
        Target: SCHEMA,
        Constraints: SCHEMA["properties"]["constraints"],
        ChipKind: SCHEMA["properties"]["kinds"]["items"],
        KernelFigures: SCHEMA["properties"]["kinds"]["items"]["properties"]["kernels"],
        KindParameters: SCHEMA["properties"]["kinds"]["items"]["properties"]["simulator"],
        SimulatorParameters: SCHEMA["properties"]["simulator"],
        Collective: SCHEMA["properties"]["collectives"]["items"],
        Level: SCHEMA["properties"]["levels"]["items"],
    }
    elsewhere = {
        Target: {*derived, "host_in_bytes_per_s", "host_out_bytes_per_s", "analytical_effects"},
        KindParameters: {"tile_rows", "tile_inner", "tile_columns", "kernels"},
        SimulatorParameters: {"kinds", "fit_by_size"},
    }
    for kind, schema in places.items():
        names = {one.name for one in dataclasses.fields(kind)} - elsewhere.get(kind, set())
        assert names <= schema["properties"].keys(), kind


@pytest.mark.parametrize("name", [*target_names(), "full"])
def test_a_target_that_is_written_is_the_same(name: str) -> None:
    """But for its fingerprint, which is that of the text; a grid is written as its links."""
    text = toml_of(full("ring")) if name == "full" else target_text(name)
    target = parse_target(text, name)
    again = parse_target(target_to_toml(target), name)
    for one in dataclasses.fields(Target):
        if one.name not in ("fingerprint", "topology"):
            assert getattr(again, one.name) == getattr(target, one.name), one.name


@pytest.mark.parametrize("name", [*DTYPE_NAMES, "default", "float31"])
def test_types_of_rates(name: str) -> None:
    data = changed(full("ring"), ("kinds", 0, "vector_flops_per_s"), {name: 1e9})
    assert (problem(data) == "") == VALIDATOR.is_valid(data) == (name != "float31")


# What the reader says of fields that do not go together: no schema can.
TOGETHER = re.compile(
    r"chips in all|a chip from 0 to 3|another chip than|constraints\.triangle needs|columns|levels.*must be"
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
