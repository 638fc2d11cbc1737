"""Throughput on GPU nodes against as many copies of the best plan of one GPU; asserts never worse.

Run: PYTHONPATH=. python tests/benchmarks/bench_gpus.py [--budget 5 | --evaluations 40]
     [--targets gpu-2,FILE] [NAME ...]

On the graphs named, or the whole zoo. One GPU is the target's own file with a count of one, searched
with the same budget; its plan on every GPU of the node, each with every so many-th inference, is what
is to be beaten (with states, each GPU has as many sequences as the one). ``one / D`` is what that would
be were the host's link as many times faster, too. Intervals in microseconds, without a policy. Prints a
Markdown table.
"""

from __future__ import annotations

import argparse
import math
import re
import statistics
from dataclasses import replace

import numpy as np

import go_opt
from go_opt.env import Target, evaluate_plan, zoo_entries
from go_opt.env.target import parse_target, target_text
from go_opt.errors import InfeasibleError
from go_opt.model.graph import Graph, with_sequences
from go_opt.result import OptimizeResult

TARGETS = "gpu-2,gpu-4,gpu-8"


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("names", nargs="*", default=[entry.name for entry in zoo_entries()])
    parser.add_argument("--targets", default=TARGETS)
    parser.add_argument("--budget", type=float, default=5.0)
    parser.add_argument("--evaluations", type=int, help="instead of seconds")
    options = parser.parse_args()
    print("| graph | target | one / D | D copies | plan | gain | gap | chips | bottleneck | by |")
    print("|---|---|---:|---:|---:|---:|---:|---:|---|---|")
    gains: dict[str, list[float]] = {}
    for name in options.names:
        graph = go_opt.load(f"zoo:{name}")
        for target_name in options.targets.split(","):
            target = go_opt.target(target_name)
            one = _best(graph, one_gpu(target_name), options)
            best = _best(graph, target, options)
            if best is None:
                assert one is None, f"{name} fits one GPU of {target_name} and not all"
                print(f"| {name} | {target_name} | - | - | - | - | - | - | - | does not fit |", flush=True)
                continue
            has_copies = one is not None and not graph.has_scope("model")  # whose steps follow each other
            copies_s = copies_interval_s(graph, target, one) if one and has_copies else math.inf
            reached_s = best.metrics.interval_s
            assert reached_s <= copies_s * (1.0 + 1e-9), f"{name} on {target_name}: copies are better"
            gains.setdefault(target_name, []).append(copies_s / reached_s)
            one_s = math.inf if one is None else one.metrics.interval_s / target.num_chips
            in_us = " | ".join(f"{seconds * 1e6:.2f}" for seconds in (one_s, copies_s, reached_s))
            print(
                f"| {name} | {target_name} | {in_us} | {copies_s / reached_s:.3f}x | {best.gap:.1%} "
                f"| {best.plan.chips_used} | {best.metrics.bottleneck} | {best.method} |",
                flush=True,
            )
    for target_name, ratios in gains.items():
        fits = [ratio for ratio in ratios if math.isfinite(ratio)]
        mean = f"{statistics.geometric_mean(fits):.4f}x of D copies in the geometric mean"
        print(f"\n{target_name}: {len(fits)} graphs fit one GPU, {mean}")


def one_gpu(target_name: str) -> Target:
    """The target's file with one chip."""
    text, replaced = re.subn(r"(?m)^count = \d+$", "count = 1", target_text(target_name))
    assert replaced == 1, "a node of one kind"
    return parse_target(text, f"{target_name}-alone")


def copies_interval_s(graph: Graph, target: Target, one: OptimizeResult) -> float:
    """Of the plan of one GPU on all of ``target``, by turns."""
    sequences = one.plan.sequences * (target.num_chips if graph.states else 1)
    graph = with_sequences(graph, sequences)
    plan = replace(
        one.plan,
        replication=np.full(graph.num_ops, target.num_chips, dtype=np.int32),
        sequences=sequences,
        target=target.source,
        target_fingerprint=target.fingerprint,
    )
    assert go_opt.verify(graph, target, plan) == []
    return evaluate_plan(graph, target, plan).interval_s


def _best(graph: Graph, target: Target, options: argparse.Namespace) -> OptimizeResult | None:
    try:
        if options.evaluations:
            return go_opt.optimize(graph, target, max_evaluations=options.evaluations, policy="none")
        return go_opt.optimize(graph, target, budget_s=options.budget, policy="none")
    except InfeasibleError:
        return None


if __name__ == "__main__":
    main()
