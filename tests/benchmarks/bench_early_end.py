"""What does ending early save, and lose? Searches that go on, and where each would have ended.

python tests/benchmarks/bench_early_end.py --budget 10 [GRAPH...]
"""

from __future__ import annotations

import argparse
import math
from typing import Any

import numpy as np
import pytest

import go_opt
from go_opt.env import load_target, load_zoo, zoo_entries
from go_opt.result import OptimizeResult
from go_opt.search.shared.context import Gains

MOST_OPS = 1500
REQUESTS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("mcm-6x6", {}),
    ("gpu-4", {"objective": "latency"}),
    ("mcm-6x6", {"decide": "placement", "relays": False}),
)


def watched(
    name: str, target: str, budget_s: float, options: dict[str, Any]
) -> tuple[OptimizeResult, float, float]:
    """The answer; when the search would have ended, and with which objective."""
    ended: list[tuple[float, float]] = []
    are_over = Gains.are_over

    def watch(gains: Gains, evaluations: int) -> bool:
        if not ended and are_over(gains, evaluations):
            ended.append((gains._context.elapsed_s, gains._objective_s))
        return False

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Gains, "are_over", watch)
        graph, on = load_zoo(name), load_target(target)
        result = go_opt.optimize(
            graph, on, budget_s=budget_s, splits=False, simulate=False, policy=None, **options
        )
    at_s, objective_s = ended[0] if ended else (result.wall_s, result.objective_s)
    return result, at_s, objective_s


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("graphs", nargs="*", help="default: some of the train and validation split")
    parser.add_argument("--count", type=int, default=25)
    parser.add_argument("--budget", type=float, default=10.0)
    given = parser.parse_args()
    entries = [one for one in zoo_entries() if one.split != "test" and one.ops <= MOST_OPS]
    names = given.graphs or [one.name for one in entries[:: math.ceil(len(entries) / given.count)]]
    whole_s = saved_s = 0.0
    losses = []
    for number, name in enumerate(names):
        target, options = REQUESTS[number % len(REQUESTS)]
        result, at_s, objective_s = watched(name, target, given.budget, options)
        losses.append(max(1.0, objective_s / result.objective_s))
        whole_s, saved_s = whole_s + result.wall_s, saved_s + result.wall_s - at_s
        print(
            f"{name:24s} {target:8s} {options.get('decide', options.get('objective', ''))!s:10s} "
            f"{at_s:6.2f} of {result.wall_s:6.2f} s, loss {losses[-1]:.4f}, "
            f"gap {result.gap:.3f}, {result.status}, {result.evaluations} evaluations", flush=True,
        )  # fmt: skip
    mean = float(np.exp(np.mean(np.log(losses))))
    print(f"saves {saved_s:.1f} of {whole_s:.1f} s, mean loss {mean:.4f}, worst {max(losses):.4f}")


if __name__ == "__main__":
    main()
