"""There is one way to compile, functions say what they take, and Python calls none without a wrapper."""

from __future__ import annotations

import ast
import gc
import os
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Final

from numba.core.types.functions import BaseFunction

from go_opt.common.compiling import quick_compilation

ROOT: Final = Path(__file__).resolve().parent.parent
FOLDERS: Final = ("go_opt", "env", "solver", "agents", "tests")
COMPILING: Final = "go_opt.common.compiling"
FOR_PYTHON: Final = {"compiled", "uncounted"}
INNER: Final = {"compiled_inner", "compiled_inline", "uncounted_inner", "uncounted_inline"}


def module_of(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    parts = parts[:-1] if parts[-1] == "__init__" else parts
    return ".".join(parts if parts[0] in ("go_opt", "tests") else ("go_opt", *parts))


@cache
def trees() -> dict[str, ast.Module]:
    paths = [path for folder in FOLDERS for path in sorted((ROOT / folder).rglob("*.py"))]
    return {module_of(path): ast.parse(path.read_text("utf-8")) for path in paths}


@cache
def imported(module: str) -> dict[str, str]:
    """What each name that a module imports from the project stands for."""
    nodes = [node for node in ast.walk(trees()[module]) if isinstance(node, ast.ImportFrom)]
    ours = [node for node in nodes if (node.module or "").startswith(("go_opt", "tests"))]
    return {
        alias.asname or alias.name: f"{node.module}.{alias.name}" for node in ours for alias in node.names
    }


@cache
def origin(name: str) -> str:
    """Where a name is defined that packages hand on."""
    module, _, last = name.rpartition(".")
    further = imported(module).get(last, name) if module in trees() else name
    return name if further == name else origin(further)


def decorator(node: ast.stmt) -> str | None:
    """How a function is compiled, where it is."""
    names = [d.id for d in getattr(node, "decorator_list", ()) if isinstance(d, ast.Name)]
    return next((name for name in names if name in FOR_PYTHON | INNER), None)


def compiled_as(decorators: set[str]) -> set[str]:
    """The full names of the functions compiled in one of these ways."""
    nodes = [(module, node) for module, tree in trees().items() for node in tree.body]
    return {f"{module}.{node.name}" for module, node in nodes if decorator(node) in decorators}  # type: ignore[attr-defined]


def mentioned_in_python(module: str) -> Iterator[str]:
    """The full name of all that a module mentions outside of compiled functions."""
    for statement in trees()[module].body:
        for node in ast.walk(statement) if decorator(statement) is None else ():
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
                yield origin(imported(module).get(node.id, f"{module}.{node.id}"))
            elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
                yield origin(f"{imported(module).get(node.value.id, '')}.{node.attr}")


def test_functions_without_a_wrapper_are_called_by_compiled_ones_alone() -> None:
    inner = compiled_as(INNER)
    assert len(inner) > 100
    assert [
        (module, name) for module in trees() for name in mentioned_in_python(module) if name in inner
    ] == []


def test_functions_with_a_wrapper_need_it() -> None:
    mentioned = {name for module in trees() for name in mentioned_in_python(module)}
    assert compiled_as(FOR_PYTHON) - mentioned == set()


def test_there_is_one_way_to_compile() -> None:
    for module, tree in trees().items():
        if module != COMPILING and not module.startswith("tests."):
            imports = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
            assert not any(node.module == "numba" for node in imports), module


def test_compiled_functions_are_annotated() -> None:
    functions = [
        (module, node)
        for module, tree in trees().items()
        for node in tree.body
        if isinstance(node, ast.FunctionDef) and decorator(node) is not None
    ]
    assert [
        f"{module}.{node.name}"
        for module, node in functions
        if node.returns is None or any(argument.annotation is None for argument in node.args.args)
    ] == []


def test_numba_and_collections_are_left_as_they_were() -> None:
    before = gc.get_threshold(), BaseFunction.get_call_type
    with quick_compilation():
        assert BaseFunction.get_call_type is not before[1]
    assert (gc.get_threshold(), BaseFunction.get_call_type) == before


def test_inner_functions_get_no_machine_code(tmp_path: Path) -> None:
    """The second process loads the inner function from the cache, and compiles another caller of it."""
    (tmp_path / "kernels.py").write_text(KERNELS, "utf-8")
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path / "cache"), "PYTHONPATH": str(ROOT)}
    environment.pop("NUMBA_DISABLE_JIT", None)
    for caller, expected in (("twice", "[4.0, 8.0] True"), ("thrice", "[6.0, 12.0] False")):
        command = [sys.executable, "-c", CALL.format(caller=caller)]
        ran = subprocess.run(
            command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=True
        )
        assert ran.stdout.strip() == expected
    loaded = {
        name.split(".")[1].split("-")[0]
        for name in os.listdir(next((tmp_path / "cache" / "go-opt").iterdir()))
    }
    assert loaded == {"doubled", "twice", "thrice"}


KERNELS: Final = """
import numpy as np
from go_opt.common.compiling import compiled, compiled_inner

@compiled_inner
def doubled(values):
    out = np.empty_like(values)
    for i in range(len(values)):
        out[i] = 2 * values[i]
    return out

@compiled
def twice(values):
    return doubled(values) * 2

@compiled
def thrice(values):
    return doubled(values) * 3
"""
CALL: Final = """
import sys
sys.path.insert(0, "")
import numpy as np
from go_opt.common.compiling import quick_compilation
from go_opt.common.arrays import record
with quick_compilation():
    import kernels
    result = kernels.{caller}(np.array([1.0, 2.0]))
    inner = next(iter(kernels.doubled.overloads.values()))
print(result.tolist(), "_finalize_final_module" in vars(inner.library))
"""
