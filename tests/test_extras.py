"""Without an extra go-opt works, and what needs the extra says so in one sentence."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any, Final

import pytest

from go_opt.extras import EXTRA_OF
from tests.exports import info, model, node, saved, weight

ROOT: Final = Path(__file__).resolve().parent.parent
EXTRAS: Final = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
HIDDEN: Final = (*EXTRA_OF, "jaxlib", "ray", "opentelemetry")
COMMANDS: Final = {
    "pretrain --split none --graph zoo:din --samples 8 --out run": "train",
    "pretrain --coordinator 127.0.0.1:1 --hosts 2 --host 0 --out run": "train",
    "finetune zoo:din --samples 8 --out run": "train",
    "calibrate zoo:din --samples 2 -o found.toml": "run",
    "inspect m.mlir": "train",
    "run m.onnx --plan plan.json": "run",
    "run gpt:hidden=8,layers=2,heads=2,sequence=8 --plan plan.json": "train",
    "export m.onnx plan.json -o ir --format openvino-ir": "openvino",
    "profile m.onnx -o machine.toml": "run",
    "serve --insecure --otlp-endpoint http://127.0.0.1:4317": "otel",
}
CALLS: Final = {
    "go_opt.from_jax(abs, 1.0)": "train",
    "go_opt.jax_step(None, abs, 1.0, plan='plan.json', state={})": "train",
    "go_opt.from_stablehlo('module {}')": "train",
    "go_opt.from_torch(object())": "torch",
    "go_opt.pretrain('run')": "train",
    "go_opt.finetune('zoo:din', 'run')": "train",
    "go_opt.run_plan('m.onnx', 'plan.json')": "run",
    "go_opt.profile('m.onnx')": "run",
    "__import__('go_opt.gymnasium_environment')": "gymnasium",
}
# These work all the same.
BASE: Final = (
    "optimize m.onnx --target mcm-2x2 --max-evaluations 5 --out plan.json",
    "optimize m.onnx --target mcm-2x2 --max-evaluations 5 --policy only",
    "verify m.onnx plan.json",
    "evaluate m.onnx plan.json --fidelity simulated",
    "explain plan.json",
    "report m.onnx plan.json -o plan.html",
    "export m.onnx plan.json -o stages",
    "bench zoo:din --target mcm-2x2 --methods random,policy,portfolio --max-evaluations 4 --seeds 1",
)
SCRIPT: Final = """
import contextlib, io, json, sys, traceback
hidden, commands, calls = json.load(sys.stdin)
sys.modules |= dict.fromkeys(hidden)
import go_opt
from go_opt.cli.app import main

def said(call):
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            call()
        except SystemExit as end:
            return end.code, err.getvalue()
        except go_opt.errors.InvalidInputError as error:
            return 2, f"{error}\\n"
        except BaseException:
            return 1, traceback.format_exc()
    return 0, ""

def run(command):
    sys.argv = ["go-opt", *command.split()]
    main()

found = {command: said(lambda: run(command)) for command in commands}
found |= {call: said(lambda: eval(call)) for call in calls}
json.dump(found, sys.stdout)
"""


def without_extras(folder: Path, *, calls: tuple[str, ...] = (), commands: tuple[str, ...]) -> dict[str, Any]:
    """The exit code and the standard error of each, where no extra is installed."""
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT],
        input=json.dumps([HIDDEN, commands, calls]),
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Has a model of two ops."""
    path = tmp_path_factory.mktemp("extras")
    nodes = [node("MatMul", "x w", "a", "m"), node("Relu", "a", "y", "r")]
    whole = model(nodes, [info("x", [2, 4])], [info("y", [2, 4])], [weight("w", 4, 4)])
    saved(whole, path, "m")
    (path / "m.mlir").write_text("module {}")
    return path


def test_the_table_of_extras_is_that_of_the_project() -> None:
    for package, extra in EXTRA_OF.items():
        assert any(re.match(rf"{package}\b", requirement) for requirement in EXTRAS[extra]), package
    named = {re.split(r"[<>=;\[ ]", one)[0] for extra in ("train", "run") for one in EXTRAS[extra]}
    assert named <= set(EXTRA_OF)


def test_what_needs_no_extra_works(folder: Path) -> None:
    for command, (code, err) in without_extras(folder, commands=BASE).items():
        assert code == 0, (command, err)


def test_each_names_its_extra(folder: Path) -> None:
    found = without_extras(folder, commands=tuple(COMMANDS), calls=tuple(CALLS))
    for what, extra in (COMMANDS | CALLS).items():
        code, err = found[what]
        assert code == 2, (what, err)
        assert f"pip install 'go-opt[{extra}]'" in err, (what, err)
        assert err.count("\n") == 1, (what, err)
