"""Layers over mixed GPUs: our plans and bounds against the logs of Helix's program.

    python tests/benchmarks/bench_helix.py [--data DIR] [--budget SECONDS] [ROW …]

Helix (ASPLOS 2025) solves a mixed-integer program with Gurobi on 20 threads; its logs were stopped by hand.
Both are costed by its own model: tokens per second by layers held, rates of links, maximum flow. Fails where
a plan is below Helix's, where it does not hold by networkx's maximum flow, or where the smallest cluster is
not proven.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Final

from go_opt.serving.mixed.search import plan_ranges
from tests.benchmarks.helix import case_of

# Cluster, table of tokens, model, whether links are pruned; Helix's best and bound, and its seconds.
ROWS: Final = {
    "10 nodes": ("cluster10", "c10", "30B", False, 286.587, 286.587, 3803),
    "24 nodes": ("3cluster24", "c24", "70B", False, 952.107, 69612.5, 2901),
    "24 nodes, pruned": ("3cluster24", "c24", "70B", True, 1212.177, 45697.2, 8240),
    "42 nodes": ("cluster42", "c42", "70B", False, 4892.242, 275073.4, 4382),
    "42 nodes, pruned": ("cluster42", "c42", "70B", True, 4137.548, 91951.0, 3035),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("rows", nargs="*", help=f"of {', '.join(ROWS)}")
    parser.add_argument("--data", type=Path, default=Path("../shared/data/helix"))
    parser.add_argument("--budget", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    print("| | Helix, tokens/s | its gap | its seconds | ours | bound | gap | seconds | status |")
    print("|---|---|---|---|---|---|---|---|---|")
    for name in given.rows or ROWS:
        cluster, tokens, model, is_pruned, theirs, bound, seconds = ROWS[name]
        case = case_of(given.data / f"{cluster}.ini", tokens, model, is_pruned=is_pruned)
        plan = plan_ranges(case, given.budget, given.seed)
        assert not plan.verify(), plan.verify()
        assert plan.throughput_per_s >= theirs * (1 - 1e-5), (name, plan.throughput_per_s)
        assert name != "10 nodes" or (plan.status == "OPTIMAL" and plan.wall_s <= 10.0), plan.wall_s
        ours = f"{plan.throughput_per_s:,.1f} | {plan.bound_per_s:,.1f} | {plan.gap:.1%} | {plan.wall_s:.1f}"
        print(
            f"| {name} | {theirs:,.1f} | {bound / theirs - 1:.0%} | {seconds:,} | {ours} | {plan.status} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
