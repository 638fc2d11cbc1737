"""Small faults put into a source file one at a time: which of them do its tests not notice?

    python tests/benchmarks/mutants.py solver/certify/chains.py tests/solver/test_chain_labels.py \
        tests/solver/test_refinement_held.py --most 20

Turns comparisons and their edges, ``min`` and ``max``, adds one to a constant, and drops conditions.
Works on a copy of the checkout, with interpreted kernels, so that nothing is compiled. Prints a line for
each mutant; a survivor is a test that is missing, or a mutant that means the same.
"""

from __future__ import annotations

import argparse
import ast
import os
import random
import resource
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
COMPARED = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
}  # fmt: skip
CALLED = {"min": "max", "max": "min"}


def mutants(source: str) -> Iterator[tuple[int, str, str]]:
    """Line, what is replaced by what, and the whole changed source."""
    lines = source.splitlines(keepends=True)
    starts = [0]
    for line in lines:
        starts.append(starts[-1] + len(line))
    functions = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.FunctionDef)]
    for node in (inner for function in functions for body in function.body for inner in ast.walk(body)):
        for changed in variants(node):
            begin = starts[node.lineno - 1] + node.col_offset
            end = starts[node.end_lineno - 1] + node.end_col_offset
            text = f"{source[begin:end]} -> {changed}"
            yield node.lineno, text, source[:begin] + f"({changed})" + source[end:]


def variants(node: ast.AST) -> Iterator[str]:
    """The expression, changed in one place each."""
    if isinstance(node, ast.Compare) and len(node.ops) == 1 and type(node.ops[0]) in COMPARED:
        yield ast.unparse(ast.Compare(node.left, [COMPARED[type(node.ops[0])]()], node.comparators))
    elif isinstance(node, ast.BoolOp):
        for i in range(len(node.values)):
            kept = node.values[:i] + node.values[i + 1 :]
            yield ast.unparse(ast.BoolOp(node.op, kept) if len(kept) > 1 else kept[0])
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in CALLED:
        yield ast.unparse(ast.Call(ast.Name(CALLED[node.func.id]), node.args, node.keywords))
    elif isinstance(node, ast.Constant) and type(node.value) is int and node.value in (0, 1):
        yield str(node.value + 1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("source", type=Path)
    parser.add_argument("tests", nargs="+")
    parser.add_argument("--most", type=int, default=40, help="mutants, drawn at random")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--limit-s", type=int, default=60, help="CPU seconds after which a mutant counts as killed"
    )
    asked = parser.parse_args()
    found = list(mutants((ROOT / asked.source).read_text()))
    drawn = sorted(random.Random(asked.seed).sample(found, min(asked.most, len(found))))
    survived = 0

    def limit_cpu() -> None:
        resource.setrlimit(resource.RLIMIT_CPU, (asked.limit_s, asked.limit_s))

    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / "copy"
        shutil.copytree(ROOT, copy, ignore=shutil.ignore_patterns(".git", "__pycache__"))
        pytest = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", *asked.tests]
        environment = os.environ | {"NUMBA_DISABLE_JIT": "1", "CI": "true"}
        for line, text, changed in drawn:
            (copy / asked.source).write_text(changed)
            run = subprocess.run(
                pytest, cwd=copy, env=environment, capture_output=True, check=False, preexec_fn=limit_cpu
            )
            verdict = "killed" if run.returncode else "SURVIVED"
            survived += verdict == "SURVIVED"
            print(f"{asked.source}:{line}: {' '.join(text.split())}: {verdict}", flush=True)
    print(f"{survived} of {len(drawn)} mutants survived, of {len(found)} there are")


if __name__ == "__main__":
    main()
