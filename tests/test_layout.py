"""The layout of the sources: imports go one way, and folders, files and functions stay small.

Imports inside functions and for types count as well.
"""

from __future__ import annotations

import ast
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import networkx as nx

ROOT: Final = Path(__file__).resolve().parent.parent
# In this order; each imports only from itself and from those before it.
PACKAGES: Final = ("proto", "core", "env", "solver", "agents", "go_opt")
_CORE: Final = ("common", "errors", "model", "frontends")  # of go_opt/, below everything else
MOST_FILES: Final = 12  # of a folder
MOST_LINES: Final = 300  # of a file
MOST_PARAMETERS: Final = 10
# Each waits to be split; none may grow, and no other may come in.
LONG_FILES: Final = {
    "env.model.analytical": 398,
    "env.simulator.engine": 321,
    "solver.certify.states.states": 302,
    "solver.propagation.propagators.domains": 340,
    "solver.slicing.segments.fitting_starts": 303,
}
MANY_PARAMETERS: Final = {
    "env.model.analytical:_account_tensors": 17,
    "env.model.analytical:_interval": 11,
    "solver.slicing.fewest_fitting:_longest_segment": 11,
    "solver.slicing.segments.fitting_starts:_runs_of_end": 11,
    "solver.slicing.streamed.segment_table:_fill": 12,
    "solver.slicing.streamed.segment_table:segment_table": 11,
}
# What users call: with each option a parameter, `help()` and editors show names, types and defaults.
PUBLIC_API: Final = {
    "api.searching:optimize": 27,
    "service.client.training:finetune": 11,
    "service.client.training:pretrain": 12,
    "training:finetune": 11,
    "training:pretrain": 16,
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


def imported(module: str) -> Iterator[str]:
    """The modules of the package that ``module`` imports, wherever in its text."""
    for node in ast.walk(ast.parse(MODULES[module].read_text("utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("go_opt."):
            for alias in node.names:
                name = f"{node.module}.{alias.name}"
                yield name if name in MODULES else node.module
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name.startswith("go_opt."))


def folder(module: str) -> str:
    """The folder of a module; each file at the top of go_opt/ stands for itself."""
    path = MODULES.get(module)
    above = module if path is None or path.name == "__init__.py" else module.rpartition(".")[0]
    return module if above == "go_opt" else above


def package(module: str) -> str:
    name = module.split(".")[1]
    return "core" if name in _CORE else name if name in PACKAGES else "go_opt"


def functions() -> Iterator[tuple[str, ast.FunctionDef]]:
    for name, path in MODULES.items():
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.FunctionDef):
                yield f"{name.removeprefix('go_opt.')}:{node.name}", node


def test_the_wheel_has_every_module() -> None:
    listed = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["packages"]
    folders = {
        name if path.name == "__init__.py" else name.rpartition(".")[0] for name, path in MODULES.items()
    }
    assert folders <= set(listed)


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


def test_files_are_short() -> None:
    for name, path in MODULES.items():
        lines = len(path.read_text("utf-8").splitlines())
        assert lines <= LONG_FILES.get(name.removeprefix("go_opt."), MOST_LINES), name


def test_functions_take_few_parameters() -> None:
    for name, node in functions():
        asked = node.args
        count = len(asked.posonlyargs) + len(asked.args) + len(asked.kwonlyargs)
        assert count <= (MANY_PARAMETERS | PUBLIC_API).get(name, MOST_PARAMETERS), name


def test_the_exceptions_are_still_needed() -> None:
    long = {name.removeprefix("go_opt."): path for name, path in MODULES.items()}
    for name in LONG_FILES:
        assert len(long[name].read_text("utf-8").splitlines()) > MOST_LINES, name
    assert set(MANY_PARAMETERS | PUBLIC_API) <= {name for name, _ in functions()}


def test_tests_that_may_run_again_say_why() -> None:
    for path in (ROOT / "tests").rglob("*.py"):
        text = path.read_text("utf-8")
        for node in ast.walk(ast.parse(text)) if ".flaky(" in text else ():
            if isinstance(node, ast.Call) and ast.unparse(node.func).endswith(".flaky"):
                assert "reason" in {keyword.arg for keyword in node.keywords}, path
