"""The layout of the sources: imports go one way, and folders, files and functions stay small.

Imports inside functions and for types count as well.
"""

from __future__ import annotations

import ast
import tomllib
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import Final

import networkx as nx

ROOT: Final = Path(__file__).resolve().parent.parent
# In this order; each imports only from itself and from those before it.
PACKAGES: Final = ("proto", "core", "env", "solver", "agents", "go_opt")
_CORE: Final = (
    "common",
    "errors",
    "extras",
    "lazy_imports",
    "model",
    "frontends",
)  # of go_opt/, below everything else
MOST_FILES: Final = 12  # of a folder
MOST_LINES: Final = 600  # of a file
MOST_PARAMETERS: Final = 10
MOST_COMPLEXITY: Final = 15  # cyclomatic, of a function
MOST_PUBLIC_NAMES: Final = 7  # of a folder: names that files outside of it import
# Exceptions, each with its size as it is measured: they may shrink and go, not grow, and none may come in.
LONG_FILES: Final[dict[str, int]] = {}
MANY_PARAMETERS: Final = {
    "solver.slicing.table:_fill": 11,
}
# What users call: with each option a parameter, `help()` and editors show names, types and defaults.
PUBLIC_API: Final = {
    "api.searching:optimize": 13,
    "training:finetune": 11,
    "training:pretrain": 16,
}
COMPLEX_FUNCTIONS: Final = {
    "solver.certify.build:_walks": 17,
    "solver.certify.chains:_extend": 25,
    "solver.certify.fits:least_streamed_on_chip": 21,
    "solver.scheduling.bounds:_fits_on": 16,
    "solver.slicing.cuts:fewest_chips": 17,
    "solver.slicing.replicated:fewest_replicated": 22,
    "solver.slicing.table:_fill": 17,
}
WIDE_FOLDERS: Final = {
    "agents.decoding": 16,
    "agents.inputs": 20,
    "agents.policy": 14,
    "agents.training": 8,
    "agents.training.problems": 22,
    "api": 15,
    "bench": 12,
    "cli.inputs": 17,
    "common": 63,
    "env": 46,
    "env.copies": 41,
    "env.cost": 19,
    "env.kernels": 22,
    "env.model": 39,
    "env.simulator": 12,
    "env.target": 26,
    "env.zoo": 9,
    "errors": 17,
    "explanations": 25,
    "frontends": 10,
    "frontends.jax": 13,
    "frontends.onnx": 8,
    "frontends.onnx.inference": 18,
    "frontends.recording": 16,
    "model": 81,
    "model.codecs": 22,
    "report": 30,
    "report.parts": 39,
    "result": 11,
    "run.pipeline": 11,
    "search.methods": 25,
    "search.splits": 10,
    "service.calls": 13,
    "service.messages": 28,
    "service.transport": 14,
    "solver": 29,
    "solver.certify": 10,
    "solver.orders": 17,
    "solver.problem": 40,
    "solver.propagation": 11,
    "solver.propagation.propagators": 34,
    "solver.slicing": 11,
    "solver.verify": 9,
}


def modules() -> dict[str, Path]:
    """The file of every module of the package, stubs of messages apart."""
    found = {}
    for package in ("go_opt", "env", "solver", "agents", "proto"):
        for path in sorted((ROOT / package).rglob("*.py")):
            if not path.stem.endswith(("_pb2", "_pb2_grpc")):
                parts = path.relative_to(ROOT).with_suffix("").parts
                parts = parts[:-1] if parts[-1] == "__init__" else parts
                found[".".join(parts if package == "go_opt" else ("go_opt", *parts))] = path
    return found


MODULES: Final = modules()


@cache
def tree(module: str) -> ast.Module:
    return ast.parse(MODULES[module].read_text("utf-8"))


def imported_names(module: str) -> Iterator[str]:
    """What ``module`` imports of the package, wherever in its text: modules, and names in modules."""
    for node in ast.walk(tree(module)):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("go_opt."):
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name.startswith("go_opt."))


def imported(module: str) -> Iterator[str]:
    """The modules of the package that ``module`` imports."""
    return (name if name in MODULES else name.rpartition(".")[0] for name in imported_names(module))


def folder(module: str) -> str:
    """The folder of a module; each file at the top of go_opt/ stands for itself."""
    path = MODULES.get(module)
    above = module if path is None or path.name == "__init__.py" else module.rpartition(".")[0]
    return module if above == "go_opt" else above


def package(module: str) -> str:
    name = module.split(".")[1]
    return "core" if name in _CORE else name if name in PACKAGES else "go_opt"


def functions() -> Iterator[tuple[str, ast.FunctionDef]]:
    for name in MODULES:
        for node in ast.walk(tree(name)):
            if isinstance(node, ast.FunctionDef):
                yield f"{name.removeprefix('go_opt.')}:{node.name}", node


def test_the_wheel_has_every_module() -> None:
    listed = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["packages"]
    folders = {path.relative_to(ROOT).parent.as_posix().replace("/", ".") for path in MODULES.values()}
    assert {name if name.startswith("go_opt") else f"go_opt.{name}" for name in folders} <= set(listed)


def test_an_init_file_has_code() -> None:
    """What a folder is for stands in docs/architecture.md."""
    for path in MODULES.values():
        if path.name == "__init__.py":
            assert len(ast.parse(path.read_text("utf-8")).body) > 1, path


def test_packages_import_from_those_before_them_alone() -> None:
    upward = [
        (module, other)
        for module in MODULES
        if module != "go_opt"
        for other in imported(module)
        if PACKAGES.index(package(other)) > PACKAGES.index(package(module))
    ]
    assert upward == []


def test_no_import_goes_round() -> None:
    arrows = nx.DiGraph(
        (folder(module), folder(other))
        for module in MODULES
        if module != "go_opt"
        for other in imported(module)
        if folder(module) != folder(other)
    )
    circles = [sorted(circle) for circle in nx.strongly_connected_components(arrows) if len(circle) > 1]
    assert circles == []


def test_folders_are_small() -> None:
    for path in {path.parent for path in MODULES.values()}:
        files = [file for file in path.glob("*.py") if not file.stem.endswith(("_pb2", "_pb2_grpc"))]
        assert len([file for file in files if file.name != "__init__.py"]) <= MOST_FILES, path


def above(most: int, sizes: Iterable[tuple[str, int]]) -> dict[str, int]:
    """Those above the limit; what has the same name counts with the largest."""
    return {name: size for name, size in sorted(sizes) if size > most}


def test_files_are_short() -> None:
    sizes = ((name, len(path.read_text("utf-8").splitlines())) for name, path in MODULES.items())
    assert above(MOST_LINES, sizes) == LONG_FILES


def test_functions_take_few_parameters() -> None:
    sizes = (
        (name, len([*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]))
        for name, node in functions()
    )
    assert above(MOST_PARAMETERS, sizes) == MANY_PARAMETERS | PUBLIC_API


def complexity(function: ast.FunctionDef) -> int:
    """One more than its branches, as ruff's C901 counts them; those of functions within it are its own."""
    branches = (ast.If, ast.For, ast.While, ast.ExceptHandler, ast.match_case, ast.FunctionDef)
    nodes = [node for node in ast.walk(function) if isinstance(node, branches)]
    return len(nodes) + sum(isinstance(node, ast.For | ast.While) and bool(node.orelse) for node in nodes)


def test_functions_are_simple() -> None:
    sizes = ((name, complexity(node)) for name, node in functions())
    assert above(MOST_COMPLEXITY, sizes) == COMPLEX_FUNCTIONS


def test_folders_have_few_public_names() -> None:
    """What files outside of a folder import from its own files, names of modules and of what is in them."""
    public: dict[str, set[str]] = {}
    for module in MODULES:
        for name in imported_names(module) if module != "go_opt" else ():
            home = folder(name if name in MODULES else name.rpartition(".")[0])
            if not f"{folder(module)}.".startswith(f"{home}."):
                public.setdefault(home.removeprefix("go_opt."), set()).add(name)
    assert above(MOST_PUBLIC_NAMES, ((home, len(names)) for home, names in public.items())) == WIDE_FOLDERS


def test_tests_that_may_run_again_say_why() -> None:
    for path in (ROOT / "tests").rglob("*.py"):
        text = path.read_text("utf-8")
        for node in ast.walk(ast.parse(text)) if ".flaky(" in text else ():
            if isinstance(node, ast.Call) and ast.unparse(node.func).endswith(".flaky"):
                assert "reason" in {keyword.arg for keyword in node.keywords}, path
