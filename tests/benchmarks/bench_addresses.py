"""How much memory the addresses of buffers cost: where they end, over the live bytes of the same chip.

Run: PYTHONPATH=. python tests/benchmarks/bench_addresses.py [--evaluations N] [--target NAME] [NAME ...]

Every graph of the zoo is planned with a limit on evaluations. Asserts that the buffers of a valid plan end
inside the chip's memory. Prints a line for each graph with holes between buffers, and a summary over chips
(one for each stage). *tight*: not everything fits side by side, so that addresses decide what fits.
"""

from __future__ import annotations

import argparse

import numpy as np

import go_opt
from go_opt.env import zoo_entries
from go_opt.env.copies.splits import planned_graph
from go_opt.env.peak_memory import plan_buffers
from go_opt.errors import InfeasibleError


def rows_of(name: str, target: go_opt.Target, evaluations: int) -> list[tuple[int, int, bool]]:
    """Where the buffers of each chip end, where they would without holes, and whether it is tight."""
    graph = go_opt.load(f"zoo:{name}")
    try:
        plan = go_opt.optimize(graph, target, max_evaluations=evaluations, policy=None).plan
    except InfeasibleError as error:
        print(f"{name}: {error}", flush=True)
        return []
    rows = []
    for chip in plan_buffers(planned_graph(graph, plan), target, plan):
        assert chip.end <= chip.sram_bytes, (name, chip.chip)
        beside = sum(buffer.size_bytes for buffer in chip.buffers)
        rows.append((chip.end, chip.least_end, beside > chip.sram_bytes))
    worst = max(end / max(least, 1) for end, least, _ in rows)
    if worst > 1:
        print(f"{name}: {len(rows)} chips, at most {worst - 1:.2%} above the live bytes", flush=True)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--evaluations", type=int, default=20)
    parser.add_argument("--target", default="mcm-6x6")
    options = parser.parse_args()
    target = go_opt.target(options.target)
    names = options.names or [entry.name for entry in zoo_entries()]
    found = [rows_of(name, target, options.evaluations) for name in names]
    rows = np.array([row for of_graph in found for row in of_graph])
    for what, chosen in (("all", rows), ("tight", rows[rows[:, 2] == 1])):
        above = chosen[:, 0] / np.maximum(chosen[:, 1], 1) - 1
        print(
            f"{what}: {len(chosen)} chips, {np.mean(above > 0):.1%} with holes; "
            f"above the live bytes on average {above.mean():.2%}, at most {above.max():.2%}"
        )


if __name__ == "__main__":
    main()
