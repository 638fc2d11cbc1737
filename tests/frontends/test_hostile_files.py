"""Files that would take the process down, or much memory: refused in one sentence by a child process."""

from __future__ import annotations

import contextlib
import json
import os
import random
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import go_opt
from go_opt.common.units import visible
from go_opt.errors import InvalidInputError
from tests.torch_programs import FOLDER

CHILD = """
import resource, sys
import go_opt
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
try:
    go_opt.load(sys.argv[1])
except go_opt.errors.InvalidInputError as error:
    print(error)
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""
MOST_KIB = 400 * 1024  # more than before the file was read; jaxlib alone takes 200 MiB


def nested_regions(path: Path) -> Path:
    text = '"a.b"() ({' * 20_000 + "}) : () -> ()" * 20_000
    path.write_text(f"module {{ func.func @main() {{ {text} return }} }}", "utf-8")
    return path


def archive(path: Path, *programs: bytes) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as file:
        for i, program in enumerate(programs):
            file.writestr(f"m{i}/models/model.json", program)
    return path


HOSTILE: dict[str, Callable[[Path], Path]] = {
    "regions.mlir": nested_regions,
    "brackets.mlir": lambda path: _written(path, "module " + "(" * 30_000),
    "signs.mlir": lambda path: _written(path, "#m = affine_map<(a) -> (" + "-" * 30_000 + "a)>"),
    "hidden.mlir": lambda path: _written(path, '// "\n' + "[" * 30_000 + '\n// "'),
    "bomb.pt2": lambda path: archive(path, b"[" + b"{}," * 60_000_000 + b"{}]"),
    "version.pt2": lambda path: archive(path, b'{"schema_version": [8]}'),
    "list.pt2": lambda path: archive(path, b"[]"),
    "empty.pt2": lambda path: archive(path, b""),
    "deep.pt2": lambda path: archive(path, b"[" * 1_000_000),
    "deep.json": lambda path: _written(path, "[" * 100_000),
}


def _written(path: Path, text: str) -> Path:
    path.write_text(text, "utf-8")
    return path


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_models_are_refused_in_one_sentence(name: str, tmp_path: Path) -> None:
    path = HOSTILE[name](tmp_path / name)
    env = {**os.environ, "PYTHONPATH": str(Path(go_opt.__file__).parents[1])}
    run = subprocess.run(
        [sys.executable, "-c", CHILD, str(path)], capture_output=True, text=True, env=env, timeout=300
    )
    assert run.returncode == 0, run.stderr[-500:]
    sentence, grown_kib = run.stdout.splitlines()
    assert sentence.endswith(".")
    assert int(grown_kib) < MOST_KIB


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
