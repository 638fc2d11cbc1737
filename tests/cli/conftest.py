"""The command line run in this process as a user runs it, and models to run it on."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import onnx
import pytest
from onnx import TensorProto, helper

import go_opt
from go_opt.cli.app import main
from go_opt.model.builder import GraphBuilder
from go_opt.model.codecs.graph_json import graph_to_dict
from go_opt.model.graph import Graph

# What a cold cache or a slow machine adds to stderr; no part of what a command says.
PROGRESS = re.compile(r"compiling kernels|\s*[0-9.]+ s  best ")


@dataclass(frozen=True)
class Run:
    """What one run of ``go-opt`` left behind."""

    code: int
    out: str
    err: list[str]  # lines

    @property
    def json(self) -> Any:
        assert self.code == 0, self.err
        return json.loads(self.out, parse_constant=pytest.fail)

    def is_refused(self, *words: str, code: int = 2) -> None:
        """One sentence on stderr that holds all ``words``, nothing on stdout."""
        assert len(self.err) == 1, self.err
        sentence = self.err[0]
        assert sentence.startswith("go-opt: ")
        for word in words:
            assert word in sentence
        assert self.out == ""
        assert self.code == code


Cli = Callable[..., Run]


@pytest.fixture
def cli(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Cli:
    """Runs ``go-opt`` in an empty folder."""
    monkeypatch.chdir(tmp_path)

    def run(*args: str | Path) -> Run:
        monkeypatch.setattr(sys, "argv", ["go-opt", *map(str, args)])
        with pytest.raises(SystemExit) as end:
            main()
        captured = capsys.readouterr()
        lines = [line for line in captured.err.splitlines() if not PROGRESS.match(line)]
        assert isinstance(end.value.code, int)
        return Run(end.value.code, captured.out, lines)

    return run


@pytest.fixture(scope="session")
def user_env() -> dict[str, str]:
    """The environment of a new process that finds this go-opt."""
    return {**os.environ, "PYTHONPATH": str(Path(go_opt.__file__).parents[1]), "PYTHONUNBUFFERED": "1"}


def chain(num_ops: int = 4, *, elements: int = 1000, name: str = "chain") -> Graph:
    """Element-wise ops in a row."""
    builder = GraphBuilder(name)
    builder.add_tensor("t0", elements, "float32", "input")
    for i in range(1, num_ops + 1):
        builder.add_op(
            f"op{i}",
            "Relu",
            "vector",
            flops=1e6,
            dtype="float32",
            reads=[(f"t{i - 1}", None)],
            writes=[(f"t{i}", elements, "float32")],
        )
    builder.mark_output(f"t{num_ops}")
    return builder.build()


def graph_file(
    path: Path, change: Callable[[dict[str, Any]], object] = lambda data: None, **size: Any
) -> Path:
    """A chain in go-opt's own JSON form, changed."""
    data = graph_to_dict(chain(**size))
    change(data)
    path.write_text(json.dumps(data), "utf-8")
    return path


def node_link_file(path: Path, change: Callable[[dict[str, Any]], object] = lambda data: None) -> Path:
    """Two ops in networkx's node-link form, changed."""
    data: dict[str, Any] = {
        "directed": True,
        "multigraph": False,
        "graph": {},
        "nodes": [
            {"id": name, "op_type": "MatMul", "flops": 1e6, "outputs": 64, "weight_elements": 4096}
            for name in ("a", "b")
        ],
        "links": [{"source": "a", "target": "b"}],
    }
    change(data)
    path.write_text(json.dumps(data), "utf-8")
    return path


def onnx_file(
    path: Path,
    nodes: Sequence[onnx.NodeProto],
    shape: Sequence[int | str],
    initializers: Sequence[TensorProto] = (),
) -> Path:
    """A model from ``x`` of this shape to ``y``."""
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    graph = helper.make_graph(nodes, "toy", [x], [y], initializer=list(initializers))
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)])
    path.write_bytes(model.SerializeToString())
    return path


def weight(name: str, *dims: int) -> TensorProto:
    """A weight whose values were stripped."""
    return TensorProto(name=name, dims=dims, data_type=TensorProto.FLOAT)


def mlp_file(path: Path) -> Path:
    """Two layers on a symbolic batch of symbolic length."""
    nodes = [
        helper.make_node("MatMul", ["x", "w1"], ["h"], name="up"),
        helper.make_node("Relu", ["h"], ["r"], name="act"),
        helper.make_node("MatMul", ["r", "w2"], ["y"], name="down"),
    ]
    return onnx_file(path, nodes, ["batch", "seq", 64], [weight("w1", 64, 256), weight("w2", 256, 64)])
