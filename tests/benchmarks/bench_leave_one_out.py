"""What each method of the portfolio earns: the search without it, against the whole search.

Run: PYTHONPATH=. python tests/benchmarks/bench_leave_one_out.py --out FILE.jsonl
     [--budget 2s | --evaluations 100] [--seeds 0,1,2] [--graphs 40 | --only GRAPH,...] [--without NAME,...]
     [--no-replication | --strict | --target gpu-4 --objective latency]
     PYTHONPATH=. python tests/benchmarks/bench_leave_one_out.py --out FILE.jsonl --table

Without --only, training and validation graphs of up to 6,000 ops: the middle one of so many families,
which are taken at equal steps from the smallest to the largest. Every result is a line of the file;
what stands there is not run again, so a run goes on where it was stopped. A second of the budget is
two seconds of processor time, as on two cores with nothing else to do, so that other work on the
machine does not count. ``control`` leaves nothing out and has other seeds: what two runs differ by
without a reason. The search has no policy; ``with the policy`` and ``with an untrained policy`` add
one. The seeds after the first are run only on graphs where the first one ends half a
per cent elsewhere. The table has, for every method, the geometric mean of interval (for latency, of
makespan) without over that with it, the family that loses most, and the graphs that lose and gain
more than 1 % in the median of the seeds. Where no plan is found in time there is no row.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import time
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from typing import Any, Final
from unittest.mock import patch

import numpy as np

import go_opt
from go_opt.common.units import parse_duration_s
from go_opt.env import zoo_entries
from go_opt.errors import InfeasibleError
from go_opt.model.plan import Candidate
from go_opt.solver.slicing.slice import slice_order_forwarded

MOST_OPS: Final = 6_000
APART: Final = 0.01
CLOSE: Final = 0.005  # below it, other seeds are not asked
CORES: Final = 2  # that a search uses
CONTROL_SEEDS: Final = 1_000
FORWARDED: Final = "go_opt.search.methods.slices.slice_order_forwarded"
POLICIES: Final = {"with the policy": "default", "with an untrained policy": "untrained"}
Change = tuple[str, Any]  # what is replaced, by what


def processor_clock() -> float:
    """In place of the wall clock: seconds that the search's threads used, per core."""
    return time.process_time() / CORES


def no_slicing(*given: object, **rules: object) -> None:
    """In place of a slicing."""


def without_waiting(*given: Any, waits: bool = False, **rules: Any) -> Candidate | None:
    """In place of slicings with forwarded weights."""
    return None if waits else slice_order_forwarded(*given, **rules)


def changes() -> dict[str, list[Change]]:
    """By method, or part of one: what takes its place."""
    from go_opt.search import portfolio

    def without(*names: str) -> list[Change]:
        kept = tuple(method for method in portfolio.METHODS if method.name not in names)
        return [("go_opt.search.portfolio.METHODS", kept)]

    no_ops = lambda graph, target, request: np.zeros(graph.num_ops, np.bool_)  # noqa: E731
    return {
        "full": [],
        "control": [],
        **{name: [] for name in POLICIES},
        "splits": [("go_opt.search.optimizer.divisible_ops", no_ops)],
        "forwarded weights": [(FORWARDED, no_slicing)],
        "waiting counted": [(FORWARDED, without_waiting)],
        **{method.name: without(method.name) for method in portfolio.METHODS if method.when != "first"},
    }


def sample(count: int) -> list[Any]:
    """Training and validation graphs: the middle one of a family, for families of all sizes alike."""
    entries = [entry for entry in zoo_entries() if entry.split != "test" and entry.ops <= MOST_OPS]
    families: dict[str, list[Any]] = {}
    for entry in sorted(entries, key=lambda entry: (entry.ops, entry.name)):
        families.setdefault(entry.family, []).append(entry)
    middle = sorted((of[len(of) // 2] for of in families.values()), key=lambda entry: entry.ops)
    count = min(count, len(middle))
    return [middle[i * (len(middle) - 1) // max(count - 1, 1)] for i in range(count)]


def run_all(options: argparse.Namespace) -> None:
    without = options.without.split(",") if options.without else list(changes())
    first, *others = map(int, options.seeds.split(","))
    for name in without:
        for entry in _entries(options):
            _run(name, entry, first, options)
    for name in without:
        for entry in _entries(options):
            for seed in others if _is_apart(rows(options.out), name, entry.name, first) else ():
                _run("full", entry, seed, options)
                _run(name, entry, seed, options)


def _entries(options: argparse.Namespace) -> list[Any]:
    names = options.only.split(",")
    return [entry for entry in zoo_entries() if entry.name in names] or sample(options.graphs)


def _is_apart(found: list[dict[str, Any]], name: str, graph: str, seed: int) -> bool:
    """Whether the search without a method ends elsewhere than the whole one with this seed."""
    reached = {
        row["without"]: row["reached_s"] for row in found if (row["graph"], row["seed"]) == (graph, seed)
    }
    return {"full", name} <= set(reached) and abs(reached[name] / reached["full"] - 1.0) > CLOSE


def _run(name: str, entry: Any, seed: int, options: argparse.Namespace) -> None:
    """Append a row to the file, unless it is there."""
    if any(
        (row["without"], row["graph"], row["seed"]) == (name, entry.name, seed) for row in rows(options.out)
    ):
        return
    try:
        result = _searched(entry, name, seed, options)
    except InfeasibleError as error:
        print(name, entry.name, seed, error, flush=True)
        return
    is_latency = options.objective == "latency"
    reached_s = result.metrics.makespan_s if is_latency else result.metrics.interval_s
    row = {
        "without": name, "graph": entry.name, "family": entry.family, "ops": entry.ops, "seed": seed,
        "reached_s": reached_s, "bound_s": result.lower_bound_s,
        "status": result.status, "method": result.method, "wall_s": result.wall_s,
    }  # fmt: skip
    with open(options.out, "a", encoding="utf-8") as file:
        file.write(json.dumps(row) + "\n")
    print(name, entry.name, seed, f"{reached_s * 1e6:.3f} us", flush=True)


def _searched(entry: Any, name: str, seed: int, options: argparse.Namespace) -> Any:
    graph, target = go_opt.load(f"zoo:{entry.name}"), go_opt.target(options.target or entry.target)
    if name == "control":
        seed += CONTROL_SEEDS
    with ExitStack() as stack:
        stack.enter_context(patch("time.monotonic", processor_clock))
        for where, instead in changes()[name]:
            replaced: AbstractContextManager[Any] = patch(where, instead)
            stack.enter_context(replaced)
        return go_opt.optimize(
            graph,
            target,
            objective=options.objective,
            budget_s=None if options.evaluations else parse_duration_s(options.budget, "--budget"),
            max_evaluations=options.evaluations,
            seed=seed,
            policy=_policy(POLICIES.get(name), options.out),
            simulate=False,
            replication=options.replication,
            relays=not options.strict,
        )


def _policy(name: str | None, out: Path) -> str | None:
    """A policy to search with; the untrained one is written beside the results."""
    if name != "untrained":
        return name
    from go_opt.agents.networks import PolicyConfig
    from go_opt.agents.policy.network import save_policy, untrained

    path = out.with_name("untrained.safetensors")
    if not path.exists():
        config = PolicyConfig()
        save_policy(path, untrained(config, 0), {})
    return str(path)


def rows(path: Path) -> list[dict[str, Any]]:
    """What the file has so far."""
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()] if path.exists() else []


def print_table(found: list[dict[str, Any]]) -> None:
    reached = {(row["without"], row["graph"], row["seed"]): row for row in found}
    print("| without | graphs | interval | worst family | lose | gain | bound | largest loss |")
    print("|---|---:|---:|---|---:|---:|---:|---|")
    for name in dict.fromkeys(row["without"] for row in found):
        by_graph: dict[str, list[float]] = {}
        by_family: dict[str, list[float]] = {}
        bounds = []
        for (without, graph, seed), row in reached.items():
            full = reached.get(("full", graph, seed))
            if without != name or full is None or name == "full":
                continue
            by_graph.setdefault(graph, []).append(row["reached_s"] / full["reached_s"])
            bounds.append(row["bound_s"] / full["bound_s"])
        for graph, ratios in by_graph.items():
            family = next(row["family"] for row in found if row["graph"] == graph)
            by_family.setdefault(family, []).append(statistics.median(ratios))
        if not by_graph:
            continue
        medians = {graph: statistics.median(ratios) for graph, ratios in by_graph.items()}
        families = {family: statistics.geometric_mean(ratios) for family, ratios in by_family.items()}
        worst = max(families, key=families.__getitem__)
        worst_graph = max(medians, key=medians.__getitem__)
        lose = sum(ratio > 1.0 + APART for ratio in medians.values())
        gain = sum(ratio < 1.0 - APART for ratio in medians.values())
        print(
            f"| {name} | {len(medians)} | {statistics.geometric_mean(medians.values()):.4f} "
            f"| {worst} {families[worst]:.3f} | {lose} | {gain} "
            f"| {math.exp(statistics.fmean(map(math.log, bounds))):.4f} "
            f"| {worst_graph} {medians[worst_graph]:.3f} |"
        )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--budget", default="2s")
    parser.add_argument("--seeds", default="0,1,2")
    parser.add_argument("--evaluations", type=int, help="in place of a budget")
    parser.add_argument("--graphs", type=int, default=40)
    parser.add_argument("--only", default="", help="graphs of the zoo, in place of the sample")
    parser.add_argument("--without", default="")
    parser.add_argument("--target", default="")
    parser.add_argument("--objective", choices=("throughput", "latency"), default="throughput")
    parser.add_argument("--strict", action="store_true")
    parser.add_argument("--no-replication", dest="replication", action="store_false")
    parser.add_argument("--table", action="store_true")
    options = parser.parse_args()
    if not options.table:
        run_all(options)
    print_table(rows(options.out))


if __name__ == "__main__":
    main()
