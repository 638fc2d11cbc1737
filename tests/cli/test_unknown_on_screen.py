"""Ops of unknown type on the screen, in JSON, in plan files and on the page of ``report``."""

from __future__ import annotations

import json
from pathlib import Path

import onnx
from onnx import TensorProto, helper

from tests.cli.conftest import Cli, graph_file
from tests.go_opt.report.pages import data_of


def test_screen_json_plan_and_page_name_unknown_ops(cli: Cli, tmp_path: Path) -> None:
    own = helper.make_node("Wobble", ["x"], ["y"], name="own", domain="mine")
    shaped = helper.make_tensor_value_info("y", TensorProto.FLOAT, [4, 8])
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [4, 8])
    graph = helper.make_graph([own], "g", [x], [shaped])
    sets = [helper.make_opsetid("", 20), helper.make_opsetid("mine", 1)]
    onnx.save(helper.make_model(graph, opset_imports=sets), tmp_path / "own.onnx")
    options = ("own.onnx", "--target", "mcm-2x2", "--max-evaluations", "3")
    sentence = "1 op of type 'Wobble', such as 'own', taken to cost 32 FLOP"
    screen = cli("optimize", *options, "--out", "plan.json").out
    assert f"unknown     {sentence}\n" in screen
    row = {"name": "own", "op_type": "Wobble", "flops": 32.0}
    assert cli("optimize", *options, "--json").json["unknown_ops"] == [row]
    assert json.loads((tmp_path / "plan.json").read_text("utf-8"))["unknown_ops"] == [row]
    assert f"unknown     {sentence}\n" in cli("evaluate", "own.onnx", "plan.json").out
    assert cli("report", "own.onnx", "plan.json", "-o", "page.html").code == 0
    facts = data_of((tmp_path / "page.html").read_text("utf-8"))["facts"]
    assert {"label": "unknown", "value": "1 op", "note": sentence} in facts


def test_names_cannot_command_the_terminal(cli: Cli, tmp_path: Path) -> None:
    def with_codes(data: dict[str, object]) -> None:
        data["name"] = "\x1b]0;title\x07\x1b[2J"

    graph_file(tmp_path / "codes.json", with_codes, num_ops=3)
    run = cli("optimize", "codes.json", "--target", "mcm-2x2", "--max-evaluations", "2")
    assert run.code == 0
    assert "\\x1b]0;title\\x07\\x1b[2J on mcm-2x2" in run.out
    refused = cli("optimize", "codes.json", "--target", "\x1b[2J")
    assert refused.code == 2
    assert not {"\x1b", "\x07"} & set(run.out + "".join(run.err + refused.err))
