"""What remembered plans are worth on large graphs: the same search with and without them.

    python tests/benchmarks/bench_plan_store.py [--budget 1] [--seeds 3]

Each graph is planned once for `mcm-6x6` (``--first`` seconds), and its plan is kept in an empty folder. Then
it is planned for a package with other chips, links, memory or compute, cold and with what is remembered. A
quotient above 1 is a gain. Both searches of a pair run one after the other in one process.
"""

from __future__ import annotations

import argparse
import re
import shutil
import statistics
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Final

import numpy as np

import go_opt
from go_opt.env import Target, load_target, parse_target
from go_opt.env.target import first_chips, target_text

GRAPHS: Final = ("gnmt_2", "gnmt_4", "rnnlm_2x2048", "rnnlm_8x2048", "elmo")


def scaled(pattern: str, factor: float) -> Callable[[], Target]:
    """The package with the figures of these lines multiplied."""

    def target() -> Target:
        text = re.sub(
            rf"(?m)^({pattern}) = ([0-9_.e]+)",
            lambda line: f"{line[1]} = {type(number := eval(line[2]))(number * factor)!r}",
            target_text("mcm-6x6"),
        )
        return parse_target(text, "bench_plan_store")

    return target


CHANGES: Final = {
    "24 chips": lambda: first_chips(load_target("mcm-6x6"), 24),
    "links x 0.5": scaled("rate_bytes_per_s", 0.5),
    "memory x 1.25": scaled("sram_bytes", 1.25),
    "compute x 2": scaled("int8|bfloat16|default", 2.0),
}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--budget", type=float, default=1.0)
    parser.add_argument("--first", type=float, default=5.0)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--graphs", nargs="+", default=GRAPHS)
    options = parser.parse_args()
    gains = []
    for name in options.graphs:
        graph = go_opt.load(f"zoo:{name}")
        with tempfile.TemporaryDirectory() as kept:
            first = interval_us(graph, load_target("mcm-6x6"), options.first, 0, kept)
            print(f"{name}: {graph.num_ops} ops, {first:.1f} us on mcm-6x6", flush=True)
            for change, target in CHANGES.items():
                pairs = [pair(graph, target(), options.budget, seed, kept) for seed in range(options.seeds)]
                gain = statistics.median(cold / warm for cold, warm in pairs)
                gains.append(gain)
                shown = "  ".join(f"{cold:.1f} -> {warm:.1f}" for cold, warm in pairs)
                print(f"  {change:14} {gain:6.3f}   {shown}", flush=True)
    mean = float(np.exp(np.mean(np.log(gains))))
    print(f"{len(gains)} cases: geometric mean {mean:.3f}, {min(gains):.3f} to {max(gains):.3f}")


def pair(graph: go_opt.Graph, target: Target, budget_s: float, seed: int, kept: str) -> tuple[float, float]:
    cold = interval_us(graph, target, budget_s, seed, None)
    with tempfile.TemporaryDirectory() as folder:  # what this search adds is not there for the next
        shutil.copytree(kept, folder, dirs_exist_ok=True)
        return cold, interval_us(graph, target, budget_s, seed, folder)


def interval_us(
    graph: go_opt.Graph, target: Target, budget_s: float, seed: int, folder: str | Path | None
) -> float:
    result = go_opt.optimize(graph, target, budget_s=budget_s, seed=seed, remember=folder, simulate=False)
    assert go_opt.verify(graph, target, result.plan) == []
    return result.metrics.interval_s * 1e6


if __name__ == "__main__":
    main()
