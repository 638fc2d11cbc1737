"""Files that would take the process down, or much memory: refused in one sentence by a child process."""

from __future__ import annotations

import contextlib
import json
import os
import random
import re
import subprocess
import sys
import time
import tracemalloc
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

import go_opt
from go_opt.common.units import visible
from go_opt.errors import InvalidInputError, ModelError
from go_opt.frontends.jax.stablehlo import check_text
from go_opt.model.codecs.graph_json import graph_to_dict
from tests.strategies import toy_graph
from tests.torch_programs import FOLDER

CHILD = """
import resource, sys
import go_opt
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
for path in sys.argv[1:]:
    try:
        go_opt.load(path)
        print("loaded")
    except go_opt.errors.InvalidInputError as error:
        print(*str(error).split(chr(10)), sep="|", flush=True)
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""
MOST_KIB = 400 * 1024  # more than before the file was read; jaxlib alone takes 200 MiB
DEPTH = 20_000


def answers(*paths: Path) -> list[str]:
    """What a child process says of each file: "loaded", or the error."""
    env = {**os.environ, "PYTHONPATH": str(Path(go_opt.__file__).parents[1])}
    run = subprocess.run(
        [sys.executable, "-c", CHILD, *paths], capture_output=True, text=True, env=env, timeout=300
    )
    *said, grown_kib = run.stdout.splitlines() or [""]
    assert run.returncode == 0, (run.returncode, len(said), run.stderr[-500:])
    assert int(grown_kib) < MOST_KIB
    assert len(said) == len(paths)
    return said


def archive(path: Path, *programs: bytes) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as file:
        for i, program in enumerate(programs):
            file.writestr(f"m{i}/models/model.json", program)
    return path


def nested(opened: str, closed: str, inside: str = "") -> str:
    return opened * DEPTH + inside + closed * DEPTH


# Each kills the process where the parser is let in.
DEEP = {
    "regions": 'func.func @main(%a: tensor<i32>) { '
    + nested('"stablehlo.case"(%a) ({ ', '"stablehlo.return"() : () -> () }) : (tensor<i32>) -> () ')
    + "return }",
    "modules": nested("module { ", "}"),
    "functions": "func.func private @main(" + nested("(", ") -> ()", "tensor<f32>") + ")",
    "tensors": "func.func private @main(" + nested("tensor<", ">", "f32") + ")",
    "lists": "module attributes {a = " + nested("[", "]") + "} {}",
    "dictionaries": "module attributes {a = " + nested("{a = ", "}", "1") + "} {}",
    "elements": "module attributes {a = dense<" + nested("[", "]", "1") + "> : tensor<1xi32>} {}",
    "brackets": "#m = affine_map<(a) -> (" + "(" * DEPTH,
    "signs": "#m = affine_map<(a) -> (" + "- " * DEPTH + "a)>",
    "behind_a_comment": '// "\nmodule attributes {a = ' + nested("[", "]") + '} {} // "',
    # `>` that closes nothing hides a bracket.
    "comparisons": nested("module attributes {a = affine_set<(a) : (a >= 0, a > // = \n = 0)>} {", "}"),
}  # fmt: skip
HOSTILE: dict[str, bytes] = {
    "bomb.pt2": b"[" + b"{}," * 60_000_000 + b"{}]",
    "version.pt2": b'{"schema_version": [8]}',
    "list.pt2": b"[]",
    "empty.pt2": b"",
    "deep.pt2": b"[" * 1_000_000,
}


def test_deep_texts_are_refused_before_they_are_parsed(tmp_path: Path) -> None:
    paths = [tmp_path / f"{name}.mlir" for name in DEEP]
    for path, text in zip(paths, DEEP.values(), strict=True):
        path.write_text(text, "utf-8")
    (tmp_path / "deep.json").write_text("[" * 100_000)
    *said, of_json = answers(*paths, tmp_path / "deep.json")
    assert set(said) == {"the StableHLO text cannot be read: it is nested more than 256 deep."}
    assert "deep" in of_json


def test_the_scan_of_a_text_takes_time_in_proportion() -> None:
    long = 2**23
    texts = [
        "-" * 255 + "(" + ("-" * 200 + "x ") * (long // 200),
        '"' + '\\"' * (long // 2),
        "()" * (long // 2),
        ("- " * 200 + "x\n") * (long // 400),
        ("-" + " " * 200) * 100 + "x" * long,
        ">" + " " * long,
        '%c = stablehlo.constant dense<"0x' + "3F" * (long // 2) + '"> : tensor<1xf32>',
    ]
    for text in texts:
        started_s = time.process_time()
        check_text(text)
        assert time.process_time() - started_s < 2.0, text[:60]
    with pytest.raises(ModelError, match="has more than 4194304 strings and comments"):
        check_text('""' * (long // 2 + 1))
    with pytest.raises(ModelError, match="is larger than 256 MiB"):
        check_text(" " * (2**28 + 1))


def _node(op_type: str, *inputs: str, **attributes: Any) -> onnx.NodeProto:
    return helper.make_node(op_type, inputs, ["large"], **attributes)


# Constants of a few numbers, of which each makes 10**10, or takes as many to compute.
LARGE = {
    "ConstantOfShape": _node("ConstantOfShape", "sizes"),
    "Expand": _node("Expand", "one", "sizes"),
    "Tile": _node("Tile", "square", "sizes"),
    "Range": _node("Range", "zero", "most", "step"),
    "Pad": _node("Pad", "square", "pads"),
    "OneHot": _node("OneHot", "long", "deep", "values"),
    "Gather": _node("Gather", "tall", "zeros"),
    "MatMul": _node("MatMul", "tall", "wide"),
    "Add": _node("Add", "tall", "wide"),
    "Einsum": _node("Einsum", "long", "long", equation="i,j->"),
    "Conv": _node("Conv", "image", "kernel", pads=[150, 150, 150, 150]),
    "Resize": _node("Resize", "image", "", "", "far"),
    "Upsample": _node("Resize", "image", "", "scales"),
    "HannWindow": _node("HannWindow", "most"),
    "ImageDecoder": _node("ImageDecoder", "bytes"),
    "MelWeightMatrix": _node("MelWeightMatrix", "most", "most", "most", "rate", "top"),
}


@pytest.mark.parametrize("op_type", LARGE)
def test_a_constant_is_only_computed_where_it_is_small(op_type: str) -> None:
    constants: dict[str, Any] = {
        "sizes": [10**5, 10**5], "one": [1.0], "zero": 0, "most": 10**10, "step": 1,
        "pads": [10**5] * 4, "deep": 10**6, "values": [0, 1], "rate": 8000, "top": np.float32(4000),
        "far": [1, 1, 10**5, 10**5], "scales": np.float32([1, 1, 1000, 1000]),
        "square": np.ones((2, 2), np.float32), "long": np.zeros(50_000, np.int64),
        "tall": np.ones((50_000, 1), np.float32), "wide": np.ones((1, 50_000), np.float32),
        "zeros": np.zeros((1000, 1000), np.int64),
        "image": np.ones((1, 1, 300, 300), np.float32), "kernel": np.ones((1, 1, 300, 300), np.float32),
        "bytes": np.zeros(100, np.uint8), "flat": [-1], "first": 0,
    }  # fmt: skip
    nodes = [
        LARGE[op_type],
        helper.make_node("Reshape", ["large", "flat"], ["row"]),
        helper.make_node("Gather", ["row", "first"], ["number"]),
        helper.make_node("Cast", ["number"], ["size"], to=onnx.TensorProto.INT64),
        helper.make_node("Reshape", ["size", "flat"], ["shape"]),
        helper.make_node("Expand", ["x", "shape"], ["y"]),
    ]
    floats = [
        helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, shape)
        for name, shape in (("x", [1]), ("y", None))
    ]
    weights = [numpy_helper.from_array(np.asarray(value), name) for name, value in constants.items()]
    graph = helper.make_graph(nodes, "large", floats[:1], floats[1:], weights)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)])
    tracemalloc.start()
    try:
        with pytest.raises(ModelError, match=r"^(op|tensor) '"):
            go_opt.from_onnx(model)
        assert tracemalloc.get_traced_memory()[1] < 100e6
    finally:
        tracemalloc.stop()


def test_hostile_archives_are_refused_in_one_sentence(tmp_path: Path) -> None:
    for sentence in answers(*(archive(tmp_path / name, program) for name, program in HOSTILE.items())):
        assert sentence.endswith(".")
        assert "|" not in sentence


SMALL_TEXT = """module @small {
  func.func public @main(%x: tensor<2x4xf32>, %w: tensor<4x8xf32>) -> tensor<2x8xf32> {
    %0 = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0] :
      (tensor<2x4xf32>, tensor<4x8xf32>) -> tensor<2x8xf32>
    %s = stablehlo.constant dense<0.0> : tensor<f32>
    %1 = stablehlo.reduce(%0 init: %s) applies stablehlo.add across dimensions = [1] :
      (tensor<2x8xf32>, tensor<f32>) -> tensor<2xf32>
    %2 = stablehlo.broadcast_in_dim %1, dims = [0] : (tensor<2xf32>) -> tensor<2x8xf32>
    %3 = stablehlo.custom_call @Sharding(%2) : (tensor<2x8xf32>) -> tensor<2x8xf32>
    return %3 : tensor<2x8xf32>
  }
}"""


def test_changed_texts_load_or_are_refused(tmp_path: Path) -> None:
    """Words of valid text, or a value of a valid graph, replaced: the process goes on."""
    rng, paths = random.Random(0), [tmp_path / "whole.mlir", tmp_path / "whole.json"]
    words = re.findall(r"\w+|\s+|[^\w\s]", SMALL_TEXT)
    graph = json.dumps(graph_to_dict(toy_graph()))
    paths[0].write_text(SMALL_TEXT, "utf-8")
    paths[1].write_text(graph, "utf-8")
    for turn in range(60):
        changed: Any = list(words)
        for _ in range(rng.randint(1, 3)):
            changed[rng.randrange(len(words))] = rng.choice([*words, "", "?", "-1", "9" * 20, "x" * 99])
        paths.append(tmp_path / f"{turn}.mlir")
        paths[-1].write_text("".join(changed), "utf-8")
        changed = json.loads(graph)
        _change(changed, rng)
        paths.append(tmp_path / f"{turn}.json")
        paths[-1].write_text(json.dumps(changed), "utf-8")
    said = answers(*paths)
    assert said[:2] == ["loaded"] * 2
    assert min(said[2::2].count("loaded"), said[3::2].count("loaded")) > 2
    assert said.count("loaded") < len(said) / 2
    assert not any("|" in sentence for sentence in said)


def test_changed_archives_load_or_are_refused(tmp_path: Path) -> None:
    """A value, or bytes, of a valid program replaced: InvalidInputError is all that comes out."""
    rng, path = random.Random(0), tmp_path / "changed.pt2"
    with zipfile.ZipFile(FOLDER / "mlp.pt2") as file:
        program = file.read(file.namelist()[0])
    whole = (FOLDER / "mlp.pt2").read_bytes()
    for turn in range(120):
        if turn % 3 == 0:
            at = rng.randrange(len(whole))
            path.write_bytes(whole[:at] + rng.randbytes(2) + whole[at + 2 :])
        else:
            data: Any = json.loads(program)
            _change(data, rng)
            archive(path, json.dumps(data).encode())
        with contextlib.suppress(InvalidInputError):
            go_opt.load(path)


def _change(data: Any, rng: random.Random) -> None:
    """Replace a random value below the root."""
    while True:
        key = rng.choice(list(data) if isinstance(data, dict) else range(len(data)))
        if isinstance(data[key], dict | list) and data[key] and rng.random() < 0.85:
            data = data[key]
            continue
        data[key] = rng.choice([None, -1, [], {}, "x", 10**30, [[]], True])
        return


def test_control_characters_of_names_are_written_out() -> None:
    assert visible("a\x1b[31mb\x07\x9b\n\tc") == "a\\x1b[31mb\\x07\\x9b\n\tc"
