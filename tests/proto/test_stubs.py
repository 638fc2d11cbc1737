"""The committed stubs are what the lowest supported generator makes of the .proto files."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import pytest

from go_opt.proto import generate


def _generator_version() -> str:
    try:
        return version("grpcio-tools")
    except PackageNotFoundError:
        return ""


needs_generator = pytest.mark.skipif(
    _generator_version() != generate.GENERATOR_VERSION,
    reason=f"needs grpcio-tools {generate.GENERATOR_VERSION}",
)


@needs_generator
def test_stubs_are_regenerated_byte_for_byte(tmp_path: Path) -> None:
    generate.compile_protos(generate.PROTOS, generate.SERVICES, tmp_path)
    made = {path.name: path.read_bytes() for path in (tmp_path / "go_opt" / "proto").iterdir()}
    assert set(made) == set(generate.stub_names())
    for name, content in made.items():
        assert content == (generate.PROTO_DIR / name).read_bytes(), f"{name} is stale"


def test_every_proto_has_stubs() -> None:
    assert {path.name for path in generate.PROTO_DIR.glob("*.proto")} == set(generate.PROTOS)


def test_stubs_import_from_the_one_import_name() -> None:
    for name in generate.stub_names():
        text = (generate.PROTO_DIR / name).read_text("utf-8")
        assert "\nimport proto" not in text
        assert "\nfrom proto" not in text


def test_every_rpc_is_documented_with_its_statuses() -> None:
    for path in generate.PROTO_DIR.glob("*.proto"):
        lines = path.read_text("utf-8").splitlines()
        for i, line in enumerate(lines):
            if line.startswith("  rpc "):
                comment = _comment_above(lines, i)
                assert "Statuses" in comment, f"{path.name}: {line.strip()}"


def _comment_above(lines: list[str], i: int) -> str:
    start = i
    while lines[start - 1].startswith("  //"):
        start -= 1
    return "\n".join(lines[start:i])
