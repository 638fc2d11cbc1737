"""The frozen references of "samples to quality": the best plan at hand of each test graph.

Run: PYTHONPATH=. python tests/benchmarks/make_references.py [--seconds 20] [--most-ops 6000] [NAME ...]

Over the graphs of the test split that fit ``mcm-6x6`` and have no states, by the plain cost
model (strict problem: triangle rule, no relays, no replication), or those named. For each of
``--seconds``: rivals that slice. Every reference has passed the verifier. Writes
``tests/data/references.toml``; an entry is replaced only by a faster plan, or where graph or
target changed, so longer runs improve the file. Test graphs: nothing is tuned on them.

An entry, all times in seconds:

    graph_fingerprint, target, target_fingerprint, ops
    greedy_interval_s      the compiler's heuristic; inf where it does not fit in memory
    slice_interval_s       the cheapest slicing of the default order and kernels
    reference_interval_s   the reference
    log_gap                log(greedy / reference); log(slice / reference) where greedy is inf
    method, evaluations, wall_s, seed    how the reference was found, and at what cost
"""

from __future__ import annotations

import argparse
import math
import time
import tomllib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from policy_rivals import POLICY_RIVALS

import go_opt
from go_opt.bench.rivals import Limits, Outcome, Problem, compete, pose
from go_opt.env import load_zoo, zoo_entries

TARGET = "mcm-6x6:paper"  # the plain model, that of the policy's tables
FILE = Path(__file__).resolve().parent.parent / "data" / "references.toml"
SLICERS = ("structured", "genetic", "genetic-fusion")
SEED = 0
HEADER = "# Written by tests/benchmarks/make_references.py, which says what the fields are.\n"


@dataclass(frozen=True, eq=False)
class Found:
    """A valid plan and what found it."""

    interval_s: float
    method: str
    plan: go_opt.Plan


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("names", nargs="*")
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--most-ops", type=int, default=6000)
    options = parser.parse_args()
    entries = [
        entry
        for entry in zoo_entries()
        if (entry.split, entry.target) == ("test", "mcm-6x6") and entry.ops <= options.most_ops
        if not entry.state_bytes
    ]
    names = options.names or [entry.name for entry in sorted(entries, key=lambda entry: entry.ops)]
    for name in names:
        new = reference(name, options.seconds)
        references = tomllib.loads(FILE.read_text("utf-8")) if FILE.exists() else {}
        if not is_better(references.get(name), new):
            print(f"{name}: no better than before", flush=True)
            continue
        references[name] = new
        FILE.write_text(
            HEADER + "".join(toml(name, references[name]) for name in sorted(references)), "utf-8"
        )
        print(name, *(f"{key}={value}" for key, value in new.items() if "fingerprint" not in key), flush=True)


def reference(name: str, seconds: float) -> dict[str, str | int | float]:
    """The entry of one graph."""
    began = time.monotonic()
    graph, target = load_zoo(name), go_opt.target(TARGET)
    problem = pose(graph, target, relays=False)
    greedy_s, slice_s = (run(problem, method, 1, SEED).interval_s for method in ("greedy", "slice"))
    best, evaluations = search(problem, lambda: time.monotonic() - began < seconds)
    assert go_opt.verify(graph, target, best.plan) == []
    metrics = go_opt.evaluate(graph, target, best.plan)
    assert metrics.valid
    assert math.isclose(metrics.interval_s, best.interval_s, rel_tol=1e-9)
    start_s = greedy_s if math.isfinite(greedy_s) else slice_s
    return {
        "graph_fingerprint": graph.fingerprint,
        "target": TARGET,
        "target_fingerprint": target.fingerprint,
        "ops": graph.num_ops,
        "greedy_interval_s": greedy_s,
        "slice_interval_s": slice_s,
        "reference_interval_s": best.interval_s,
        "log_gap": math.log(start_s / best.interval_s),
        "method": best.method,
        "evaluations": evaluations,
        "wall_s": round(time.monotonic() - began, 1),
        "seed": SEED,
    }


def search(problem: Problem, in_time: Callable[[], bool]) -> tuple[Found, int]:
    """The best plan, and all evaluations; ``in_time`` says whether time is left."""
    founds, evaluations = [], 0
    for method, outcome in sliced(problem, in_time):
        evaluations += outcome.evaluations
        if outcome.plan is not None:
            founds.append(Found(outcome.interval_s, method, outcome.plan))
    return min(founds, key=lambda found: found.interval_s), evaluations


def sliced(problem: Problem, in_time: Callable[[], bool]) -> Iterator[tuple[str, Outcome]]:
    """``(method, outcome)`` of each run of a method that slices."""
    rounds = 0
    for method in ("slice", "fixed-orders", "greedy"):
        yield method, run(problem, method, 12, SEED)
    evaluations = 4
    while in_time():
        method = SLICERS[rounds % len(SLICERS)]
        yield method, run(problem, method, evaluations, SEED + rounds)
        rounds += 1
        # Doubled each time round: the last genetic search takes as long as all before it.
        evaluations *= 2 if rounds % len(SLICERS) == 0 else 1


def run(problem: Problem, method: str, evaluations: int, seed: int) -> Outcome:
    return compete(POLICY_RIVALS[method], problem, Limits(evaluations=evaluations), seed)


def is_better(old: dict | None, new: dict) -> bool:
    if old is None or any(old[key] != new[key] for key in ("graph_fingerprint", "target_fingerprint")):
        return True
    return new["reference_interval_s"] < old["reference_interval_s"] * (1 - 1e-9)


def toml(name: str, entry: dict[str, str | int | float]) -> str:
    lines = [
        f'{key} = "{value}"' if isinstance(value, str) else f"{key} = {value}" for key, value in entry.items()
    ]
    return "\n".join(["", f"[{name}]", *lines, ""])


if __name__ == "__main__":
    main()
