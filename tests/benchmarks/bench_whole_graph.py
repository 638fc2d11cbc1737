"""Ranks of configurations of one graph: whole-graph prediction against models of kernels (as in TpuGraphs).

Configurations are plans made for the machine of calibrate_machines.py disturbed at random. LightGBM learns by
how much their intervals differ from the analytical model's, from features of whole plans: either of other
graphs on the same machine, or of half of the graph's own configurations; GraphSAGE learns it from the whole
graph or by segments (whole_graph_network.py). The target that go-opt calibrate finds has 20 measurements.
Slowdown: of the fastest of the first k by prediction, over the fastest of all.

    python tests/benchmarks/bench_whole_graph.py --out whole.jsonl      # then --report
    python tests/benchmarks/bench_whole_graph.py --update 1024          # of the network, on gnmt_8; 0: whole
"""

from __future__ import annotations

import argparse
import json
import resource
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import lightgbm
import numpy as np
from numpy.typing import NDArray
from scipy.stats import kendalltau

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import go_opt
from go_opt.calibration.calibrating import Calibration
from go_opt.env import evaluate_plan, fused_within_chips, loop_roles
from go_opt.model.graph import Graph
from go_opt.model.plan import Candidate, Plan
from tests.benchmarks.calibrate_machines import SHEET, Machine, drawn, planned
from tests.benchmarks.whole_graph_lessons import Lesson, lesson_of
from tests.benchmarks.whole_graph_network import Trained

TRAINING = ("mobilenet_v2", "resnet50", "squeezenet", "efficientnet_b0")
TESTED = ("densenet121", "unet_segmentation", "vit_b16")
PLANS, SAMPLES, SEEDS = 80, 20, 3
NETWORKS = {"GraphSAGE": 0, "GraphSAGE by segments": 128}  # ops of a segment
Pool = tuple[Graph, list[Plan], NDArray]  # and measured seconds
Predictions = Iterator[tuple[str, NDArray, NDArray]]  # method, predicted and measured seconds


def pool_of(name: str, machine: Machine) -> Pool:
    graph, rng, plans = go_opt.load(f"zoo:{name}"), np.random.default_rng(machine.number), {}
    for i in range(PLANS):
        spread = rng.choice([0.1, 0.3, 1.0])
        noise = dict(zip(graph.op_names, np.exp(spread * rng.standard_normal(graph.num_ops)), strict=True))

        def disturbed(graph: Graph, shaped_s: NDArray, noise: dict[str, float] = noise) -> NDArray:
            factors = np.array([noise.get(name, 1.0) for name in graph.op_names])
            return machine.op_s(graph, shaped_s) * factors

        plan = planned(graph, machine.target, disturbed, i, int(rng.integers(2, 7)))
        plans[machine.interval_s(graph, plan)] = plan
    plans.pop(np.inf, None)
    return graph, list(plans.values()), np.array(list(plans))


def predicted(graph: Graph, on: Any, plans: Sequence[Plan]) -> NDArray:
    there = [replace(plan, target_fingerprint=on.fingerprint) for plan in plans]
    return np.array([evaluate_plan(graph, on, plan).interval_s for plan in there])


def features(graph: Graph, plan: Plan) -> list[float]:
    metrics = evaluate_plan(graph, SHEET, replace(plan, target_fingerprint=SHEET.fingerprint))
    chip_s, link_s = np.sort(metrics.compute_s)[::-1], np.sort(metrics.link_s)[::-1]
    busy = chip_s[chip_s > 0]
    shares = [*(chip_s[:5] / chip_s[0]), *(link_s[:3] / chip_s[0]), busy.mean() / chip_s[0]]
    counts = [len(busy), len(np.unique(plan.fusion_group)), plan.replication.max(), plan.replication.mean()]
    sizes = [chip_s[0], metrics.stream_bytes.sum() + 1.0, metrics.peak_bytes.max() + 1.0, graph.num_ops]
    return [*shares, *counts, *np.log(sizes), len(plan.relays)]


def boosted(pools: Sequence[Pool]) -> lightgbm.Booster:
    rows = [features(graph, plan) for graph, plans, _ in pools for plan in plans]
    labels = np.concatenate([np.log(seconds / analytical(graph, plans)) for graph, plans, seconds in pools])
    options = {
        "num_leaves": 15,
        "min_data_in_leaf": 5,
        "learning_rate": 0.05,
        "verbose": -1,
        "num_threads": 1,
    }
    return lightgbm.train(options | {"seed": 0}, lightgbm.Dataset(np.array(rows), labels), 200)


def analytical(graph: Graph, plans: Sequence[Plan]) -> NDArray:
    seconds = predicted(graph, SHEET, plans)
    return np.where(np.isfinite(seconds), seconds, 1.0)


def by_whole_graph(model: lightgbm.Booster, graph: Graph, plans: Sequence[Plan]) -> NDArray:
    rows = np.array([features(graph, plan) for plan in plans])
    return analytical(graph, plans) * np.exp(model.predict(rows, num_threads=1))


def scores(said_s: NDArray, measured_s: NDArray) -> dict[str, float]:
    order = np.argsort(said_s, kind="stable")
    slow = {f"top{k}": float(measured_s[order[:k]].min() / measured_s.min() - 1) for k in (1, 5, 10)}
    return {"tau": float(np.nan_to_num(kendalltau(said_s, measured_s).statistic))} | slow


def networks(lessons: Sequence[Lesson]) -> dict[str, list[Trained]]:
    """By method, one for each seed."""
    return {
        method: [Trained(lessons, segment, seed).train() for seed in range(SEEDS)]
        for method, segment in NETWORKS.items()
    }


def predictions(
    machine: Machine, name: str, others: Sequence[Pool], nets: dict[str, list[Trained]]
) -> Predictions:
    graph, plans, measured_s = pool_of(name, machine)
    half = np.random.default_rng(0).permutation(len(plans))[: len(plans) // 2]
    rest = np.setdiff1d(np.arange(len(plans)), half)
    known, tested, true_s = [plans[i] for i in half], [plans[i] for i in rest], measured_s[rest]
    yield "analytical", predicted(graph, SHEET, tested), true_s
    own = {"other graphs": boosted(others), "own configurations": boosted([(graph, known, measured_s[half])])}
    for data, model in own.items():
        yield f"lightgbm, {data}", by_whole_graph(model, graph, tested), true_s
    lesson = lesson_of(graph, tested, true_s)
    trained = {
        "other graphs": nets,
        "own configurations": networks([lesson_of(graph, known, measured_s[half])]),
    }
    for data, by_method in trained.items():
        for method, of_seeds in by_method.items():
            for net in of_seeds:
                yield f"{method}, {data}", net.predicted_s(lesson), true_s
    with tempfile.TemporaryDirectory() as folder:
        calibration = Calibration(graph, SHEET, machine, Path(folder) / "samples", machine=machine.target)
        *_, found = calibration.run(SAMPLES)
    yield f"calibrate, {SAMPLES} samples", predicted(graph, found.target, tested), true_s


def cut_evenly(graph: Graph, numbers: Sequence[int]) -> Iterator[Plan]:
    """Plans of so many chips, each with as many ops."""
    order, roles = np.arange(graph.num_ops, dtype=np.int32), loop_roles(graph)
    for chips in numbers:
        placement = (order.astype(np.int64) * chips // graph.num_ops).astype(np.int32)
        yield Candidate("evenly", placement, order, fused_within_chips(roles, order, placement)).plan(
            graph, SHEET
        )


def measure_update(segment: int) -> None:
    """Processor time (median of 7) and memory of an update, with four configurations."""
    graph = go_opt.load("zoo:gnmt_8")
    plans = list(cut_evenly(graph, (12, 20, 28, 36)))
    trained = Trained([lesson_of(graph, plans, np.ones(len(plans)))], segment, 0, batch=len(plans))
    before, (update, state) = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, trained.update(100)
    seconds = []
    for _ in range(8):  # the first compiles
        begun_s = time.process_time()
        state = jax.block_until_ready(trained.step(update, *state))
        seconds.append(time.process_time() - begun_s)
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    buffers = trained.memory_bytes()
    print(
        f"{graph.num_ops} ops, segments of {segment or graph.num_ops}: {np.median(seconds[1:]):.3f} s, "
        f"buffers {buffers / 1e6:.1f} MB, process {grown / 1e3:.0f} MB"
    )


def report(rows: Sequence[dict[str, Any]]) -> None:
    for method in dict.fromkeys(row["method"] for row in rows):
        these = [row for row in rows if row["method"] == method]
        means = {field: np.mean([row[field] for row in these]) for field in ("tau", "top1", "top5", "top10")}
        print(f"{method:42s} {len(these):3d}", *(f"{field} {mean:.3f}" for field, mean in means.items()))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, default=Path("whole.jsonl"))
    parser.add_argument("--report", action="store_true")
    parser.add_argument("--machines", type=int, nargs="+", default=[0, 1])
    parser.add_argument("--graphs", nargs="+", default=TESTED)
    parser.add_argument("--update", type=int)
    options = parser.parse_args()
    if options.update is not None:
        measure_update(options.update)
        return
    if options.report:
        report([json.loads(line) for line in options.out.read_text().splitlines()])
        return
    for number in options.machines:
        machine, begun_s = drawn(number), time.process_time()
        others = [pool_of(name, machine) for name in TRAINING]
        nets = networks([lesson_of(*pool) for pool in others])
        for name in options.graphs:
            for method, said_s, true_s in predictions(machine, name, others, nets):
                row = {"machine": number, "graph": name, "plans": len(true_s), "method": method}
                with options.out.open("a") as file:
                    file.write(json.dumps(row | scores(said_s, true_s)) + "\n")
        print(f"machine {number}: {time.process_time() - begun_s:.0f} s of processor", flush=True)


if __name__ == "__main__":
    main()
