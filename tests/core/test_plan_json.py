"""Plan files: exact, whole or not at all, and malformed ones are refused by field."""

from __future__ import annotations

import copy
import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from go_opt.errors import InvalidInputError, PlanError
from go_opt.model.codecs.plan_json import load_plan, plan_from_dict, plan_to_dict, save_plan
from go_opt.model.plan import Plan, Split

GOOD: dict[str, Any] = {
    "format": "go_opt.v1.Plan",
    "placement": [0, 1, 1],
    "order": [0, 2, 1],
    "fusion_group": [0, 1, 1],
    "replication": [1, 2, 2],
    "relays": [{"tensor": "tensor é", "chips": [1, 2]}],
    "provenance": ["slice: depth order", "pinned"],
    "op_provenance": [0, 1, 0],
    "graph_fingerprint": "ab" * 32,
    "target_fingerprint": "cd" * 32,
    "target": "mcm-6x6",
    "dims": {"batch": 8},
    "precision": "as-is",
    "model": "zoo:resnet50",
    "splits": [
        {
            "op": "op é",
            "factor": "k.0",
            "parts": 3,
            "joined": False,
            "collective": True,
            "bucket": 2,
            "level": 1,
        }
    ],
    "rewrites": [{"rule": "fold", "ops": ["op é", "b"]}],
}
OPTIONAL = ("model", "splits", "rewrites")
SPLIT = {
    name: value for name, value in GOOD["splits"][0].items() if name not in ("collective", "bucket", "level")
}
JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=6,
)


def test_dict_round_trip_is_exact() -> None:
    plan = plan_from_dict(GOOD)
    assert plan_to_dict(plan) == GOOD
    assert plan.placement.dtype == np.int32


def test_file_round_trip_is_exact(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    save_plan(plan_from_dict(GOOD), path)
    assert plan_to_dict(load_plan(path)) == GOOD
    assert [entry.name for entry in tmp_path.iterdir()] == ["plan.json"]
    assert "tensor é" in path.read_text("utf-8")


def test_fusion_groups_are_numbered_by_first_place() -> None:
    assert plan_from_dict(GOOD | {"fusion_group": [2**31 - 1, 0, 0]}).fusion_group.tolist() == [0, 1, 1]


BAD: list[tuple[str, Any]] = [
    ("format", "go_opt.v2.Plan"),
    ("rewrites", {"rule": "fold", "ops": ["a"]}),
    ("rewrites", [{"rule": "fold"}]),
    ("rewrites", [{"rule": 3, "ops": ["a"]}]),
    ("rewrites", [{"rule": "fold", "ops": []}]),
    ("rewrites", [{"rule": "fold", "ops": ["a", 1]}]),
    ("placement", []),
    ("placement", [0, 1]),
    ("placement", [0, 1, -1]),
    ("placement", [0, 1, 2**31]),
    ("placement", [0, 1, 10**30]),
    ("placement", [0, 1, 1.0]),
    ("placement", [0, 1, True]),
    ("placement", [0, 1, [1]]),
    ("placement", "011"),
    ("placement", None),
    ("order", [0, 1, 1]),
    ("order", [0, 1, 3]),
    ("order", [1, 2]),
    ("fusion_group", [0, 1, -7]),
    ("replication", [1, 0, 1]),
    ("relays", {}),
    ("relays", [7]),
    ("relays", [{"tensor": "t"}]),
    ("relays", [{"tensor": "t", "chips": [0], "more": 1}]),
    ("relays", [{"tensor": 5, "chips": [0]}]),
    ("relays", [{"tensor": "t", "chips": [-1]}]),
    ("relays", [{"tensor": "t", "chips": 1}]),
    ("clones", 3),
    ("splits", {}),
    *(
        ("splits", [GOOD["splits"][0] | change])
        for change in (
            {"more": 1},
            {"op": 5},
            {"factor": None},
            {"factor": "\ud800"},
            {"parts": 1},
            {"parts": 2.0},
            {"parts": True},
            {"parts": 2**31},
            {"joined": "no"},
            {"joined": 1},
            {"collective": None},
        )
    ),
    ("provenance", "slice"),
    ("provenance", []),
    ("provenance", [1]),
    ("op_provenance", [0, 0, 2]),
    ("graph_fingerprint", None),
    ("target_fingerprint", 3),
    ("target", ["mcm-6x6"]),
    ("dims", [["batch", 8]]),
    ("dims", {"batch": "8"}),
    ("dims", {"batch": -8}),
    ("dims", {"batch": 2**63}),
    ("values", {"x": 1}),
    ("values", {"x": []}),
    ("values", {"x": [True]}),
    ("values", {"x": [10**400]}),
    ("trips", {"loop": "3"}),
    ("precision", "exact"),
    ("precision", {}),
    ("model", None),
    ("model", 3),
]


@pytest.mark.parametrize(("field", "value"), BAD, ids=lambda value: repr(value)[:30])
def test_malformed_field_is_named(field: str, value: Any) -> None:
    with pytest.raises(PlanError, match=r"^plan: .*\.$") as error:
        plan_from_dict(GOOD | {field: value})
    assert field in str(error.value) or field == "placement"  # other lengths are counted against it
    assert error.value.field


def test_older_files_list_clones(tmp_path: Path) -> None:
    for none in ([], None):
        assert plan_to_dict(plan_from_dict(GOOD | {"clones": none})) == GOOD
    path = tmp_path / "old.json"
    path.write_text(json.dumps(GOOD | {"clones": [{"op": "mask", "chip": 3}]}))
    with pytest.raises(PlanError, match=r"old.json': plan: clones are no longer supported: .*\.$") as error:
        load_plan(path)
    assert error.value.field == "clones"


def test_splits_of_older_files_have_a_kind_and_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "old.json"
    old = {"op": "mask", "kind": "columns", "parts": 2, "joined": True}
    path.write_text(json.dumps(GOOD | {"splits": [old]}))
    sentence = r"old.json': plan: splits of an earlier version are no longer read: search for another plan\.$"
    with pytest.raises(PlanError, match=sentence) as error:
        load_plan(path)
    assert error.value.field == "splits"


def test_older_files_have_no_model_and_no_splits() -> None:
    plan = plan_from_dict({name: value for name, value in GOOD.items() if name not in OPTIONAL})
    assert (plan.model, plan.splits, plan.rewrites) == ("", (), ())
    assert plan_from_dict(GOOD | {"splits": [SPLIT]}).splits == (Split("op é", "k.0", 3, False),)


@pytest.mark.parametrize("field", [name for name in GOOD if name not in OPTIONAL])
def test_missing_field_is_named(field: str) -> None:
    data = copy.deepcopy(GOOD)
    del data[field]
    with pytest.raises(PlanError, match=f"{field} is missing"):
        plan_from_dict(data)


def test_a_file_may_say_more_of_its_plan(tmp_path: Path) -> None:
    path, facts = tmp_path / "plan.json", {"op_names": ["a", "b", "c"], "status": "OPTIMAL", "gap": None}
    save_plan(plan_from_dict(GOOD), path, facts)
    assert json.loads(path.read_text("utf-8")) == GOOD | facts
    assert plan_to_dict(load_plan(path)) == GOOD


def test_unknown_field_is_named() -> None:
    with pytest.raises(PlanError, match="unknown field 'placements'"):
        plan_from_dict(GOOD | {"placements": []})


@settings(deadline=None)
@given(st.sampled_from(sorted(GOOD)), JSON_VALUES)
def test_any_value_is_a_plan_or_a_plan_error(field: str, value: Any) -> None:
    try:
        plan = plan_from_dict(GOOD | {field: value})
    except PlanError:
        return
    assert isinstance(plan, Plan)


@settings(deadline=None)
@given(JSON_VALUES)
def test_any_document_but_a_plan_is_refused(value: Any) -> None:
    with pytest.raises(PlanError):
        plan_from_dict(value)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        json.dumps(GOOD).encode()[:-40],
        b"\xff\xfe{}",
        b"[" * 200_000,
        b"[1,2]",
        b'{"placement": NaN}',
        b"1" * 5000,
    ],
    ids=["empty", "brace", "truncated", "not utf-8", "deep", "list", "nan", "digits"],
)
def test_malformed_file_is_one_sentence(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "plan.json"
    path.write_bytes(content)
    with pytest.raises(PlanError, match=r"^plan file '.*plan\.json'.*\.$") as error:
        load_plan(path)
    assert len(str(error.value).splitlines()) == 1


@pytest.mark.parametrize("name", ["missing.json", ".", "null\0byte"])
def test_unreadable_file_is_a_plan_error(tmp_path: Path, name: str) -> None:
    with pytest.raises(PlanError, match="cannot be read"):
        load_plan(f"{tmp_path}/{name}")


@pytest.mark.parametrize("name", ["missing/plan.json", "folder", "null\0byte"])
def test_unwritable_place_is_an_input_error(tmp_path: Path, name: str) -> None:
    (tmp_path / "folder").mkdir()
    with pytest.raises(InvalidInputError, match="cannot be written"):
        save_plan(plan_from_dict(GOOD), f"{tmp_path}/{name}")
    assert [entry.name for entry in tmp_path.iterdir()] == ["folder"]


def test_a_failed_write_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "plan.json"
    path.write_text("old")

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(InvalidInputError, match="No space left on device"):
        save_plan(plan_from_dict(GOOD), path)
    assert path.read_text() == "old"
    assert [entry.name for entry in tmp_path.iterdir()] == ["plan.json"]


def test_permissions_of_the_old_file_are_kept(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    path.touch(mode=0o600)
    save_plan(plan_from_dict(GOOD), path)
    assert path.stat().st_mode & 0o777 == 0o600
