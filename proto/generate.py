"""Regenerates the stubs beside the ``.proto`` files: ``python -m go_opt.proto.generate``.

Needs grpcio-tools 1.72.1 (the ``test`` extra): stubs refuse a runtime older than their
generator, so they are made with the lowest version supported.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path
from typing import Final

import google.longrunning

PROTO_DIR: Final = Path(__file__).resolve().parent
GENERATOR_VERSION: Final = "1.72.1"
SERVICES: Final = ("optimizer.proto", "environment.proto", "training.proto")
PROTOS: Final = ("graph.proto", "plan.proto", "step.proto", *SERVICES)


def compile_protos(files: tuple[str, ...], services: tuple[str, ...], out: Path) -> None:
    """Write the stubs of ``files`` below ``out``, and the gRPC ones of ``services``."""
    _protoc(files, f"--python_out={out}", f"--pyi_out={out}")
    _protoc(services, f"--grpc_python_out={out}")


def compile_descriptors(out: Path, *, comments: bool) -> None:
    """Write the descriptors of every file, and of what they import, to the file ``out``."""
    options = ("--include_imports", *(("--include_source_info",) if comments else ()))
    _protoc(PROTOS, f"--descriptor_set_out={out}", *options)


def stub_names() -> tuple[str, ...]:
    """File names of the committed stubs."""
    messages = [name.replace(".proto", suffix) for name in PROTOS for suffix in ("_pb2.py", "_pb2.pyi")]
    return (*messages, *(name.replace(".proto", "_pb2_grpc.py") for name in SERVICES))


def googleapis_dir() -> Path:
    """Where googleapis-common-protos keeps its ``.proto`` files."""
    return Path(google.longrunning.__path__[0]).parents[1]


def _protoc(files: tuple[str, ...], *outputs: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        # Everywhere but in the Python package the file has the name that its descriptor has.
        operations = Path(folder) / "google" / "longrunning" / "operations.proto"
        operations.parent.mkdir(parents=True)
        shutil.copyfile(googleapis_dir() / "google" / "longrunning" / "operations_proto.proto", operations)
        includes = (f"-Igo_opt/proto={PROTO_DIR}", f"-I{folder}", f"-I{googleapis_dir()}")
        command = [sys.executable, "-m", "grpc_tools.protoc", *includes]
        subprocess.run([*command, *outputs, *(f"go_opt/proto/{name}" for name in files)], check=True)


def main() -> None:
    """Regenerate every committed stub in place."""
    found = version("grpcio-tools")
    if found != GENERATOR_VERSION:
        sys.exit(f"generate: needs grpcio-tools {GENERATOR_VERSION}, found {found}.")
    with tempfile.TemporaryDirectory() as folder:
        compile_protos(PROTOS, SERVICES, Path(folder))
        for name in stub_names():
            shutil.copyfile(Path(folder) / "go_opt" / "proto" / name, PROTO_DIR / name)


if __name__ == "__main__":
    main()
