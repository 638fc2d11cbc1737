"""Chips for a rate within a p99: our choice against the rules of Nexus and Symphony, and a grid.

    python tests/benchmarks/bench_rate.py [--evaluations N]

All choose among the same plans, for batches of 1, 2, 4, … on parts of the package. Nexus's rule: a batch
leaves when its replica is free, so an input waits for one interval at most; Symphony's: replicas are
coordinated, so it waits for one interval of all of them. With N copies of a plan of interval t and latency l
for a batch of b: N b / t >= rate, and t + l or t / N + l <= limit. (Both papers have t = l, since their GPUs
are no pipelines.) A rule's choice that misses the p99 in the simulation gets copies until it does not. The
grid tries every plan, number of copies and 41 windows. Fails where ours takes more chips than any of them.
"""

from __future__ import annotations

import argparse
import math
import tempfile
from pathlib import Path
from typing import Final

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

import go_opt
from go_opt.common.units import format_duration
from go_opt.model.graph import Graph
from go_opt.result import Request
from go_opt.serving.rate.planning import RateRequest, Served, decide, plan_for_rate
from go_opt.serving.rate.queueing import Server, arrivals_s, p99_s
from tests.transformers import encoder

TARGET: Final = "mcm-6x6"
LOADS: Final = (0.1, 0.3, 0.6)  # of what all chips take
LIMITS: Final = (1.5, 3.0, 10.0)  # of the shortest latency


def transformer() -> onnx.ModelProto:
    """Six layers of width 512 on 128 tokens, with the batch open."""
    made = encoder(6, 128, 512, 8, weights=False)
    for tensor in made.graph.initializer:
        if tensor.name in ("to_heads", "to_width"):
            sizes = numpy_helper.to_array(tensor).copy()
            sizes[0] = 0
            tensor.CopyFrom(numpy_helper.from_array(sizes, tensor.name))
    return opened(made)


def perceptron() -> onnx.ModelProto:
    """Eight products of 1,024 by 1,024."""
    weights = [hollow(f"w{i}", 1024, 1024) for i in range(8)]
    nodes = [helper.make_node("MatMul", [f"x{i}", f"w{i}"], [f"x{i + 1}"]) for i in range(8)]
    ends = [helper.make_tensor_value_info(x, TensorProto.FLOAT, [1, 1024]) for x in ("x0", "x8")]
    graph = helper.make_graph(nodes, "perceptron", ends[:1], ends[1:], weights)
    return opened(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)]))


def convolutions() -> onnx.ModelProto:
    """Twelve convolutions of 64 channels on 28 x 28."""
    weights = [hollow(f"w{i}", 64, 64, 3, 3) for i in range(12)]
    nodes = [
        helper.make_node("Conv", [f"x{i}", f"w{i}"], [f"x{i + 1}"], pads=[1, 1, 1, 1]) for i in range(12)
    ]
    ends = [helper.make_tensor_value_info(x, TensorProto.FLOAT, [1, 64, 28, 28]) for x in ("x0", "x12")]
    graph = helper.make_graph(nodes, "convolutions", ends[:1], ends[1:], weights)
    return opened(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)]))


def hollow(name: str, *shape: int) -> TensorProto:
    where = [onnx.StringStringEntryProto(key="location", value="none.bin")]
    external = TensorProto.EXTERNAL
    return TensorProto(
        name=name, dims=shape, data_type=TensorProto.FLOAT, data_location=external, external_data=where
    )


def opened(made: onnx.ModelProto) -> onnx.ModelProto:
    for end in (*made.graph.input, *made.graph.output):
        end.type.tensor_type.shape.dim[0].dim_param = "N"
    del made.graph.value_info[:]
    return made


MODELS: Final = {one.__name__: one for one in (transformer, perceptron, convolutions)}


def plans(made: onnx.ModelProto, evaluations: int) -> tuple[Served, ...]:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.onnx"
        onnx.save(made, path)

        def load(batch: int) -> Graph:
            return go_opt.load(path, dims={"N": batch})

        request = Request(max_evaluations=evaluations, policy=None, simulate=False)
        return plan_for_rate(load, go_opt.target(TARGET), request, RateRequest(1.0)).served


def kept(served: Served, copies: int, windows_s: np.ndarray, rate_per_s: float, limit_s: float) -> bool:
    """Whether a window keeps the limit under both kinds of arrivals."""
    interval_s = max(served.interval_s, copies * served.host_s)
    arrived = arrivals_s(rate_per_s).values()
    return any(
        all(p99_s(times, Server(served.batch, window, copies, interval_s, served.latency_s)) <= limit_s
            for times in arrived)
        for window in windows_s
    )  # fmt: skip


def by_rule(
    options: tuple[Served, ...], chips: int, rate_per_s: float, limit_s: float, *, is_coordinated: bool
) -> tuple[int | None, int | None]:
    """Chips that the rule takes, and those with which its plan keeps the p99; None: more than there are."""
    found = []
    for served in options:
        copies = math.ceil(rate_per_s * served.interval_s / served.batch)
        interval_s = max(served.interval_s, copies * served.host_s)
        wait_s = interval_s / (copies if is_coordinated else 1)
        is_fast = served.batch / served.host_s >= rate_per_s and wait_s + served.latency_s <= limit_s
        if is_fast and copies * served.chips <= chips:
            found.append((copies * served.chips, served.latency_s, copies, served))
    if not found:
        return None, None
    taken, _, copies, served = min(found, key=lambda one: one[:2])
    windows_s = np.array([0.0, limit_s - served.latency_s])
    for more in range(copies, chips // served.chips + 1):
        if kept(served, more, windows_s, rate_per_s, limit_s):
            return taken, more * served.chips
    return taken, None


def by_grid(options: tuple[Served, ...], chips: int, rate_per_s: float, limit_s: float) -> int | None:
    totals = sorted(
        (served.chips * copies, i, copies)
        for i, served in enumerate(options)
        for copies in range(1, chips // served.chips + 1)
        if copies * served.batch / max(served.interval_s, copies * served.host_s) >= rate_per_s
        and served.latency_s <= limit_s
    )
    for total, i, copies in totals:
        windows_s = np.linspace(0.0, limit_s - options[i].latency_s, 41)
        if kept(options[i], copies, windows_s, rate_per_s, limit_s):
            return total
    return None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--evaluations", type=int, default=40)
    evaluations = parser.parse_args().evaluations
    chips = go_opt.target(TARGET).num_chips
    print("| model | rate | p99 limit | batch | copies | chips | Nexus | Symphony | grid |")
    print("|---|---:|---:|---:|---:|---:|---:|---:|---:|", flush=True)
    for name, made in MODELS.items():
        options = plans(made(), evaluations)
        shortest_s = min(served.latency_s for served in options)
        most_per_s = max(
            served.batch / max(served.interval_s / (chips // served.chips), served.host_s)
            for served in options
        )
        for load in LOADS:
            for times in LIMITS:
                rate_per_s, limit_s = load * most_per_s, times * shortest_s
                ours = decide(options, chips, rate_per_s, limit_s, is_fewest=True)
                nexus = by_rule(options, chips, rate_per_s, limit_s, is_coordinated=False)
                symphony = by_rule(options, chips, rate_per_s, limit_s, is_coordinated=True)
                grid = by_grid(options, chips, rate_per_s, limit_s)
                for other in (nexus[1], symphony[1], grid):
                    assert other is None or (ours is not None and ours.chips <= other), (ours, other)
                texts = [f"{rule[0] or '-'} ({rule[1] or '-'})" for rule in (nexus, symphony)]
                taken = ("-", "-", "-") if ours is None else (ours.served.batch, ours.replicas, ours.chips)
                row = [name, f"{rate_per_s:,.0f}/s", format_duration(limit_s), *taken, *texts, grid or "-"]
                print(f"| {' | '.join(map(str, row))} |", flush=True)


if __name__ == "__main__":
    main()
