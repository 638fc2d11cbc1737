"""Nothing compiles on the time of a search: in a process of its own, which has run nothing before."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import go_opt
from go_opt.search.compiling.kernel_cache import COMPILES

# Kernels compile, or load from the cache of an earlier run, when their dispatcher is asked for a signature.
NOTED = """
import sys
from numba.core.dispatcher import Dispatcher
import go_opt
from go_opt.search import whole_ops

compile, noted, is_searching = Dispatcher.compile, [], []

def note(self, signature):
    if is_searching and signature not in self.overloads:
        noted.append(self.py_func.__qualname__)
    return compile(self, signature)

class Noticed(whole_ops.Search):
    def __init__(self, graph, *args):
        if graph.num_ops > 10:  # not of the rehearsal
            is_searching.append(True)
        super().__init__(graph, *args)

Dispatcher.compile, whole_ops.Search = note, Noticed
graph, asked = go_opt.load("zoo:mobilenet_v2"), ()
names = graph.op_names
constraints = (
    go_opt.Pin(names[3], 1), go_opt.Forbid(names[40], (0,)), go_opt.Colocate(names[10:12]),
    go_opt.ChipLimit(0, at_most_bytes=50e6),
)
target, *options = sys.argv[1:]
options = dict(option.split("=") for option in options)
if options.pop("constrained", ""):
    asked = constraints
if options.pop("strict", ""):
    options["relays"] = False
go_opt.optimize(graph, target, constraints=asked, max_evaluations=60, policy=None, **options)
assert is_searching
print(*sorted(set(noted)))
"""


@pytest.mark.parametrize(
    "asked",
    [
        "mcm-6x6 objective=latency",
        "mcm-6x6 objective=latency strict=yes constrained=yes",
        "mcm-6x6 objective=latency decide=placement constrained=yes",
        "gpu-4 objective=latency fidelity=simulated",
        "gpu-4 objective=latency strict=yes decide=placement",
        "gpu-4 max_latency_s=5ms",
        "gpu-4 constrained=yes",
    ],
)
def test_no_kernel_compiles_within_a_search(asked: str) -> None:
    # As once the process in the background is through: what it compiles a search would wait for.
    env = {**os.environ, "PYTHONPATH": str(Path(go_opt.__file__).parents[1]), COMPILES: "1"}
    run = subprocess.run(
        [sys.executable, "-c", NOTED, *asked.split()], env=env, capture_output=True, text=True, check=False
    )
    assert run.returncode == 0, run.stderr
    assert run.stdout.split() == []
