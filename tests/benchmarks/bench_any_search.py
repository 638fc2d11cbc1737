"""The full matrix: every shipped target, eight zoo graphs, the main options; and every zoo graph in time.

    python tests/benchmarks/bench_any_search.py           # targets x graphs x options, few evaluations
    python tests/benchmarks/bench_any_search.py --budget 1  # all zoo graphs: do they end within budget + 2 s?

Prints a line for each search that fails or is late, then how many there were.
"""

from __future__ import annotations

import argparse
import os
import time
import traceback

from go_opt.env import load_target, load_zoo, target_names, zoo_entries
from tests.searches import GRAPHS, each_option, search

LATE_S = 2.0  # after the budget


def matrix(evaluations: int) -> tuple[int, int]:
    """Numbers of searches and of those that failed."""
    failed = number = 0
    for target in target_names():
        for name in GRAPHS:
            for options in each_option():
                number += 1
                try:
                    search(load_zoo(name), load_target(target), max_evaluations=evaluations, **options)
                except Exception:
                    failed += 1
                    print(f"failed: {name} on {target} {options}\n{traceback.format_exc()}", flush=True)
    return number, failed


def in_time(budget_s: float) -> tuple[int, int]:
    """Numbers of zoo graphs, from small to large, and of those that are late."""
    late, entries = 0, sorted(zoo_entries(), key=lambda entry: entry.ops)
    for number, entry in enumerate(entries):
        options = each_option()[number % len(each_option())]
        graph, target = load_zoo(entry.name), load_target(("mcm-6x6", "gpu-4")[number % 2])
        began_s, cpu_s = time.monotonic(), time.process_time()
        result = search(graph, target, budget_s=budget_s, **options)
        wall_s, cpu_s = time.monotonic() - began_s, time.process_time() - cpu_s
        clock_s = wall_s if result is None else result.wall_s
        if clock_s > budget_s + LATE_S:
            late += 1
            print(f"late: {entry.name} ({entry.ops} ops) on {target.name} {options}: {clock_s:.1f} s, "
                  f"{wall_s:.1f} s with compilation, {cpu_s:.1f} s of CPU", flush=True)  # fmt: skip
    return len(entries), late


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--budget", type=float, help="seconds for each zoo graph")
    parser.add_argument("--evaluations", type=int, default=12)
    given = parser.parse_args()
    os.environ["GO_OPT_RAISES"] = "1"
    number, bad = matrix(given.evaluations) if given.budget is None else in_time(given.budget)
    print(f"{number} searches, {bad} {'failed' if given.budget is None else 'late'}")


if __name__ == "__main__":
    main()
