"""Bad input: one sentence that names it, the exit code of its kind, and no output file."""

from __future__ import annotations

import json
import re
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from onnx import TensorProto, helper

from go_opt.env import target_text
from go_opt.service.client import connection
from tests.cli.conftest import Cli, graph_file, mlp_file, node_link_file, onnx_file


def relu(name: str, reads: str, writes: str, domain: str = "") -> Any:
    return helper.make_node("Relu" if not domain else "Odd", [reads], [writes], name=name, domain=domain)


def external(path: Path, location: str) -> Path:
    unused = TensorProto(name="stolen", dims=[4], data_type=TensorProto.FLOAT)
    unused.data_location = TensorProto.EXTERNAL
    unused.external_data.add(key="location", value=location)
    return onnx_file(path, [relu("a", "x", "y")], [2], [unused])


def truncated(path: Path) -> Path:
    whole = mlp_file(path).read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    return path


def written(path: Path, content: bytes) -> Path:
    path.write_bytes(content)
    return path


# What writes the model, and the words its refusal holds.
MODELS: dict[str, tuple[Callable[[Path], Path | str], tuple[str, ...]]] = {
    "missing onnx": (lambda d: d / "no.onnx", ("no.onnx", "does not exist")),
    "missing json": (lambda d: d / "no.json", ("no.json", "No such file")),
    "missing zoo graph": (lambda d: "zoo:resnet5000", ("zoo", "resnet5000")),
    "empty name": (lambda d: "", ("directory",)),
    "name too long": (lambda d: "m" * 400, ("mmm", "too long")),
    "folder": (lambda d: d, ("directory",)),
    "text": (lambda d: written(d / "m.onnx", b"hello, no model"), ("m.onnx", "not an ONNX")),
    "no bytes": (lambda d: written(d / "m.onnx", b""), ("'m'", "not an ONNX")),
    "truncated": (lambda d: truncated(d / "m.onnx"), ("m.onnx", "truncated")),
    "no nodes": (lambda d: onnx_file(d / "m.onnx", [], [2]), ("no nodes",)),
    "onnx cycle": (
        lambda d: onnx_file(d / "m.onnx", [relu("one", "b", "a"), relu("two", "a", "b")], [2]),
        ("cycle", "'one' -> 'two' -> 'one'"),
    ),
    "onnx duplicate": (
        lambda d: onnx_file(d / "m.onnx", [relu("one", "x", "a"), relu("two", "x", "a")], [2]),
        ("'two' defines tensor 'a'", "already"),
    ),
    "onnx unknown op": (
        lambda d: onnx_file(d / "m.onnx", [relu("odd", "x", "y", domain="mine")], [2]),
        ("'odd'", "mine.Odd", "shape"),
    ),
    "onnx overflow": (lambda d: onnx_file(d / "m.onnx", [relu("a", "x", "y")], [2**62] * 3), ("'x'",)),
    "onnx unbound": (lambda d: mlp_file(d / "m.onnx"), ("'batch'", "'seq'", "--dim")),
    "leaves the folder": (lambda d: external(d / "m.onnx", "../w.bin"), ("'stolen'", "../w.bin")),
    "leaves by root": (lambda d: external(d / "m.onnx", "/etc/hostname"), ("'stolen'", "/etc/hostname")),
    "not json": (lambda d: written(d / "m.json", b"{"), ("m.json", "not valid JSON")),
    "not text": (lambda d: written(d / "m.json", b"\xff\xfe"), ("m.json", "UTF-8")),
    "deep json": (lambda d: written(d / "m.json", b"[" * 100_000), ("m.json", "deep")),
    "no object": (lambda d: written(d / "m.json", b"[]"), ("object",)),
    "json without format": (lambda d: written(d / "m.json", b"{}"), ("'format'",)),
}


@pytest.mark.parametrize("case", MODELS)
def test_a_model_is_refused(cli: Cli, tmp_path: Path, case: str) -> None:
    write, words = MODELS[case]
    cli("optimize", write(tmp_path), "--out", "plan.json", "--json").is_refused(*words)
    assert not Path("plan.json").exists()


def with_op(**values: Any) -> Callable[[dict[str, Any]], object]:
    return lambda data: data["ops"][1].update(values)


GRAPHS: dict[str, tuple[Callable[[dict[str, Any]], object], tuple[str, ...]]] = {
    "no ops": (lambda g: g.update(ops=[], tensors=[]), ("no ops",)),
    "nan flops": (with_op(flops=float("nan")), ("m.json", "NaN")),
    "infinite flops": (with_op(flops=float("inf")), ("m.json", "Infinity")),
    "negative flops": (with_op(flops=-1), ("'op2'", "flops", "-1")),
    "overflowing flops": (with_op(flops=1e308), ("'op2'", "flops", "1e+308")),
    "flops of 400 digits": (with_op(flops=10**400), ("'op2'", "flops")),
    "flops as text": (with_op(flops="many"), ("'op2'", "flops", "many")),
    "negative time": (with_op(measured_s={"chip": -1}), ("'op2'", "measured_s")),
    "overflowing time": (with_op(measured_s={"chip": 1e300}), ("'op2'", "measured_s")),
    "negative elements": (lambda g: g["tensors"][1].update(elements=-8), ("'t1'", "elements")),
    "overflowing elements": (lambda g: g["tensors"][1].update(elements=2**62), ("'t1'", "elements")),
    "half an element": (lambda g: g["tensors"][1].update(elements=0.5), ("'t1'", "elements")),
    "cycle": (
        lambda g: g["ops"][0]["reads"].append({"tensor": "t2"}),
        ("cycle", "'op1' -> 'op2' -> 'op1'"),
    ),
    "duplicate op": (lambda g: g["ops"].append(g["ops"][0]), ("'op1'", "twice")),
    "duplicate tensor": (lambda g: g["tensors"].append(g["tensors"][0]), ("'t0'", "twice")),
    "dangling": (lambda g: g["ops"][2]["reads"].append({"tensor": "ghost"}), ("'op3'", "'ghost'")),
    "no name": (lambda g: g["ops"][1].pop("name"), ("op number 1", "'name'")),
    "unknown type": (with_op(dtype="float3"), ("'op2'", "float3")),
    "unknown class": (with_op(op_class="magic"), ("'op2'", "magic")),
    "other format": (lambda g: g.update(format="v0"), ("'format'", "v0")),
}


@pytest.mark.parametrize("case", GRAPHS)
def test_a_graph_file_is_refused(cli: Cli, tmp_path: Path, case: str) -> None:
    change, words = GRAPHS[case]
    model = graph_file(tmp_path / "m.json", change)
    cli("optimize", model, "--out", "plan.json", "--json").is_refused(*words)
    assert not Path("plan.json").exists()


def with_node(**values: Any) -> Callable[[dict[str, Any]], object]:
    return lambda data: data["nodes"][1].update(values)


NODE_LINKS: dict[str, tuple[Callable[[dict[str, Any]], object], tuple[str, ...]]] = {
    "no nodes": (lambda g: g.update(nodes=[], links=[]), ("no nodes",)),
    "cycle": (lambda g: g["links"].append({"source": "b", "target": "a"}), ("'a' -> 'b' -> 'a'",)),
    "loop": (lambda g: g["links"].append({"source": "b", "target": "b"}), ("'b' -> 'b'",)),
    "duplicate": (with_node(id="a"), ("'a'", "twice")),
    "ghost": (lambda g: g["links"].append({"source": "b", "target": "c"}), ("'c'",)),
    "nan flops": (with_node(flops=float("nan")), ("NaN",)),
    "negative flops": (with_node(flops=-2), ("'b'", "flops", "-2")),
    "overflowing flops": (with_node(flops=1e308), ("'b'", "flops")),
    "negative weight": (with_node(weight_elements=-1), ("'b'", "weight_elements")),
    "overflowing output": (with_node(outputs=10**30), ("'b'", "outputs")),
    "undirected": (lambda g: g.update(directed=False), ("directed",)),
    "multigraph": (lambda g: g.update(multigraph=True), ("multigraph",)),
}


@pytest.mark.parametrize("case", NODE_LINKS)
def test_a_node_link_file_is_refused(cli: Cli, tmp_path: Path, case: str) -> None:
    change, words = NODE_LINKS[case]
    model = node_link_file(tmp_path / "m.json", change)
    cli("optimize", model, "--out", "plan.json", "--json").is_refused(*words)
    assert not Path("plan.json").exists()


OPTIONS: dict[str, tuple[list[str], tuple[str, ...]]] = {
    "no budget": (["--budget", "0"], ("budget", "0")),
    "negative budget": (["--budget=-2s"], ("budget", "-2s")),
    "budget without unit": (["--budget", "5 parsecs"], ("--budget", "5 parsecs")),
    "budget nan": (["--budget", "nan"], ("--budget", "nan")),
    "endless budget": (["--budget", "1e999s"], ("--budget", "1e999s")),
    "vanishing budget": (["--budget", "1e-999s"], ("--budget", "1e-999s")),
    "empty budget": (["--budget", ""], ("--budget",)),
    "negative seed": (["--seed", "-1"], ("seed", "-1")),
    "huge seed": (["--seed", str(2**63)], ("seed",)),
    "seed as text": (["--seed", "pi"], ("--seed", "integer")),
    "no evaluations": (["--max-evaluations", "0"], ("max_evaluations", "0")),
    "negative evaluations": (["--max-evaluations", "-4"], ("max_evaluations", "-4")),
    "objective": (["--objective", "fast"], ("--objective", "fast")),
    "no latency": (["--max-latency", "0s"], ("--max-latency", "0s")),
    "latency as text": (["--max-latency", "soon"], ("--max-latency", "'soon'")),
    "latency of two objectives": (["--max-latency", "1s", "--objective", "latency"], ("max_latency_s",)),
    "decide": (["--decide", "nothing"], ("--decide", "nothing")),
    "precision": (["--precision", "exact"], ("--precision", "exact")),
    "policy": (["--policy", "mine"], ("policy", "mine")),
    "dim of no dimension": (["--dim", "batch=2"], ("m.json", "'batch'")),
    "dim without value": (["--dim", "batch"], ("--dim", "'batch'")),
    "dim without name": (["--dim", "=3"], ("--dim", "'=3'")),
    "dim without number": (["--dim", "batch=two"], ("--dim", "'batch=two'")),
    "dim with two signs": (["--dim", "batch=--2"], ("--dim", "'batch=--2'")),
    "dim in superscript": (["--dim", "batch=²"], ("--dim", "'batch=²'")),
    "dim of 5000 digits": (["--dim", "batch=" + "9" * 5000], ("--dim", "'batch=999")),
    "unknown target": (["--target", "mcm-6x7"], ("'mcm-6x7'", "mcm-6x6")),
    "missing target file": (["--target", "no.toml"], ("'no.toml'", "No such file")),
    "folder as target": (["--target", "."], ("'.'", "directory")),
    "server without port": (["--server", "localhost"], ("HOST:PORT", "'localhost'")),
    "server port": (["--server", "localhost:99999"], ("HOST:PORT", "99999")),
    "out in no folder": (["--out", "no/plan.json"], ("--out", "'no'")),
    "out in a file": (["--out", "m.json/plan.json"], ("--out", "'m.json'")),
    "out is a folder": (["--out", "."], ("--out", "'.'", "folder")),
    "out too long": (["--out", "p" * 300], ("ppp", "too long")),
    "unwritable": (["--out", "/proc/plan.json"], ("/proc/plan.json", "cannot be written")),
    "unknown option": (["--fusion", "off"], ("--fusion",)),
    "option without value": (["--target"], ("--target",)),
    "missing second model": (["no.json"], ("'no.json'", "No such file")),
}


@pytest.mark.parametrize("case", OPTIONS)
def test_an_option_is_refused(cli: Cli, tmp_path: Path, case: str) -> None:
    args, words = OPTIONS[case]
    model = graph_file(tmp_path / "m.json")
    cli("optimize", model, "--json", *args).is_refused(*words)
    assert [path.name for path in tmp_path.iterdir()] == ["m.json"]


@pytest.mark.parametrize("binding", ["batch=0", "batch=-3", f"batch={10**19}", "rows=4"])
def test_a_dimension_is_refused(cli: Cli, tmp_path: Path, binding: str) -> None:
    model = mlp_file(tmp_path / "m.onnx")
    cli("optimize", model, "--dim", "seq=2", "--dim", binding).is_refused(f"'{binding.partition('=')[0]}'")


USAGE: dict[str, tuple[list[str], tuple[str, ...]]] = {
    "command": (["optimise"], ("'optimise'",)),
    "subcommand": (["zoo", "lift"], ("'lift'",)),
    "no model": (["optimize"], ("MODEL",)),
    "no plan": (["verify", "zoo:resnet50"], ("PLAN",)),
    "no target": (["targets", "show"], ("NAME",)),
    "target to show": (["targets", "show", "mcm-9x9"], ("'mcm-9x9'",)),
    "no graph": (["zoo", "show"], ("NAME",)),
    "graph to show": (["zoo", "show", "resnet_50"], ("'resnet_50'", "did you mean 'resnet50'")),
    "address": (["serve", "--address", "nowhere"], ("HOST:PORT", "'nowhere'")),
    "open address": (["serve", "--address", "0.0.0.0:0"], ("0.0.0.0:0", "--insecure")),
    "plan file": (["verify", "zoo:resnet50", "no.json"], ("'no.json'", "No such file")),
    "plan folder": (["evaluate", "zoo:resnet50", "."], ("'.'", "directory")),
}


@pytest.mark.parametrize("case", USAGE)
def test_usage_is_refused(cli: Cli, case: str) -> None:
    args, words = USAGE[case]
    cli(*args).is_refused(*words)


TARGETS: dict[str, tuple[Callable[[str], str], tuple[str, ...]]] = {
    "no toml": (lambda text: "name = [", ("not valid TOML",)),
    "nothing": (lambda text: "", ("name",)),
    "zero chips": (lambda text: text.replace("count = 4", "count = 0"), ("count", "0")),
    "no kinds": (lambda text: text.partition("[[kinds]]")[0], ("kinds",)),
    "too many chips": (lambda text: text.replace("count = 4", "count = 1_000_000"), ("1000000 chips",)),
    "half a chip": (lambda text: text.replace("count = 4", "count = 0.5"), ("count",)),
    "negative rate": (lambda text: text.replace("= 16e9", "= -16e9"), ("rate_bytes_per_s",)),
    "nan rate": (lambda text: text.replace("= 12e12", "= nan"), ("bfloat16",)),
    "no memory": (lambda text: text.replace("32_000_000", "0"), ("sram_bytes",)),
    "unknown key": (lambda text: "colour = 3\n" + text, ("colour",)),
    "unknown rule": (lambda text: text.replace('"longest_path" #', '"square" #'), ("triangle", "square")),
    "unknown topology": (lambda text: text.replace('"ring"', '"star"'), ("topology", "star")),
    "unknown type": (lambda text: text.replace('= "bfloat16"', '= "float3"'), ("native_dtype", "float3")),
    "no host": (lambda text: text.replace("[host]", "[guest]"), ("host",)),
}


@pytest.mark.parametrize("case", TARGETS)
def test_a_target_file_is_refused(cli: Cli, tmp_path: Path, case: str) -> None:
    change, words = TARGETS[case]
    text = target_text("mcm-2x2")
    (tmp_path / "mine.toml").write_text(change(text), "utf-8")
    assert change(text) != text
    run = cli("optimize", graph_file(tmp_path / "m.json"), "--target", "mine.toml", "--out", "plan.json")
    run.is_refused("mine.toml", *words)
    assert not Path("plan.json").exists()


@pytest.fixture
def plan(cli: Cli, tmp_path: Path) -> dict[str, Any]:
    """The plan of ``m.json``."""
    graph_file(tmp_path / "m.json")
    assert cli("optimize", "m.json", "--max-evaluations", "1", "--out", "plan.json").code == 0
    return json.loads((tmp_path / "plan.json").read_text("utf-8"))


PLANS: dict[str, tuple[dict[str, Any], tuple[str, ...]]] = {
    "other format": ({"format": "v0"}, ("format",)),
    "format is a list": ({"format": []}, ("format",)),
    "unknown field": ({"colour": 1}, ("'colour'",)),
    "no placement": ({"placement": None}, ("placement",)),
    "empty placement": ({"placement": []}, ("placement",)),
    "placement of text": ({"placement": ["a"] * 4}, ("placement",)),
    "placement of booleans": ({"placement": [True] * 4}, ("placement",)),
    "placement of floats": ({"placement": [0.0] * 4}, ("placement",)),
    "negative chip": ({"placement": [0, 0, 0, -1]}, ("placement", "-1")),
    "chip of 100 digits": ({"placement": [0, 0, 0, 10**100]}, ("placement",)),
    "stages of another placement": ({"placement": [3, 2, 1, 0]}, ("leave out 'stages', which is derived",)),
    "kernels of another fusion": ({"kernels": [["op1"]]}, ("leave out 'kernels', which is derived",)),
    "short order": ({"order": [0, 1, 2]}, ("order", "3")),
    "order with a gap": ({"order": [0, 1, 1, 2]}, ("order", "op 3")),
    "order beyond the ops": ({"order": [0, 1, 2, 4]}, ("order", "4")),
    "long fusion": ({"fusion_group": [0] * 5}, ("fusion_group", "5")),
    "no replica": ({"replication": [0] * 4}, ("replication", "0")),
    "relay": ({"relays": [{"tensor": "t1"}]}, ("relays[0]", "chips")),
    "relays": ({"relays": 3}, ("relays",)),
    "clones": ({"clones": [{"op": "op0", "chip": 1}]}, ("clones are no longer supported",)),
    "no provenance": ({"provenance": []}, ("provenance",)),
    "provenance of nothing": ({"op_provenance": [9] * 4}, ("op_provenance",)),
    "fingerprint": ({"graph_fingerprint": 7}, ("graph_fingerprint",)),
    "target": ({"target": None}, ("target",)),
    "target unknown": ({"target": "mcm-9x9"}, ("'mcm-9x9'",)),
    "target with a null": ({"target": "a\0b"}, ("a\\x00b",)),
    "dims": ({"dims": {"batch": "two"}}, ("dims",)),
    "dims of none": ({"dims": {"batch": 2}}, ("'batch'",)),
    "precision": ({"precision": "exact"}, ("precision",)),
    "surrogate": ({"target": "\ud800"}, ("target",)),
}


@pytest.mark.parametrize("command", ["verify", "evaluate"])
@pytest.mark.parametrize("case", PLANS)
def test_a_plan_is_refused(cli: Cli, plan: dict[str, Any], command: str, case: str) -> None:
    change, words = PLANS[case]
    Path("bad.json").write_text(json.dumps({**plan, **change}), "utf-8")
    cli(command, "m.json", "bad.json", "--json").is_refused(*words)


@pytest.mark.parametrize("field", ["format", "placement", "relays", "graph_fingerprint", "dims", "precision"])
def test_a_plan_lacks_a_field(cli: Cli, plan: dict[str, Any], field: str) -> None:
    Path("bad.json").write_text(json.dumps({k: v for k, v in plan.items() if k != field}), "utf-8")
    cli("verify", "m.json", "bad.json").is_refused("bad.json", field, "missing")


@pytest.mark.parametrize("text", ["", "{", "[]", "null", "7", '{"placement": [NaN]}', "\x00", "[" * 100_000])
def test_a_plan_is_no_plan(cli: Cli, plan: dict[str, Any], text: str) -> None:
    Path("bad.json").write_text(text, "utf-8")
    cli("verify", "m.json", "bad.json").is_refused("plan")


@pytest.mark.parametrize("command", ["verify", "evaluate"])
def test_a_plan_of_another_graph_or_target(
    cli: Cli, plan: dict[str, Any], tmp_path: Path, command: str
) -> None:
    other = graph_file(tmp_path / "other.json", num_ops=5)
    cli(command, other, "plan.json").is_refused("another graph", "'chain'")
    cli(command, "m.json", "plan.json", "--target", "gpu-2").is_refused("another target", "'mcm-6x6'")
    Path("bad.json").write_text(json.dumps({**plan, "precision": "as-is"}), "utf-8")
    cli(command, "m.json", "bad.json").is_refused("another graph")


@pytest.mark.parametrize("command", ["verify", "evaluate", "explain", "trace", "report"])
def test_a_placement_is_edited(cli: Cli, plan: dict[str, Any], command: str) -> None:
    given = ["edited.json"] if command == "explain" else ["m.json", "edited.json"]
    given += {"trace": ["-o", "t.json"], "report": ["-o", "r.html"]}.get(command, [])
    edited = {**plan, "placement": [0, 1, 1, 1], "fusion_group": [0, 1, 2, 3], "replication": [1] * 4}
    for derived in ("stages", "kernels"):
        Path("edited.json").write_text(json.dumps(edited), "utf-8")
        cli(command, *given).is_refused(f"leave out {derived!r}, which is derived")
        del edited[derived]
    Path("edited.json").write_text(json.dumps(edited), "utf-8")
    assert cli(command, *given).code == 0


def test_a_plan_that_breaks_a_rule_is_an_answer(cli: Cli, plan: dict[str, Any]) -> None:
    Path("bad.json").write_text(json.dumps({**plan, "placement": [3, 2, 1, 0], "stages": None}), "utf-8")
    run = cli("verify", "m.json", "bad.json", "--json")
    assert (run.code, run.err) == (3, [])
    answer = json.loads(run.out)
    assert answer["valid"] is False
    assert "'op" in answer["violations"][0]["message"]
    run = cli("verify", "m.json", "bad.json")
    assert run.code == 3
    assert len(run.out.splitlines()) == len(answer["violations"])
    run = cli("evaluate", "m.json", "bad.json", "--json")
    assert run.code == 3
    metrics = json.loads(run.out, parse_constant=pytest.fail)
    assert metrics["valid"] is False
    assert metrics["reason"] == answer["violations"][0]["message"]


@pytest.mark.parametrize("objective", ["throughput", "latency"])
def test_an_op_that_no_chip_holds(cli: Cli, tmp_path: Path, objective: str) -> None:
    model = graph_file(tmp_path / "m.json", elements=2**34)
    run = cli("optimize", model, "--objective", objective, "--out", "plan.json")
    run.is_refused("'op", "the limit is 32000000 bytes", code=3)
    run = cli("optimize", model, "--objective", objective, "--json")
    assert run.code == 3
    answer = json.loads(run.out)
    assert (answer["status"], answer["conflict"]) == ("INFEASIBLE", [])
    assert run.err == [f"go-opt: {answer['reason']}"]
    demand = re.search(r"need (\d+) bytes", run.err[0])
    assert demand is not None
    assert int(demand[1]) >= 2**36
    assert not Path("plan.json").exists()


def test_an_op_that_every_kind_excludes(cli: Cli, tmp_path: Path) -> None:
    model = graph_file(tmp_path / "m.json", with_op(excluded_kinds=["chip"]))
    cli("optimize", model, "--max-evaluations", "1", "--out", "plan.json").is_refused("'op2'", code=3)
    assert not Path("plan.json").exists()


def test_a_service_that_does_not_answer(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "CONNECT_TIMEOUT_S", 0.3)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # and does not listen
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        run = cli("optimize", graph_file(tmp_path / "m.json"), "--server", address, "--out", "plan.json")
    run.is_refused(address, code=4)
    assert not Path("plan.json").exists()


@pytest.mark.parametrize("args", [["optimize", "no.onnx"], ["optimize", "zoo:resnet50", "--budget", "0"]])
def test_the_same_in_a_process_of_its_own(user_env: dict[str, str], args: list[str]) -> None:
    command = [sys.executable, "-m", "go_opt.cli", *args]
    run = subprocess.run(command, env=user_env, capture_output=True, text=True, check=False)
    assert (run.returncode, run.stdout) == (2, "")
    assert len(run.stderr.splitlines()) == 1
    assert run.stderr.startswith("go-opt: ")
