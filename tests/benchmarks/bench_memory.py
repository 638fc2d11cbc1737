"""What memory as a decision is worth: with and without weights that replicas forward, for the same time.

Run: PYTHONPATH=. python tests/benchmarks/bench_memory.py [--budget SECONDS] [--seeds N] [--split test]
     [--ideal {activations,fetching}] [NAME ...]

Graphs are those named, by default those of a split. A second of the budget is two of processor time, as on
two cores with nothing else to do (not with ``--ideal``). Each is optimised in full and with stages whose
chips each stream for themselves; medians over seeds, simulated as well. *gain*: how many times the interval
is shorter. With ``--ideal`` the second answer is of a machine on which activations take no memory (more than
spilling or recomputing them could ever give), or which fetches all weights ahead. Asserts that plans are
verified and no better than their bounds, and that the simulator takes no less than the model. Prints a
Markdown table, a line as soon as it is known, and the mean.
"""

from __future__ import annotations

import argparse
import math
import statistics
from contextlib import nullcontext
from dataclasses import replace
from unittest.mock import patch

import numpy as np

import go_opt
from go_opt.env import zoo_entries
from go_opt.env.cost.tables import CostTables, tables
from go_opt.errors import InfeasibleError
from go_opt.model.graph import WEIGHT
from go_opt.result import OptimizeResult
from tests.benchmarks.bench_leave_one_out import no_slicing, processor_clock

COLUMNS = ("graph", "before, us", "gap", "now, us", "spread", "simulated", "gap", "gain", "host in", "status")
TARGET = go_opt.target("mcm-6x6")


def answers(name: str, budget_s: float, seeds: int, *, forwards: bool) -> list[OptimizeResult]:
    """By interval, the shortest first."""
    where = "go_opt.search.methods.slices.slice_order_forwarded"
    graph, found = go_opt.load(f"zoo:{name}"), []
    with nullcontext() if forwards else patch(where, no_slicing):
        for seed in range(seeds):
            try:
                with patch("time.monotonic", processor_clock):
                    result = go_opt.optimize(graph, TARGET, budget_s=budget_s, seed=seed, policy=None)
            except InfeasibleError:
                continue
            assert go_opt.verify(graph, TARGET, result.plan) == []
            assert result.objective_s >= result.lower_bound_s * (1 - 1e-9)
            found.append(result)
    return sorted(found, key=lambda result: result.metrics.interval_s)


def on_ideal(name: str, budget_s: float, ideal: str) -> float:
    """Print a line; how many times the interval is shorter where one limit of the machine is gone."""
    # Of another name, or it would take what is kept of the machine as it is.
    graph, target, make = go_opt.load(f"zoo:{name}"), replace(TARGET, name="ideal"), tables.CostTables
    if ideal == "fetching":
        target = replace(target, simulator=replace(target.simulator, weight_prefetch=True))

    def costs(**columns: np.ndarray) -> CostTables:
        made = make(**columns)
        if ideal == "fetching":
            return made
        return made._replace(stored_bytes=np.where(made.tensor_kind == WEIGHT, made.stored_bytes, 0))

    now = go_opt.optimize(graph, TARGET, budget_s=budget_s, policy=None)
    with patch("go_opt.env.cost.tables.CostTables", costs):
        then = go_opt.optimize(graph, target, budget_s=budget_s, policy=None, start=now.plan)
    gain = now.metrics.interval_s / then.metrics.interval_s
    print(f"| {name} | {in_us(now):.1f} | {in_us(then):.1f} | {gain:.2f}x |", flush=True)
    return gain


def in_us(result: OptimizeResult) -> float:
    """Its interval."""
    return result.metrics.interval_s * 1e6


def row(name: str, budget_s: float, seeds: int) -> float:
    """Print a line; how many times the interval is shorter."""
    graph = go_opt.load(f"zoo:{name}")
    before, now = (answers(name, budget_s, seeds, forwards=forwards) for forwards in (False, True))
    old, new = before[(len(before) - 1) // 2], now[(len(now) - 1) // 2]
    simulated_s = go_opt.evaluate(graph, TARGET, new.plan, fidelity="simulated").interval_s
    assert simulated_s >= new.metrics.interval_s * (1 - 2e-3)  # an average, where nothing repeats
    gain = old.metrics.interval_s / new.metrics.interval_s
    bound_s = max(result.lower_bound_s for result in now)
    host_share = float(new.metrics.link_s[-2]) / new.metrics.interval_s
    cells = (
        name, f"{in_us(old):.1f}", f"{old.metrics.interval_s / bound_s - 1:.1%}", f"{in_us(new):.1f}",
        f"{in_us(now[0]):.1f} to {in_us(now[-1]):.1f}", f"{simulated_s / new.metrics.interval_s:.3f}",
        f"{new.metrics.interval_s / bound_s - 1:.1%}", f"{gain:.2f}x", f"{host_share:.0%}", new.status,
    )  # fmt: skip
    print("| " + " | ".join(cells) + " |", flush=True)
    return gain


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--budget", type=float, default=10.0)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--split", default="test")
    parser.add_argument("--ideal", choices=("activations", "fetching"))
    options = parser.parse_args()
    names = options.names or [entry.name for entry in zoo_entries() if entry.split == options.split]
    if options.ideal:
        print(f"| graph | now, us | {options.ideal} ideal, us | gain |\n|---|---|---|---|")
        gains = [on_ideal(name, options.budget, options.ideal) for name in names]
    else:
        print("| " + " | ".join(COLUMNS) + " |\n|" + "---|" * len(COLUMNS))
        gains = [row(name, options.budget, options.seeds) for name in names]
    print(f"\ngeometric mean of the gain: {math.exp(statistics.fmean(map(math.log, gains))):.3f}x")


if __name__ == "__main__":
    main()
