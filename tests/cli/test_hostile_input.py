"""Every file that a command reads, huge, endless, deep or of many values: one sentence, and little memory.

One process runs all commands, since its peak of memory only grows.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cli.conftest import graph_file

CHILD = """
import contextlib, io, json, resource, sys
from go_opt.cli.app import main
import go_opt.cli.commands.searching, go_opt.api, go_opt.costs.measured_costs
for arguments in json.load(sys.stdin):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    sys.argv, said = ["go-opt", *arguments], io.StringIO()
    try:
        with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
            main()
    except SystemExit as end:
        code = end.code
    grown_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    print(json.dumps([arguments, code, said.getvalue(), grown_kib]))
"""
MOST_KIB = 600 * 1024  # by all commands together

OPTIMIZE = ("optimize", "chain.json", "--target", "mcm-2x2", "--max-evaluations", "2")
# The arguments that make a command read the file @.
READERS: dict[str, tuple[str, ...]] = {
    "graph": ("inspect", "@.json"),
    "target": ("optimize", "chain.json", "--target", "@.toml"),
    "constraints": (*OPTIMIZE, "--constraints", "@.toml"),
    "plan": ("evaluate", "chain.json", "@.json"),
    "start": (*OPTIMIZE, "--start", "@.json"),
    "device map": (*OPTIMIZE, "--placement", "@.json"),
    "placement": (*OPTIMIZE, "--placement", "@.csv"),
    "costs": (*OPTIMIZE, "--costs", "@.csv"),
    "profile": (*OPTIMIZE, "--costs", "@.csv"),
    "mlir": ("inspect", "@.mlir"),
    "onnx": ("inspect", "@.onnx"),
    "policy": (*OPTIMIZE, "--policy", "@.safetensors"),
}
JSON = ("graph", "plan", "start", "device map", "profile")
TEXT = (*JSON, "target", "constraints", "placement", "costs", "mlir")


def of(size: int) -> Callable[[Path], None]:
    """A file of zeros that takes no room."""

    def write(path: Path) -> None:
        with path.open("wb") as file:
            file.truncate(size)

    return write


def text(head: bytes, repeated: bytes, times: int, tail: bytes = b"") -> Callable[[Path], None]:
    return lambda path: _written(path, head + repeated * times + tail)


def _written(path: Path, data: bytes) -> None:
    path.write_bytes(data)


CASES: dict[str, tuple[tuple[str, ...], Callable[[Path], None]]] = {
    "huge": (("graph", "onnx", "policy"), of(2**40)),
    "endless": ((*TEXT, "onnx", "policy"), lambda path: path.symlink_to("/dev/zero")),
    "deep": (JSON, text(b"", b"[", 10**6)),
    "many values": (JSON, text(b"[", b"{},", 10**7, b"{}]")),
    "long number": (JSON, text(b"[", b"1", 10**5, b"]")),
    "many lines": (("costs",), text(b"op,kind,seconds\n", b"op1,*,1e-6\n", 2 * 10**6)),
    "many unknown": (("costs",), text(b"op,kind,seconds\n", b"no,*,1e-6\n", 10**5)),
    "many ops": (("placement",), text(b"op,chip\n", b"op1,1\n", 2 * 10**6)),
    "one field": (("costs", "placement"), text(b'"', b"a", 6 * 10**7)),
    "deep arrays": (("target", "constraints"), text(b"a = ", b"[", 10**5)),
    "long key": (("target", "constraints"), text(b"", b"a.", 5 * 10**5, b"a = 1")),
    "many tables": (("target", "constraints"), text(b"", b"[[pin]]\n", 3 * 10**4)),
    "no text": (TEXT, text(b"[", b"\xff", 100)),
}


@pytest.mark.skipif(sys.platform != "linux", reason="peak memory in KiB")
def test_every_reader_refuses_hostile_files(tmp_path: Path, user_env: dict[str, str]) -> None:
    graph_file(tmp_path / "chain.json", num_ops=3)
    commands = []
    for case, (readers, write) in CASES.items():
        for reader in readers:
            *before, last = READERS[reader]
            name = f"{case} {reader}{Path(last).suffix}"
            write(tmp_path / name)
            commands.append([*before, name])
    run = subprocess.run(
        [sys.executable, "-c", CHILD], input=json.dumps(commands), cwd=tmp_path, env=user_env,
        capture_output=True, text=True, timeout=600,
    )  # fmt: skip
    results = [json.loads(line) for line in run.stdout.splitlines()]
    assert len(results) == len(commands), run.stderr[-500:]
    for arguments, code, said, _ in results:
        assert code == 2, (arguments, said)
        assert re.fullmatch(r"go-opt: [^\n]{1,1000}\.\n", said), (arguments, said)
    assert sum(grown_kib for *_, grown_kib in results) < MOST_KIB, max(results, key=lambda one: one[-1])
