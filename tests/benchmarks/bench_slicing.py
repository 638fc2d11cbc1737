"""Time of one slicing, both objectives, without relays and with, 100 to 50,000 ops.

Run: python tests/benchmarks/bench_slicing.py

One kernel per op, so that a sequence is as long as its graph has ops.

Asserts that every slicing passes the verifier and that its cost is what the environment
says. Prints milliseconds for costing the sequence and slicing it, with the growth from
size to size (10 = linear from 1,000 to 10,000). Target: 5 ms at 1,000 ops, 50 ms at
10,000, both objectives. With relays, where one block in twenty reads from far away: 10 ms at
1,000 ops, 0.5 s at 10,000; at 50,000 no memory holds all that passes.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import replace
from functools import partial

import numpy as np
from chains import branchy_graph
from measuring import best_s

from go_opt.env import cost_tables, evaluate_plan, load_target
from go_opt.model.plan import Candidate
from go_opt.solver import slice_order
from go_opt.solver.copies.relays import needed_relays, relays_of_arrays
from go_opt.solver.verify.verifier import verify

SIZES = (100, 1_000, 10_000, 50_000)
FAR_READS = 0.05


def main() -> None:
    print(f"{'objective':>10} {'relays':>7} {'ops':>7} {'ms':>8} {'growth':>7} {'chips':>6} {'us':>9}")
    for overlap, is_relayed in itertools.product((True, False), (False, True)):
        target = replace(load_target("mcm-6x6"), overlap=overlap)
        before = math.nan
        for num_ops in SIZES[:-1] if is_relayed else SIZES:
            graph = branchy_graph(num_ops, far_reads=FAR_READS if is_relayed else 0.0)
            tables = cost_tables(graph, target)
            order = np.arange(num_ops, dtype=np.int32)
            group = order  # one kernel per op: the longest sequence there is
            cut = partial(slice_order, forwarding="relayed" if is_relayed else "adjacent")
            run = partial(cut, tables, order, group)
            slicing = run()
            assert_answer(graph, target, order, group, slicing, is_relayed)
            seconds, _ = best_s(run)
            name = "overlapped" if overlap else "summed"
            print(
                f"{name:>10} {'yes' if is_relayed else 'no':>7} {num_ops:7d} {seconds * 1e3:8.2f} "
                f"{seconds / before:7.1f} {slicing.placement.max() + 1:6d} {slicing.interval_s * 1e6:9.1f}"
            )
            before = seconds


def assert_answer(graph, target, order, group, slicing, is_relayed) -> None:
    plan = Candidate("benchmark", slicing.placement, order, group).plan(graph, target)
    if is_relayed:
        copies = needed_relays(cost_tables(graph, target), slicing.placement, target.constraints.triangle)
        plan = replace(plan, relays=relays_of_arrays(graph, *copies))
    metrics = evaluate_plan(graph, target, plan)
    assert verify(graph, target, plan) == []
    assert metrics.stream_bytes.any() or math.isclose(metrics.interval_s, slicing.interval_s, rel_tol=1e-9)


if __name__ == "__main__":
    main()
