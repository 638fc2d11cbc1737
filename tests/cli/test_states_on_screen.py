"""States that were found, and inputs that look like states, on the screen, in JSON and on the page."""

from __future__ import annotations

from pathlib import Path

import onnx

from tests.cli.conftest import Cli
from tests.frontends.state_models import FOUND, GIVEN
from tests.go_opt.report.pages import data_of

ON = ("--target", "mcm-2x2", "--max-evaluations", "3")
KEY, VALUE = "past_key_values.0.key", "past_key_values.0.value"


def words(text: str) -> str:
    """A text whose lines may be folded, with single spaces."""
    return " ".join(text.split())


def test_what_was_found_is_said(cli: Cli, tmp_path: Path) -> None:
    onnx.save(FOUND[0].proto, tmp_path / "m.onnx")
    screen = words(cli("optimize", "m.onnx", *ON, "--out", "plan.json").out)
    said = f"states 4 of each sequence, 448 B a sequence: {KEY} = present.0.key,"
    assert said in screen
    assert "unpaired" not in screen
    assert said in words(cli("evaluate", "m.onnx", "plan.json").out)
    found = cli("optimize", "m.onnx", *ON, "--json").json
    row = {"read": KEY, "next": "present.0.key", "scope": "sequence", "bytes": 112, "where": "chip"}
    assert found["states"][0] == row
    assert len(found["states"]) == 4
    assert found["unpaired_states"] == []
    assert cli("inspect", "m.onnx", "--json").json["states"][0] == row | {"bytes": 224}
    assert "states 4 of each sequence, 896 B a sequence: " in words(cli("inspect", "m.onnx").out)


def test_states_may_be_of_the_model_or_left_to_the_host(cli: Cli, tmp_path: Path) -> None:
    onnx.save(FOUND[0].proto, tmp_path / "m.onnx")
    given = ("--state", "past_key_values.0.*=present.0.*:model")
    said = words(cli("inspect", "m.onnx", *given).out)
    assert f"states 2 of the model, 448 B: {KEY} = present.0.key, {VALUE} = present.0.value " in said
    assert "states 2 of each sequence, 448 B a sequence: past_key_values.1.key = present.1.key" in said
    left = f"unpaired 4 states left to the host: {KEY}, {VALUE}, past_key_values.1.key and 1 more"
    assert left in words(cli("inspect", "m.onnx", "--no-state").out)
    screen = cli("optimize", "m.onnx", *ON, "--no-state", "--out", "plan.json").out
    _, _, behind = screen.partition("\nstatus")
    assert left in words(behind)
    assert cli("report", "m.onnx", "plan.json", "-o", "page.html").code == 0
    facts = data_of((tmp_path / "page.html").read_text("utf-8"))["facts"]
    assert ("unpaired", "4 inputs") in [(fact["label"], fact["value"]) for fact in facts]


def test_inputs_that_look_like_states_are_named_under_the_status(cli: Cli, tmp_path: Path) -> None:
    case = next(case for case in GIVEN if case.unpaired and not case.dims)
    onnx.save(case.proto, tmp_path / "m.onnx")
    screen = " ".join(cli("optimize", "m.onnx", *ON).out.split())
    _, _, after = screen.partition("status ")
    said, _, _ = after.partition("unless --state INPUT=OUTPUT says what they become")
    assert "look" in said
    assert any(name in said for name in case.unpaired)
    inspected = cli("inspect", "m.onnx", "--json").json
    assert set(inspected["unpaired_states"]) == set(case.unpaired)


def test_the_number_of_sequences_is_given_or_decided(cli: Cli, tmp_path: Path) -> None:
    onnx.save(FOUND[0].proto, tmp_path / "m.onnx")
    decided = cli("optimize", "m.onnx", *ON, "--json").json["sequences"]
    assert cli("optimize", "m.onnx", *ON, "--json", "--sequences", "auto").json["sequences"] == decided
    assert cli("optimize", "m.onnx", *ON, "--json", "--sequences", "3").json["sequences"] == 3
    refused = cli("optimize", "m.onnx", *ON, "--sequences", "many")
    assert refused.code == 2
    assert "--sequences must be a whole number or auto, not 'many'." in words(" ".join(refused.err))
