"""How often the full-rule SAMPLE meets a dead end, per shipped graph.

Run: PYTHONPATH=. python tests/benchmarks/bench_dead_ends.py [--samples 40] [graph ...]

Kernels of the default greedy fusion on ``mcm-6x6``. Policies: ``uniform``, and ``peaked``: each
unit prefers the chip at its share of the depth, log-probability -|distance| / 2. Columns per
policy: percent of draws without one backtrack, percent done by the engine within the
budget, percent that fell back to the adjacent core; milliseconds a draw. Asserts that every
placement obeys every rule.
"""

from __future__ import annotations

import argparse
import time

import numpy as np

from go_opt.env import greedy_fusion, load_target, loop_roles
from go_opt.env.zoo import load_zoo
from go_opt.solver.problem.problem import placement_problem
from go_opt.solver.propagation.modes import MAX_BACKTRACKS, sample
from go_opt.solver.propagation.propagators import rule_tables
from go_opt.solver.propagation.search import holds
from tests.zoo import zoo_sample


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("graphs", nargs="*")
    parser.add_argument("--samples", type=int, default=40)
    parser.add_argument("--backtracks", type=int, default=MAX_BACKTRACKS)
    arguments = parser.parse_args()
    print(f"{'':17} {'uniform':^28} {'peaked':^28}")
    print(f"{'graph':>17}" + f" {'no b.t.':>7} {'engine':>6} {'fell b.':>6} {'ms':>6}" * 2)
    for name in arguments.graphs or zoo_sample():
        problem = zoo_problem(name)
        cells = [measure(problem, rows, arguments) for rows in policies(problem)]
        print(f"{name:>17}" + "".join(cells), flush=True)


def zoo_problem(name):
    graph = load_zoo(name)
    group = greedy_fusion(loop_roles(graph), np.arange(graph.num_ops, dtype=np.int32))
    return placement_problem(graph, load_target("mcm-6x6"), group)


def policies(problem):
    place = np.empty(problem.num_units)
    place[problem.topological] = np.arange(problem.num_units)
    wanted = place * problem.num_chips / problem.num_units
    yield np.zeros((problem.num_units, problem.num_chips))
    yield -np.abs(wanted[:, None] - np.arange(problem.num_chips)) / 2


def measure(problem, rows, arguments) -> str:
    tables = rule_tables(problem)
    settings = {"max_backtracks": arguments.backtracks, "tables": tables}
    sample(problem, rows, num_samples=1, **settings)
    start = time.perf_counter()
    drawn = sample(problem, rows, seed=1, num_samples=arguments.samples, **settings)
    seconds = time.perf_counter() - start
    assert drawn.found.all()
    assert all(holds(tables, placement) for placement in drawn.placement)
    shares = (~drawn.backtracked, ~drawn.fell_back, drawn.fell_back)
    figures = [100 * float(share.mean()) for share in shares]
    return " {:7.0f} {:6.0f} {:6.0f} {:6.1f}".format(*figures, seconds / arguments.samples * 1e3)


if __name__ == "__main__":
    main()
