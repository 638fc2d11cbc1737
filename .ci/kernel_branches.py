"""Runs tests with interpreted kernels, and says which branches of the kernels none of them takes.

    python .ci/kernel_branches.py
    python .ci/kernel_branches.py --tests  # only prints the files of these tests

A guard that no test reaches may be wrong, or needless, and nobody would know. Counted are the branches
of compiled functions below FOLDERS. Fails where the share that is taken falls below FLOOR: then a test
has to reach the new branches.
"""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

FLOOR = 0.96
FOLDERS = ("solver/certify", "solver/slicing", "solver/verify", "env/model", "go_opt/serving")
_SOLVER = (
    "bounds chain_labels divided_slicing forwarded_slicing joint_floors kernel_parts latency_slicing min_cut "
    "refinement refinement_held refinement_stages relay_slicing replica_allocation replicated_slicing "
    "rule_check segments slicing streamed_bytes streamed_slicing verify verify_constraints verify_relays "
    "verify_stages waiting"
)
_ENV = "memory op_memory peak_memory"
_SERVING = "queueing mixed tandem"
TESTS = (
    *(f"tests/solver/test_{name}.py" for name in _SOLVER.split()),
    *(f"tests/env/test_{name}.py" for name in _ENV.split()),
    *(f"tests/go_opt/serving/test_{name}.py" for name in _SERVING.split()),
)


def measured(folder: Path) -> dict[str, dict[str, dict[str, list[list[int]]]]]:
    """For each file the functions, with the branches that were and were not taken."""
    data, report = folder / "data", folder / "report.json"
    coverage = [sys.executable, "-m", "coverage"]
    files = ",".join(f"{folder}/*" for folder in FOLDERS)
    environment = os.environ | {"NUMBA_DISABLE_JIT": "1", "COVERAGE_FILE": str(data)}
    run = [
        "run",
        "--branch",
        f"--include={files}",
        "-m",
        "pytest",
        "-p",
        "no:cacheprovider",
        *TESTS,
    ]
    subprocess.run([*coverage, *run], check=True, env=environment)
    subprocess.run([*coverage, "json", "-q", "-o", str(report)], check=True, env=environment)
    found = json.loads(report.read_text())["files"]
    return {path: found[path]["functions"] for path in sorted(found)}


def kernels(path: str) -> set[str]:
    """Names of the compiled functions of a file."""
    functions = [node for node in ast.parse(Path(path).read_text()).body if isinstance(node, ast.FunctionDef)]
    return {
        function.name
        for function in functions
        if any(ast.unparse(by).startswith(("compiled", "uncounted")) for by in function.decorator_list)
    }


def main() -> int:
    if "--tests" in sys.argv:
        print(*TESTS)
        return 0
    taken = total = 0
    with tempfile.TemporaryDirectory() as folder:
        for path, functions in measured(Path(folder)).items():
            for name in sorted(kernels(path)):
                missing = functions[name]["missing_branches"]
                taken += len(functions[name]["executed_branches"])
                total += len(functions[name]["executed_branches"]) + len(missing)
                for line, to in missing:
                    print(f"never taken: {path}:{line} to {to if to > 0 else 'the end'} ({name})")
    print(f"branches of kernels that tests take: {taken} of {total}, {taken / total:.1%}")
    return int(taken < FLOOR * total)


if __name__ == "__main__":
    sys.exit(main())
