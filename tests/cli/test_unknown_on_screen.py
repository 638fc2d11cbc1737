"""Ops of unknown type on the screen, in JSON, in plan files and on the page of ``report``."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import onnx
from onnx import TensorProto, helper

from go_opt.env import target_text
from tests.cli.conftest import Cli, graph_file
from tests.go_opt.report.pages import data_of

CODES = "\x1b]0;title\x07\x1b[2J\x9b1m\x7f\r\x08"
CONTROLS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f]")


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
    """Every command that prints names, with escape codes in every name of graph, target, plan and files."""

    def with_codes(data: dict[str, Any]) -> None:
        data["name"] += CODES
        for row in (*data["ops"], *data["tensors"]):
            row.update({key: row[key] + CODES for key in ("name", "producer", "op_type") if row.get(key)})
            for read in row.get("reads", ()):
                read["tensor"] += CODES

    text = json.dumps(f"mcm{CODES}")
    toml = target_text("mcm-2x2").replace('name = "mcm-2x2"', f"name = {text}").replace("\x7f", "\\u007f")
    (tmp_path / "codes.toml").write_text(toml, "utf-8")
    graph_file(tmp_path / "g.json", with_codes, num_ops=3)
    op = f"op1{CODES}"
    (tmp_path / "raw\x1b[2J.toml").write_text(toml.replace(text, '"mcm"') + "# \x9b2J", "utf-8")
    (tmp_path / "costs.csv").write_text(f'op,kind,seconds\n"{op}",*,1e-6\n"no{CODES}",*,1e-6\n', "utf-8")
    (tmp_path / "half.csv").write_text(f'"{op}",0\n', "utf-8")
    (tmp_path / "bad.csv").write_text(f'"no{CODES}",0\n', "utf-8")
    constraint = f"[[pin]]\nops = {json.dumps(re.escape(op))}\nchip = 3\n".replace("\x7f", "\\u007f")
    (tmp_path / "pin.toml").write_text(constraint, "utf-8")
    on, model = ("--target", "codes.toml"), ("g.json", "plan.json")
    few = ("--max-evaluations", "2", "--overwrite")
    commands = [
        ("optimize", "g.json", *on, *few, "--verbose", "--no-splits", "--out", "plan.json"),
        ("optimize", "g.json", *on, *few, "--start", "plan.json"),
        ("optimize", "g.json", *on, *few, "--placement", "half.csv", "--costs", "costs.csv"),
        ("optimize", "g.json", *on, "--placement", "bad.csv"),
        ("optimize", "g.json", *on, *few, "--json"),
        ("optimize", "g.json", "--target", CODES),
        ("evaluate", *model), ("evaluate", *model, "--json"),
        ("verify", *model), ("verify", *model, "--constraints", "pin.toml"),
        ("diff", "plan.json", "plan.json", "--model", "g.json"),
        ("explain", "plan.json"), ("explain", "plan.json", op), ("explain", "plan.json", CODES),
        ("trace", *model, "-o", "trace.json"),
        ("report", *model, "-o", "page.html", "--model-explorer", "nodes.json"),
        ("inspect", "g.json"), ("inspect", "g.json", "--json"), ("chips", "g.json", *on, *few),
        ("targets", "show", "raw\x1b[2J.toml"), (CODES,), ("optimize", f"--{CODES}"),
    ]  # fmt: skip
    for command in commands:
        run = cli(*command)
        shown = run.out + "".join(run.err)
        assert not CONTROLS.search(shown), (command, shown)
        assert run.code != 1, (command, shown)
        if "--json" in command:
            assert run.json
        elif command[0] in ("optimize", "verify", "explain", "report"):
            assert "\\x1b" in shown, (command, shown)
    for name in ("plan.json", "trace.json", "page.html", "nodes.json"):
        assert "\x1b" not in (tmp_path / name).read_text("utf-8"), name
