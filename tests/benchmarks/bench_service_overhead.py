"""What a service adds to a search: the answers are the same, and how much later they come.

Run: PYTHONPATH=. python tests/benchmarks/bench_service_overhead.py [--calls N] [--large]

A service with worker processes runs beside this process, on the loopback. Each call is made
in process, of the service, and of an echo that sends back a recorded answer: the least that
gRPC takes for the same messages. The three take turns, with a new seed each time, so that
nothing is answered from the cache; the searches themselves, which last as long here as
there, are left out by their own clocks. Target: the service adds at most 5 ms at p50 for a
graph of 1,000 ops that was sent before. ``--large`` adds a graph of 100,000 ops.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace

import grpc
import numpy as np
from measuring import best_s

from go_opt import api
from go_opt.env import load_zoo, zoo_entries
from go_opt.model.codecs.plan_json import plan_to_dict
from go_opt.model.codecs.wire import graph_from_proto, graph_to_proto
from go_opt.model.graph import Graph
from go_opt.proto import graph_pb2, optimizer_pb2
from go_opt.result import Request
from go_opt.service.calls.calls import Call, Method, Service
from go_opt.service.client.client import Client
from go_opt.service.messages.convert import request_to_proto
from go_opt.service.server import serve
from go_opt.service.transport.credentials import MESSAGE_OPTIONS
from go_opt.service.workers.optimizer import OptimizerService
from go_opt.service.workers.process_optimizer import ProcessOptimizer
from tests.service.big_graph import repeated
from tests.serving import wait_until_ready

TARGET = "mcm-6x6"
EVALUATIONS = 4
LARGE, LARGE_TIMES = "gnmt_8", 2  # 105,674 ops


class Echo(Service):
    """Sends the answer that was recorded, whatever is asked."""

    name = "bench.Echo"

    def __init__(self) -> None:
        self._answer = optimizer_pb2.OptimizeResponse()

    def methods(self) -> Mapping[str, Method]:
        return {"Record": Method("search", self._record), "Ask": Method("search", self._ask)}

    def close(self) -> None:
        """Nothing is held."""

    def _record(self, data: bytes, call: Call) -> optimizer_pb2.OptimizeResponse:
        self._answer = optimizer_pb2.OptimizeResponse.FromString(data)
        return self._answer

    def _ask(self, data: bytes, call: Call) -> optimizer_pb2.OptimizeResponse:
        return self._answer


def run_service() -> None:
    optimizer = ProcessOptimizer(1)
    wait_until_ready(optimizer)
    serve("127.0.0.1:0", lambda: [OptimizerService(optimizer), Echo()])


@contextmanager
def service() -> Iterator[str]:
    process = subprocess.Popen([sys.executable, __file__, "--serve"], stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    try:
        yield process.stderr.readline().removeprefix("listening on ").strip()
    finally:
        process.terminate()
        process.communicate()


def measure(address: str, graph: Graph, seeds: range, *, is_new: bool) -> dict[str, np.ndarray]:
    """Seconds of each call in process, of the service and of the echo, without the search itself."""
    taken: dict[str, list[float]] = {"in process": [], "service": [], "echo": []}
    with Client(address) as client, grpc.insecure_channel(address, options=MESSAGE_OPTIONS) as channel:
        ask, record = (channel.unary_unary(f"/bench.Echo/{method}") for method in ("Ask", "Record"))
        message = request_to_proto(Request(max_evaluations=EVALUATIONS))
        message.graph.CopyFrom(graph_to_proto(graph))
        message.target.name = TARGET
        request = message.SerializeToString()
        record(channel.unary_unary("/go_opt.v1.Optimizer/Optimize")(request))
        api.optimize(graph, TARGET, max_evaluations=EVALUATIONS, policy=None)  # loads the kernels
        for seed in seeds:
            asked = replace(graph, name=f"{graph.name} {seed}") if is_new else graph
            start_s = time.perf_counter()
            here = api.optimize(asked, TARGET, max_evaluations=EVALUATIONS, seed=seed, policy=None)
            here_s = time.perf_counter()
            there = client.optimize(asked, TARGET, max_evaluations=EVALUATIONS, seed=seed, policy="none")
            there_s = time.perf_counter()
            ask(request)
            taken["echo"].append(time.perf_counter() - there_s)
            taken["in process"].append(here_s - start_s - here.wall_s)
            taken["service"].append(there_s - here_s - there.wall_s)
            assert plan_to_dict(there.plan) == plan_to_dict(here.plan)
    return {name: np.array(values) for name, values in taken.items()}


def report(name: str, graph: Graph, taken: dict[str, np.ndarray]) -> None:
    overhead_ms = 1e3 * (taken["service"] - taken["in process"])
    echo_ms = 1e3 * float(np.median(taken["echo"]))
    p5, p50, p95 = np.quantile(overhead_ms, [0.05, 0.5, 0.95])
    print(
        f"{name}: {graph.num_ops} ops, {len(overhead_ms)} calls; the service adds {p50:.1f} ms at p50 "
        f"({p5:.1f} at p5, {p95:.1f} at p95), {p50 / echo_ms:.1f} x the echo of {echo_ms:.1f} ms"
    )


def print_codec(name: str, graph: Graph) -> None:
    """Microseconds for each op, of processor time, of the graph as a message."""
    data = graph_to_proto(graph).SerializeToString()
    steps = {
        "encode": lambda: graph_to_proto(graph),
        "decode": lambda: graph_from_proto(graph_pb2.Graph.FromString(data)),
    }
    assert graph_from_proto(graph_pb2.Graph.FromString(data)).fingerprint == graph.fingerprint
    for step, run in steps.items():
        seconds, _ = best_s(run, 5, time.process_time)
        print(f"{name}: {step} {seconds * 1e6 / graph.num_ops:.1f} us an op")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--calls", type=int, default=100)
    parser.add_argument("--large", action="store_true")
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        run_service()
        return
    name = min(zoo_entries(), key=lambda entry: abs(entry.ops - 1000)).name
    graph = load_zoo(name)
    print_codec(name, graph)
    with service() as address:
        # A name is no part of what decides an answer: other seeds, or the cache has it.
        seeds, others = range(1, options.calls + 1), range(options.calls + 1, 2 * options.calls + 1)
        report(f"{name}, sent before", graph, measure(address, graph, seeds, is_new=False))
        report(f"{name}, new each time", graph, measure(address, graph, others, is_new=True))
        if options.large:
            large = graph_from_proto(repeated(graph_to_proto(load_zoo(LARGE)), LARGE_TIMES))
            report(f"{LARGE_TIMES} x {LARGE}", large, measure(address, large, range(1, 3), is_new=False))


if __name__ == "__main__":
    main()
