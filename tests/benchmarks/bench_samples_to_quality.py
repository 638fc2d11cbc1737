"""Samples to quality: how soon the policy gets near the best plan known, and how soon its rivals.

Run: PYTHONPATH=. python tests/benchmarks/bench_samples_to_quality.py --policy FILE ... --out LINES [NAME ...]

As in Xie et al., "A transferable approach for partitioning machine learning models on
multi-chip-modules", MLSys 2022: samples until a share of the log gap between a start and a
reference (``tests/data/references.toml``) is closed,

    share(n) = log(start / best of n) / log(start / reference).

The start is the greedy plan, or one slicing of the default order where greedy does not fit in
memory; graphs are those with a log gap of at least 0.05. A reward is a black box for every
method: none slices by cost (*annealing-greedy* starts from the greedy plan). What a method does not
reach counts as ``--evaluations``; *reached* says on how many graphs it did. Medians over the
seeds (for the policy: training seeds), their range where it is not a
point. ``--plot FILE.svg`` draws the mean share by samples.
"""

from __future__ import annotations

import argparse
import math
import tomllib
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import numpy as np
from policy_methods import Search, checked_row, finetuned, from_scratch, policy_of, searched, zero_shot
from policy_runs import (
    Part,
    Row,
    arguments,
    by_seed,
    complete_graphs,
    curve_of,
    parts_of,
    print_table,
    rows_of,
    spread,
)

import go_opt
from go_opt.agents.training.problems.lessons import JOINT, PLACEMENT, SAMPLED, Lesson
from go_opt.bench.rivals import pose

REFERENCES = Path(__file__).resolve().parent.parent / "data" / "references.toml"
LEAST_LOG_GAP = 0.05
SHARES = (0.5, 0.75, 0.9)
LESSONS = {"sample+placement": (SAMPLED, PLACEMENT), "placement": (PLACEMENT,), "joint": (JOINT,)}
RIVALS = ("random", "annealing", "annealing-greedy")
SCRATCH = "scratch"
OF_POLICY = ("zero-shot", "finetuned")
METHODS = (*RIVALS, SCRATCH, *OF_POLICY)


def main() -> None:
    parser = arguments(__doc__, evaluations=1000)
    parser.add_argument("--most-ops", type=int, default=1700)
    parser.add_argument("--lesson", choices=LESSONS, default="sample+placement")
    parser.add_argument("--references", type=Path, default=REFERENCES)
    parser.add_argument("--plot", type=Path)
    options = parser.parse_args()
    known = tomllib.loads(options.references.read_text("utf-8"))
    references = {
        name: entry
        for name, entry in sorted(known.items(), key=lambda item: item[1]["ops"])
        if entry["log_gap"] >= LEAST_LOG_GAP
        and (name in options.names or (not options.names and entry["ops"] <= options.most_ops))
    }
    setting = f"{options.evaluations} evaluations"
    parts = []
    for name in references:
        parts += parts_of(name, setting, options, drawn=RIVALS, of_policy=())
        of_lesson = f"{setting}, {options.lesson}"
        parts += parts_of(name, of_lesson, options, drawn=[SCRATCH], of_policy=OF_POLICY)
    rows = rows_of(parts, partial(work, options.evaluations, LESSONS[options.lesson]), options)
    report(references, rows, options)


def work(evaluations: int, lessons: Sequence[Lesson], part: Part) -> Row:
    problem = pose(go_opt.load(f"zoo:{part.graph}"), go_opt.target("mcm-6x6:paper"), relays=False)
    return checked_row(
        problem, searched(search_of(part, lessons), problem, evaluations, part.seed), evaluations
    )


def search_of(part: Part, lessons: Sequence[Lesson]) -> Search | str:
    if part.method in RIVALS:
        return part.method
    if part.method == SCRATCH:
        return from_scratch(lessons)
    return (zero_shot if part.method == "zero-shot" else finetuned)(policy_of(part), lessons)


def report(references: dict[str, Row], rows: dict[Part, Row], options: argparse.Namespace) -> None:
    shares: dict[str, np.ndarray] = {}  # [S, G, n] by method, on the graphs that all methods have
    methods = [method for method in METHODS if any(part.method == method for part in rows)]
    names = complete_graphs(rows, list(references), methods, options.seeds)
    if not names:
        return
    for method in methods:
        found = [by_seed(rows, name, method, options.seeds) for name in names]
        shares[method] = np.array(
            [
                [
                    closed_share(references[name], of_graph[seed])
                    for name, of_graph in zip(names, found, strict=True)
                ]
                for seed in range(options.seeds)
            ]
        )
    needed = {method: [samples_needed(shares[method], share) for share in SHARES] for method in methods}
    base = needed.get("finetuned")
    columns = ["method"]
    for share in SHARES:
        columns += [f"{share:.0%}", "reached", "of finetuned"]
    table = []
    for method in methods:
        cells = [method]
        for i in range(len(SHARES)):
            means = mean_samples(needed[method][i], options.evaluations)
            reached = np.isfinite(needed[method][i]).sum(axis=1)
            ratio = (
                np.nan
                if base is None
                else np.median(means) / np.median(mean_samples(base[i], options.evaluations))
            )
            cells += [spread(means.tolist(), ".0f"), spread(reached.tolist(), ".0f"), f"{ratio:.2f}"]
        table.append(cells)
    print_table(
        f"Samples to close a share of the gap, mean over {len(names)} graphs, "
        f"at most {options.evaluations}, lesson {options.lesson}",
        columns,
        table,
    )
    print_table(
        f"Share closed after {options.evaluations} samples",
        ["graph", "ops", "log gap", *methods],
        (
            [
                name,
                str(references[name]["ops"]),
                f"{references[name]['log_gap']:.2f}" + start_mark(references[name]),
                *(spread(shares[method][:, i, -1].tolist()) for method in methods),
            ]
            for i, name in enumerate(names)
        ),
    )
    if any(start_mark(references[name]) for name in names):
        print("\n\\* from one slicing of the default order: greedy does not fit.")
    if options.plot is not None:
        from policy_curves import write_curves

        # The start is at hand for everyone: nothing below it is ever shipped.
        curves = {method: np.clip(of, 0.0, None).mean(axis=1) for method, of in shares.items()}
        write_curves(options.plot, curves, f"mean over {len(names)} test graphs, {options.lesson}")


def closed_share(reference: Row, row: Row) -> np.ndarray:
    """[evaluations] of the log gap; -inf before the first valid plan."""
    start_s = reference["greedy_interval_s"]
    if math.isinf(start_s):
        start_s = reference["slice_interval_s"]
    with np.errstate(divide="ignore"):
        return np.log(start_s / curve_of(row)) / reference["log_gap"]


def samples_needed(shares: np.ndarray, share: float) -> np.ndarray:
    """[S, G] of shares [S, G, n]; infinite where it is not reached."""
    is_there = shares >= share - 1e-9
    return np.where(is_there.any(axis=-1), is_there.argmax(axis=-1) + 1.0, np.inf)


def mean_samples(needed: np.ndarray, evaluations: int) -> np.ndarray:
    """[S] over the graphs of ``needed`` [S, G], what is not reached at the limit."""
    return np.minimum(needed, evaluations).mean(axis=1)


def start_mark(reference: Row) -> str:
    return " \\*" if math.isinf(reference["greedy_interval_s"]) else ""


if __name__ == "__main__":
    main()
