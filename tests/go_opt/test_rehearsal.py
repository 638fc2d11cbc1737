"""Nothing compiles on the time of a search: in a copy of a process that has run nothing before."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from subprocess import PIPE

import numpy as np
import pytest
from numba import njit

import go_opt
from go_opt.result import Request, Step
from go_opt.search.optimizer import optimize_request
from tests.strategies import small_mcm, toy_graph

# Kernels load from the cache of an earlier run, or compile, within events; others hear of both events later.
NOTED = """
import json, os, sys, threading, traceback
from contextlib import contextmanager
from pathlib import Path
from numba.core import event
import go_opt
from go_opt.common.caches.kernels import LOADS
from go_opt.model.start import OpStart, Start
from go_opt.search import optimizer
from go_opt.search.compiling import kernel_cache

noted, clocks, searching = [], [], threading.get_ident()

class Notes(event.Listener):
    def on_start(self, event):
        is_ours = threading.get_ident() == searching
        if is_ours and clocks and all(one.clock.runs for one in clocks):
            noted.append(event.kind)

    def on_end(self, event):
        pass

class Noticed(optimizer.Context):
    def __init__(self, *given):
        super().__init__(*given)
        clocks.append(self)

    @contextmanager
    def without_kernels(self):
        with super().without_kernels():  # whose listener hears of them first
            for kind in ("numba:compile", LOADS):
                event.register(kind, Notes())
            yield

optimizer.Context = Noticed
def compiled(model, target, *options):
    options = {"policy": None} | dict(option.split("=") for option in options)
    graph, asked, start = go_opt.load(model), (), None
    names = graph.op_names
    if options.pop("constrained", ""):
        asked = (
            go_opt.Pin(names[3], 1), go_opt.Forbid(names[40], (0,)), go_opt.Colocate(names[10:12]),
            go_opt.ChipLimit(0, at_most_bytes=50e6),
        )
    if options.pop("starts", ""):
        start = Start({names[0]: OpStart(0), names[-1]: OpStart(3)})
    if options.pop("strict", ""):
        options["relays"] = False
    if "budget_s" in options:  # another process compiles, and is not through within the budget
        kernel_cache.marker, kernel_cache._compiling = lambda: Path("missing"), lambda: None
    else:  # as once it is through: what it compiles a search would wait for
        os.environ[kernel_cache.COMPILES] = "1"
        options["max_evaluations"] = 60
    go_opt.optimize(graph, target, constraints=asked, start=start, **options)
    assert clocks
    return sorted(set(noted))

for line in sys.stdin:
    child = os.fork()
    if not child:
        try:
            answer = compiled(*line.split()), ""
        except BaseException:
            answer = [], traceback.format_exc()
        print(json.dumps(answer), flush=True)
        os._exit(0)
    if os.waitpid(child, 0)[1]:
        print(json.dumps(([], "it was killed")), flush=True)
"""


@pytest.fixture(scope="module")
def process() -> Iterator[subprocess.Popen[str]]:
    """It has imported all, and run nothing: a copy of it runs each search."""
    env = {**os.environ, "PYTHONPATH": str(Path(go_opt.__file__).parents[1])}
    command = [sys.executable, "-c", NOTED]
    with subprocess.Popen(command, env=env, stdin=PIPE, stdout=PIPE, text=True) as started:
        yield started


@pytest.mark.parametrize(
    "asked",
    [
        "zoo:mobilenet_v2 mcm-6x6 objective=latency",
        "zoo:mobilenet_v2 mcm-6x6 objective=latency strict=yes constrained=yes",
        "zoo:mobilenet_v2 mcm-6x6 objective=latency decide=placement constrained=yes",
        "zoo:mobilenet_v2 gpu-4 objective=latency fidelity=simulated",
        "zoo:mobilenet_v2 gpu-4 objective=latency strict=yes decide=placement",
        "zoo:mobilenet_v2 gpu-4 max_latency_s=5ms",
        "zoo:mobilenet_v2 gpu-4 constrained=yes",
        "zoo:inception_v3_b32 gpu-2 objective=latency budget_s=2s",  # splits are tried, the answer simulated
        "zoo:mobilenet_v2 mcm-6x6 budget_s=1s",
        "zoo:mobilenet_v2 mcm-6x6 budget_s=1s decide=placement strict=yes",
        "zoo:mobilenet_v2 mcm-6x6 budget_s=1s max_latency_s=1ms",
        "zoo:mobilenet_v2 mcm-6x6 budget_s=1s starts=yes",
        "zoo:gpt2 mcm-6x6 budget_s=1s",  # the first plan streams weights
        "zoo:bert_base mcm-6x6 budget_s=2s policy=default",
    ],
)
def test_no_kernel_compiles_within_a_search(process: subprocess.Popen[str], asked: str) -> None:
    assert process.stdin is not None
    assert process.stdout is not None
    print(asked, file=process.stdin, flush=True)
    assert json.loads(process.stdout.readline()) == [[], ""]


def test_what_nothing_has_loaded_compiles_on_no_time_of_the_search() -> None:
    took_s = []

    def compile_late(step: Step) -> None:
        began_s = time.monotonic()
        if not took_s:
            njit(lambda values: np.median(values))(np.ones(3))
            took_s.append(time.monotonic() - began_s)

    result = optimize_request(toy_graph(), small_mcm(2), Request(budget_s=60.0), on_step=compile_late)
    assert 0.0 <= result.wall_s < took_s[0]
