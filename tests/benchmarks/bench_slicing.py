"""Time of one slicing, both objectives, 100 to 50,000 ops.

Run: python tests/benchmarks/bench_slicing.py

One kernel per op, so that a sequence is as long as its graph has ops.

Asserts that every slicing passes the verifier and that its cost is what the environment
says. Prints milliseconds for costing the sequence and slicing it, with the growth from
size to size (10 = linear from 1,000 to 10,000). Target: 5 ms at 1,000 ops, 50 ms at
10,000, both objectives.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
from bench_evaluation import best_s
from chains import branchy_graph

from go_opt.env import cost_tables, evaluate_plan, load_target
from go_opt.plan import Plan
from go_opt.solver import slice_order, verify

SIZES = (100, 1_000, 10_000, 50_000)


def main() -> None:
    print(f"{'objective':>10} {'ops':>7} {'ms':>8} {'growth':>7} {'chips':>6}")
    for overlap in (True, False):
        target = replace(load_target("mcm-6x6"), overlap=overlap)
        before = math.nan
        for num_ops in SIZES:
            graph = branchy_graph(num_ops)
            tables = cost_tables(graph, target)
            order = np.arange(num_ops, dtype=np.int32)
            group = order  # one kernel per op: the longest sequence there is

            def run(tables=tables, order=order, group=group):
                return slice_order(tables, order, group, adjacent=True)

            assert_answer(graph, target, order, group, run())
            seconds = best_s(run)
            name = "overlapped" if overlap else "summed"
            print(
                f"{name:>10} {num_ops:7d} {seconds * 1e3:8.2f} "
                f"{seconds / before:7.1f} {run().placement.max() + 1:6d}"
            )
            before = seconds


def assert_answer(graph, target, order, group, slicing) -> None:
    plan = Plan.create(
        graph,
        target.source,
        target.fingerprint,
        placement=slicing.placement,
        order=order,
        fusion_group=group,
        provenance="benchmark",
    )
    metrics = evaluate_plan(graph, target, plan)
    assert verify(graph, target, plan) == []
    assert metrics.stream_bytes.any() or math.isclose(metrics.interval_s, slicing.interval_s, rel_tol=1e-9)


if __name__ == "__main__":
    main()
