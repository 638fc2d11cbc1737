"""Wall time of the whole command, from the shell to the printed plan.

Run: python tests/benchmarks/bench_startup.py [zoo:NAME ...]

Asserts that the plan is verified and that JAX is not imported. "first run" compiles the
kernels into an empty cache, as after an install; "warm" is the median of five more.
Targets: 20 s and 2 s.
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


if __name__ == "__main__":
    main()
