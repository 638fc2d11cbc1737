"""The frozen references of "samples to quality": the best plan at hand of each test graph.

Run: PYTHONPATH=. python tests/benchmarks/make_references.py [--seconds 20] [--most-ops 6000] [NAME ...]

Over the graphs of the test split that fit ``mcm-6x6`` (strict problem: triangle rule, no
relays, no replication), or those named. For each of ``--seconds``: the rivals of
``go_opt.bench.baselines`` that slice, for some 2/5 of the time, then annealing directly on
the placements of the best of them. Every reference has passed the verifier. Writes
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
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

import go_opt
from go_opt.bench.baselines import METHODS
from go_opt.bench.baselines.direct_annealing import anneal_placement
from go_opt.env import load_zoo, zoo_entries
from go_opt.solver.orders.instance import Instance, instance
from tests.strategies import make_plan

TARGET = "mcm-6x6"
FILE = Path(__file__).resolve().parent.parent / "data" / "references.toml"
SLICING_SHARE = 0.4  # of the time
SLICERS = ("slice, structured keys", "genetic", "genetic, fusion too")
SEED = 0
STARTS = 4  # plans that annealing takes on
FIRST_MOVES = 2000
ANNEALED = " + direct annealing"
HEADER = "# Written by tests/benchmarks/make_references.py, which says what the fields are.\n"


@dataclass(frozen=True, eq=False)
class Found:
    """A valid plan and what finding it took."""

    interval_s: float
    method: str
    placement: NDArray[np.int32]  # [N]
    order: NDArray[np.int32]  # [N]
    fusion_group: NDArray[np.int32]  # [N]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("names", nargs="*")
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--most-ops", type=int, default=6000)
    options = parser.parse_args()
    entries = [
        entry
        for entry in zoo_entries()
        if entry.split == "test" and entry.target == TARGET and entry.ops <= options.most_ops
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
    case = instance(graph, target)
    greedy_s, slice_s = (
        float(METHODS[method].run(case, 1, SEED).curve_s[0]) for method in ("greedy", "slice")
    )
    best, evaluations = search(case, lambda share: time.monotonic() - began < share * seconds)
    plan = make_plan(graph, target, best.placement, order=best.order, fusion_group=best.fusion_group)
    assert go_opt.verify(graph, target, plan) == []
    metrics = go_opt.evaluate(graph, target, plan)
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


def search(case: Instance, in_time: Callable[[float], bool]) -> tuple[Found, int]:
    """The best plan, and all evaluations; ``in_time`` says whether a share of the time is left."""
    founds, evaluations = [], 0
    for method, found, spent in sliced(case, in_time):
        evaluations += spent
        if found is not None:
            founds.append(Found(found[0], method, *found[1]))
    starts = sorted(founds, key=lambda found: found.interval_s)[:STARTS]
    turn = 0
    while in_time(1.0):
        # Each start in turn, longer each round, from hot and from cold.
        rounds, i = divmod(turn, len(starts))
        start = starts[i]
        annealed = anneal_placement(
            case,
            start.placement,
            start.order,
            start.fusion_group,
            moves=FIRST_MOVES * 2**rounds,
            seed=SEED + turn,
            hot=(0.1, 0.03)[rounds % 2],
        )
        evaluations += annealed.evaluations
        turn += 1
        if annealed.interval_s < start.interval_s * (1 - 1e-9):
            method = start.method.removesuffix(ANNEALED) + ANNEALED
            starts[i] = replace(
                start, interval_s=annealed.interval_s, method=method, placement=annealed.placement
            )
    return min(starts, key=lambda found: found.interval_s), evaluations


def sliced(
    case: Instance, in_time: Callable[[float], bool]
) -> Iterator[tuple[str, tuple[float, tuple[NDArray[np.int32], ...]] | None, int]]:
    """``(method, (interval_s, plan) or None, evaluations)`` of each run of a method that slices."""
    rounds = 0
    for method in ("slice", "slice, fixed orders", "greedy"):
        yield run(case, method, 6, SEED)
    evaluations = 4
    while in_time(SLICING_SHARE):
        yield run(case, SLICERS[rounds % len(SLICERS)], evaluations, SEED + rounds)
        rounds += 1
        # Doubled each time round: the last genetic search takes as long as all before it.
        evaluations *= 2 if rounds % len(SLICERS) == 0 else 1


def run(
    case: Instance, method: str, evaluations: int, seed: int
) -> tuple[str, tuple[float, tuple[NDArray[np.int32], ...]] | None, int]:
    done = METHODS[method].run(case, evaluations, seed)
    best = None if done.best is None else (float(done.curve_s[-1]), done.best)
    return method, best, done.spent


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
