"""Evaluations per second, and bytes moved against what the machine can copy.

Run: python tests/benchmarks/bench_evaluation.py

Asserts that a batch answers what single evaluations answer. Prints plans per second on
one core for graphs of 100 to 50,000 ops, nanoseconds per op (level = linear), and the
bytes of the tables and plans walked per second as a share of the copy bandwidth
measured in the same run. Target: 10,000 plans/s at 1,000 ops.
"""

from __future__ import annotations

import numpy as np
from chains import branchy_graph
from measuring import best_s

from go_opt.env import cost_tables, evaluate_batch, greedy_fusion, load_target, loop_roles

SIZES = (100, 1_000, 10_000, 50_000)


def main() -> None:
    copied_per_s = copy_bytes_per_s()
    print(f"copy bandwidth {copied_per_s / 1e9:.1f} GB/s (read + written)")
    print(f"{'ops':>7} {'plans/s':>10} {'ns/op':>7} {'GB/s walked':>12} {'of copy':>8}")
    for num_ops in SIZES:
        tables, plans = problem(num_ops, batch=max(2, 20_000 // num_ops))
        assert_batch_equals_singles(tables, plans)
        seconds, _ = best_s(lambda tables=tables, plans=plans: evaluate_batch(tables, *plans))
        plans_per_s = len(plans[0]) / seconds
        walked = walked_bytes(tables, plans) / seconds
        print(
            f"{num_ops:7d} {plans_per_s:10.0f} {1e9 / plans_per_s / num_ops:7.1f} "
            f"{walked / 1e9:12.2f} {walked / copied_per_s:8.1%}"
        )


def problem(num_ops: int, batch: int):
    graph, target = branchy_graph(num_ops), load_target("mcm-6x6")
    order = np.arange(num_ops, dtype=np.int32)
    group = greedy_fusion(loop_roles(graph), order)
    # Cuts at other places in every plan, so that no plan profits from the one before.
    rng = np.random.default_rng(0)
    cuts = np.sort(rng.integers(0, num_ops, size=(batch, 35)), axis=1)
    placement = np.stack([np.searchsorted(row, order, side="right") for row in cuts]).astype(np.int32)
    # A kernel lies on one chip: the chip of its first op.
    first = np.unique(group, return_index=True)[1]
    return cost_tables(graph, target), (
        placement[:, first[group]],
        np.tile(order, (batch, 1)),
        np.tile(group, (batch, 1)),
    )


def assert_batch_equals_singles(tables, plans) -> None:
    together = evaluate_batch(tables, *plans)
    for b in (0, len(plans[0]) - 1):
        alone = evaluate_batch(tables, *(array[b : b + 1] for array in plans))
        for whole, single in zip(together, alone, strict=True):
            assert np.array_equal(whole[b], single[0])


def walked_bytes(tables, plans) -> int:
    """Bytes of every array an evaluation reads at least once, scratch left out."""
    arrays = [field for field in tables if isinstance(field, np.ndarray)]
    per_plan = sum(array.nbytes for array in arrays) + sum(array[0].nbytes for array in plans)
    return per_plan * len(plans[0])


def copy_bytes_per_s() -> float:
    source = np.ones(64_000_000, dtype=np.int8)
    destination = np.empty_like(source)
    return 2 * source.nbytes / best_s(lambda: np.copyto(destination, source))[0]


if __name__ == "__main__":
    main()
