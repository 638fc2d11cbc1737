"""The makespan of graphs of the scheduling literature, by rivals and by the portfolio.

Run: PYTHONPATH=. python tests/benchmarks/bench_synthetic.py [--budget 1s] [--seeds 0] [--families NAME,...]
     [--ratios 0.1,1,4] [--targets gpu-4,gpu-8]

Graphs of 150 to 259 tasks with random seconds (20 to 180 us) and tensors. *ratio* is the mean seconds of a
transfer over those of a task. Every method has the budget, a second of which is two of processor time; HEFT,
PEFT and the critical path end at once. *random* draws placements. The last line has geometric means of their
makespan over the portfolio's, and the least ones.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable
from typing import Final
from unittest.mock import patch

import numpy as np

import go_opt
from go_opt.common.units import parse_duration_s
from go_opt.env import Target
from go_opt.model.builder import GraphBuilder
from go_opt.model.graph import Graph
from tests.benchmarks import go_table_rivals as rivals
from tests.benchmarks.bench_leave_one_out import processor_clock
from tests.benchmarks.go_table_kernels import FUSIONS, Best, Kernels, kernels_of
from tests.benchmarks.measuring import header, row

TASK_S: Final = 100e-6
ELEMENTS_PER_S: Final = 150e9  # of two bytes, over a link of the GPU nodes
REHEARSED: Final = 20

Reads = list[list[int]]  # of each task, the earlier tasks that it reads


def layered(rng: np.random.Generator) -> Reads:
    reads: Reads = [[] for _ in range(8)]
    before = range(8)
    while len(reads) < 200:
        layer = range(len(reads), len(reads) + int(rng.integers(2, 24)))
        for _ in layer:
            read = [task for task in before if rng.random() < 0.25]
            reads.append(read or [before[int(rng.integers(len(before)))]])
        before = layer
    return reads


def butterflies(rng: np.random.Generator) -> Reads:
    """A fast Fourier transform of 32 points, behind its tree of calls."""
    reads: Reads = [[]]
    for task in range(1, 63):
        reads.append([(task - 1) // 2])
    first = 31
    for level in range(5):
        behind = len(reads)
        reads += [[first + i, first + (i ^ (1 << level))] for i in range(32)]
        first = behind
    return reads


def gaussian_elimination(rng: np.random.Generator) -> Reads:
    last: dict[int, int] = {}
    reads: Reads = []
    for pivot in range(19):
        for column in range(pivot, 20):
            wanted = {last[one] for one in (column, pivot) if one in last}
            reads.append(sorted(wanted))
            last[column] = len(reads) - 1
    return reads


def cholesky(rng: np.random.Generator) -> Reads:
    """Of 10 x 10 tiles."""
    last: dict[tuple[int, int], int] = {}
    reads: Reads = []

    def add(*tiles: tuple[int, int]) -> None:
        reads.append(sorted({last[tile] for tile in tiles if tile in last}))
        last[tiles[-1]] = len(reads) - 1

    for k in range(10):
        add((k, k))
        for i in range(k + 1, 10):
            add((k, k), (i, k))
        for i in range(k + 1, 10):
            for j in range(k + 1, i + 1):
                add((i, k), (j, k), (i, j))
    return reads


def montage(rng: np.random.Generator) -> Reads:
    reads: Reads = [[] for _ in range(40)]
    reads += [[i, (i + step) % 40] for i in range(40) for step in (1, 2)]
    reads += [list(range(40, 120)), [120]]
    reads += [[121, i] for i in range(40)]
    return [*reads, list(range(122, 162)), [162], [163], [164]]


def cells(rng: np.random.Generator) -> Reads:
    """Inception: ten blocks of five branches."""
    reads: Reads = [[]]
    for _ in range(10):
        begin, ends = len(reads) - 1, []
        for length in (1, 3, 5, 2, 4):
            before = begin
            for _ in range(length + int(rng.integers(2))):
                reads.append([before])
                before = len(reads) - 1
            ends.append(before)
        reads.append(ends)
    return reads


def recurrent(rng: np.random.Generator) -> Reads:
    """Six layers in 25 steps."""
    return [[6 * t + layer - far for far, ok in ((6, t), (1, layer)) if ok]
            for t in range(25) for layer in range(6)]  # fmt: skip


def attention(rng: np.random.Generator) -> Reads:
    """Six layers of eight heads."""
    reads: Reads = [[]]
    for _ in range(6):
        begin, ends = len(reads) - 1, []
        for _ in range(8):
            q = len(reads)
            reads += [[begin], [begin], [begin], [q, q + 1], [q + 3, q + 2]]
            ends.append(q + 4)
        joined = len(reads)
        reads += [[begin, *ends], [joined], [joined, joined + 1]]
    return reads


FAMILIES: Final[dict[str, Callable[[np.random.Generator], Reads]]] = {
    one.__name__: one
    for one in (
        layered, butterflies, gaussian_elimination, cholesky, montage, cells, recurrent, attention,
    )
}  # fmt: skip


def graph_of(family: str, ratio: float, seed: int = 1) -> Graph:
    rng = np.random.default_rng((seed, *family.encode()))
    builder = GraphBuilder(f"{family}, {ratio}")
    for task, reads in enumerate(FAMILIES[family](rng)):
        seconds, elements = TASK_S * rng.uniform(0.2, 1.8), ratio * TASK_S * ELEMENTS_PER_S
        writes = [(f"t{task}", max(1, int(elements * rng.uniform(0.2, 1.8))), "bfloat16")]
        builder.add_op(
            f"task{task}", "Task", "vector", flops=0.0, dtype="bfloat16",
            reads=[(f"t{one}", None) for one in reads], writes=writes, measured_s={"gpu": seconds},
        )  # fmt: skip
    return builder.build()


def draws(fusions: list[Kernels], best: Best, seed: int, left_s: Callable[[], float]) -> None:
    """Random placements on some of the devices."""
    rng = np.random.default_rng(seed)
    while best.plan is None or left_s() > 0:
        for kernels in fusions:
            used = int(rng.integers(1, kernels.num_devices + 1))
            chips = rng.integers(0, used, kernels.num_kernels).astype(np.int32)
            best.add_scheduled(kernels, chips, "random")


RIVALS: Final[dict[str, rivals.Search]] = {
    "HEFT": rivals.heft, "PEFT": rivals.peft, "critical path": rivals.critical_path,
    "METIS": rivals.metis, "random": draws,
}  # fmt: skip


def portfolio_s(graph: Graph, target: Target, budget_s: float, seeds: list[int]) -> float:
    """The median over seeds."""
    found = []
    for seed in seeds:
        asked = {"objective": "latency", "policy": None, "seed": seed}
        go_opt.optimize(graph, target, max_evaluations=REHEARSED, **asked)
        with patch("time.monotonic", processor_clock):
            found.append(go_opt.optimize(graph, target, budget_s=budget_s, **asked).metrics.makespan_s)
    return statistics.median(found)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--budget", default="1s")
    parser.add_argument("--seeds", default="0")
    parser.add_argument("--families", default=",".join(FAMILIES))
    parser.add_argument("--ratios", default="0.1,1,4")
    parser.add_argument("--targets", default="gpu-4,gpu-8")
    options = parser.parse_args()
    budget_s, seeds = parse_duration_s(options.budget, "--budget"), [*map(int, options.seeds.split(","))]
    ratios: dict[str, list[float]] = {name: [] for name in RIVALS}
    header(["graph", "target", "portfolio, us", *RIVALS], texts=2)
    for family in options.families.split(","):
        for ratio, name in ((r, t) for r in options.ratios.split(",") for t in options.targets.split(",")):
            graph, target = graph_of(family, float(ratio)), go_opt.target(name)
            fusions = [kernels_of(graph, target, fusion) for fusion in FUSIONS]
            ours_s = portfolio_s(graph, target, budget_s, seeds)
            for rival, search in RIVALS.items():
                search(fusions, Best(), 0, lambda: 0.0)  # compiles
                best, ends_s = Best(), processor_clock() + budget_s
                search(fusions, best, 0, lambda ends_s=ends_s: ends_s - processor_clock())
                ratios[rival].append(best.makespan_s / ours_s)
            row(
                [
                    f"{family}, {ratio}",
                    name,
                    f"{ours_s * 1e6:.0f}",
                    *(f"{of[-1]:.3f}" for of in ratios.values()),
                ]
            )
    means = (f"{statistics.geometric_mean(of):.3f} (least {min(of):.4f})" for of in ratios.values())
    row(["mean", "", "", *means])


if __name__ == "__main__":
    main()
