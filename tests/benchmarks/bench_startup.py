"""Wall time of the whole command, from the shell to the printed plan.

Run: python tests/benchmarks/bench_startup.py [zoo:NAME ...]

Asserts that the plan is verified and that JAX is not imported. "first run" compiles the
kernels into an empty cache, as after an install; "warm" is the median of five more.
"first plan" is the time of the same command with an empty cache until it shows a plan, with the
processor time of the process until then; the process that compiles beside it is not started.
Targets: 20 s, 2 s and 6 s.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time

MODELS = ("zoo:resnet50", "zoo:bert_base", "zoo:nasnet_mobile")
PROGRAM = """
import sys
sys.argv = ["go-opt", "optimize", sys.argv[1], "--json"]
from go_opt.cli import main
try:
    main()
finally:
    assert "jax" not in sys.modules, "JAX was imported"
"""


def main() -> None:
    models = tuple(sys.argv[1:]) or MODELS
    with tempfile.TemporaryDirectory() as cache:
        for model in models:
            print("first plan {}: {:.2f} s, {:.2f} s of processor time".format(model, *first_plan_s(model)))
        print(f"first run {models[0]}: {run_s(models[0], cache):.2f} s (kernels compiled)")
        for model in models:
            times = [run_s(model, cache) for _ in range(5)]
            spread = f"{min(times):.2f}-{max(times):.2f}"
            print(f"warm      {model}: median {statistics.median(times):.2f} s, {spread}")


def run_s(model: str, cache: str) -> float:
    started = time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, model],
        env=os.environ | {"NUMBA_CACHE_DIR": cache},
        capture_output=True,
        check=True,
        text=True,
    )
    assert json.loads(done.stdout)["valid"]
    return time.perf_counter() - started


def first_plan_s(model: str) -> tuple[float, float]:
    """Seconds until the command shows a plan, and of processor time."""
    with tempfile.TemporaryDirectory() as cache:
        started = time.perf_counter()
        process = subprocess.Popen(
            [sys.executable, "-c", PROGRAM, model],
            env=os.environ | {"NUMBA_CACHE_DIR": cache, "GO_OPT_COMPILES_KERNELS": "1"},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert process.stderr is not None
        assert any("best interval" in line for line in process.stderr)
        took_s = time.perf_counter() - started
        process.kill()
        _, _, used = os.wait4(process.pid, 0)
        process.returncode = -9  # it is waited for
        process.stderr.close()
        return took_s, used.ru_utime + used.ru_stime


if __name__ == "__main__":
    main()
