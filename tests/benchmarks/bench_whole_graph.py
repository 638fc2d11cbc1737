"""Ranks of configurations of one graph: whole-graph prediction against models of kernels (as in TpuGraphs).

Configurations are plans made for the machine of calibrate_machines.py disturbed at random. LightGBM learns by
how much their intervals differ from the analytical model's, from features of whole plans: either of other
graphs on the same machine, or of half of the graph's own configurations. The target that go-opt calibrate
finds has 20 measurements. Slowdown: of the fastest of the first k by prediction, over the fastest of all.

    python tests/benchmarks/bench_whole_graph.py --out whole.jsonl      # then --report
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import lightgbm
import numpy as np
from numpy.typing import NDArray
from scipy.stats import kendalltau

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import go_opt
from go_opt.calibration.calibrating import Calibration
from go_opt.env import evaluate_plan
from go_opt.model.graph import Graph
from go_opt.model.plan import Plan
from tests.benchmarks.calibrate_machines import SHEET, Machine, drawn, planned

TRAINING = ("mobilenet_v2", "resnet50", "squeezenet", "efficientnet_b0")
TESTED = ("densenet121", "unet_segmentation", "vit_b16")
PLANS, SAMPLES = 80, 20
Pool = tuple[Graph, list[Plan], NDArray]  # and measured seconds


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
    return [*shares, *counts, *np.log(sizes), len(plan.relays), len(plan.clones)]


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


def rows_of(machine: Machine, name: str, learned: lightgbm.Booster) -> list[dict[str, Any]]:
    graph, plans, measured_s = pool_of(name, machine)
    half = np.random.default_rng(0).permutation(len(plans))[: len(plans) // 2]
    rest = np.setdiff1d(np.arange(len(plans)), half)
    own = boosted([(graph, [plans[i] for i in half], measured_s[half])])
    with tempfile.TemporaryDirectory() as folder:
        calibration = Calibration(graph, SHEET, machine, Path(folder) / "samples", machine=machine.target)
        *_, found = calibration.run(SAMPLES)
    tested = [plans[i] for i in rest]
    said = {
        "analytical": predicted(graph, SHEET, tested),
        f"calibrate, {SAMPLES} samples": predicted(graph, found.target, tested),
        "whole graph, other graphs": by_whole_graph(learned, graph, tested),
        "whole graph, own configurations": by_whole_graph(own, graph, tested),
    }
    key = {"machine": machine.number, "graph": name, "plans": len(tested)}
    return [key | {"method": method} | scores(seconds, measured_s[rest]) for method, seconds in said.items()]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--report", action="store_true")
    parser.add_argument("--machines", type=int, nargs="+", default=[0, 1])
    options = parser.parse_args()
    if options.report:
        rows = [json.loads(line) for line in options.out.read_text().splitlines()]
        for method in dict.fromkeys(row["method"] for row in rows):
            these = [row for row in rows if row["method"] == method]
            means = {
                field: np.mean([row[field] for row in these]) for field in ("tau", "top1", "top5", "top10")
            }
            print(f"{method:32s} {len(these)}", *(f"{field} {mean:.3f}" for field, mean in means.items()))
        return
    for number in options.machines:
        machine, begun_s = drawn(number), time.process_time()
        learned = boosted([pool_of(name, machine) for name in TRAINING])
        for name in TESTED:
            for row in rows_of(machine, name, learned):
                with options.out.open("a") as file:
                    file.write(json.dumps(row) + "\n")
        print(f"machine {number}: {time.process_time() - begun_s:.0f} s of processor", flush=True)


if __name__ == "__main__":
    main()
