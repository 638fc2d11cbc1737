"""Compile, while an image is built, what the service runs: kernels, and the policy for usual sizes.

The policy is compiled for each shape that graphs and packages are padded to; others are
compiled when they are first met.
"""

from __future__ import annotations

import go_opt
from go_opt.env.zoo import zoo_entries

TARGETS = ("gpu-8", "mcm-6x6")
MOST_OPS = 4096
# A limit of evaluations and none of time has the search wait for the policy.
MAX_EVALUATIONS = 24


def one_graph_of_each_shape() -> list[str]:
    """Names of zoo graphs: the smallest of each shape up to the largest size."""
    shapes: dict[tuple[int, int], str] = {}
    for entry in sorted(zoo_entries(), key=lambda entry: entry.ops):
        if entry.ops <= MOST_OPS:
            shapes.setdefault((_power_of_two(entry.ops), _power_of_two(entry.edges)), entry.name)
    return list(shapes.values())


def _power_of_two(number: int) -> int:
    return max(128, 1 << (number - 1).bit_length())


def main() -> None:
    for name in one_graph_of_each_shape():
        graph = go_opt.load(f"zoo:{name}")
        for target in TARGETS:
            result = go_opt.optimize(graph, target, max_evaluations=MAX_EVALUATIONS)
            print(f"{name} on {target}: {result.wall_s:.1f} s", flush=True)
    go_opt.optimize(graph, target, objective="latency", max_evaluations=MAX_EVALUATIONS)
    go_opt.evaluate(graph, target, result.plan, fidelity="simulated", seed=0)


if __name__ == "__main__":
    main()
