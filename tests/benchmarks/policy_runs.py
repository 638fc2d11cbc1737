"""Runs of the policy's benchmarks: spread over processes, kept in a JSON-lines file, put into tables.

A line for each (graph, method, seed) and setting, so that a benchmark that was interrupted
goes on where it stopped. Every process has one thread: as many as there are cores are of use.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import os
import statistics
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from dataclasses import asdict, dataclass
from functools import cache
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
from measuring import header, row

from go_opt.common.arrays import FloatArray
from go_opt.env import zoo_entries

ONE_THREAD = {
    "XLA_FLAGS": "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1",
    "NPROC": "1",  # XLA's thread pool
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "NUMBA_NUM_THREADS": "1",
}
NO_POLICY = "-"  # stands for the policy of a method that has none
ALL_SEEDS = -1  # stands for the seed of a method that draws nothing

Row = dict[str, Any]
Curve = FloatArray


@dataclass(frozen=True)
class Part:
    """What one line of the file answers."""

    graph: str
    method: str
    seed: int
    setting: str  # what else the answer depends on, in words
    policy: str = NO_POLICY  # the file of the policy, for methods that start from one

    @property
    def key(self) -> tuple[str, ...]:
        """What tells the line from others; a policy by its bytes, wherever it lies."""
        digest = NO_POLICY if self.policy == NO_POLICY else _digest(self.policy)
        return self.graph, self.method, str(self.seed), self.setting, digest


def parts_of(
    graph: str, setting: str, options: argparse.Namespace, *, drawn: Sequence[str], of_policy: Sequence[str]
) -> list[Part]:
    """A part for each seed of methods that draw, and of those that start from the seed's policy."""
    parts = []
    for seed in range(options.seeds):
        parts += [Part(graph, method, seed, setting) for method in drawn]
        if options.policy:
            policy = options.policy[seed % len(options.policy)]
            parts += [Part(graph, method, seed, setting, policy) for method in of_policy]
    return parts


def run_arguments(description: str | None) -> argparse.ArgumentParser:
    """How many runs, in how many processes, and where their lines are kept."""
    parser = argparse.ArgumentParser(description=description and description.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--jobs", type=int, default=1, help="processes, of one thread each")
    parser.add_argument("--out", type=Path, required=True, help="JSON lines; what is there is not run again")
    parser.add_argument("--table", action="store_true", help="print the tables of what is there, run nothing")
    return parser


def arguments(description: str | None, evaluations: int) -> argparse.ArgumentParser:
    """The same with graphs, samples and policies."""
    parser = run_arguments(description)
    parser.add_argument("names", nargs="*", help="graphs of the zoo; default: those of the split")
    parser.add_argument("--split", default="test")
    parser.add_argument("--evaluations", type=int, default=evaluations)
    parser.add_argument("--policy", nargs="+", default=[], help="a file for each training seed")
    return parser


def graph_names(options: argparse.Namespace, most_ops: int) -> list[str]:
    """The graphs named, else those of the split for ``mcm-6x6`` up to ``most_ops``, small ones first."""
    entries = [
        entry
        for entry in sorted(zoo_entries(), key=lambda entry: entry.ops)
        if entry.split == options.split and entry.target == "mcm-6x6" and entry.ops <= most_ops
    ]
    return options.names or [entry.name for entry in entries]


def rows_of(
    parts: Sequence[Part], work: Callable[[Part], Row], options: argparse.Namespace, *, fresh: bool = False
) -> dict[Part, Row]:
    """The lines of ``parts``, run where the file lacks them; with ``--table`` only what it has.

    Args:
      work: a function that processes can be sent.
      fresh: whether each part has a process of its own, so that peak memory is its own.
    """
    known = _read(options.out)
    missing = [part for part in parts if part.key not in known]
    if options.table:
        if missing:
            print(f"{len(missing)} of {len(parts)} runs are missing, {missing[0]} the first.\n")
    elif missing:
        known |= _run(missing, work, options, 1 if fresh else None)
    return {part: known[part.key] for part in parts if part.key in known}


def _run(
    parts: Sequence[Part], work: Callable[[Part], Row], options: argparse.Namespace, per_process: int | None
) -> dict[tuple[str, ...], Row]:
    os.environ.update(ONE_THREAD)
    known = {}
    spawn = get_context("spawn")
    with (
        ProcessPoolExecutor(options.jobs, mp_context=spawn, max_tasks_per_child=per_process) as pool,
        options.out.open("a", encoding="utf-8") as file,
    ):
        futures = {pool.submit(_timed, work, part): part for part in parts}
        for number, future in enumerate(as_completed(futures), 1):
            part, answer = futures[future], _result(future, pool)
            row = asdict(part) | {"key": list(part.key)} | answer
            file.write(json.dumps(row) + "\n")
            file.flush()
            known[part.key] = row
            print(
                f"{number}/{len(parts)} {part.graph}, {part.method}, {part.seed}: {row['wall_s']} s",
                flush=True,
            )
    return known


def _result(future: Future[Row], pool: ProcessPoolExecutor) -> Row:
    """What came out; where a part failed, those not begun are given up."""
    try:
        return future.result()
    except BaseException:
        pool.shutdown(cancel_futures=True)
        raise


def _timed(work: Callable[[Part], Row], part: Part) -> Row:
    from go_opt.agents.policy.compilation_cache import enable_compilation_cache

    enable_compilation_cache()
    began_s = time.monotonic()
    return work(part) | {"wall_s": round(time.monotonic() - began_s, 1)}


def _read(path: Path) -> dict[tuple[str, ...], Row]:
    """Lines by key; what an interruption left of a last one is cut off."""
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        return {}
    text = path.read_text("utf-8")
    whole = text[: text.rfind("\n") + 1]
    if whole != text:
        path.write_text(whole, "utf-8")
    rows = [json.loads(line) for line in whole.splitlines()]
    return {tuple(row["key"]): row for row in rows}


@cache
def _digest(path: str) -> str:
    return hashlib.sha256(Path(path).read_bytes()).hexdigest()[:12]


# --------------------------------------------------------------------------- curves


def curve_of(row: Row) -> Curve:
    """[evaluations] best-so-far seconds, from the samples where they fall."""
    curve_s = np.full(row["evaluations"], np.inf)
    for sample, interval_s in row["falls"]:
        curve_s[sample - 1 :] = interval_s
    return curve_s


# --------------------------------------------------------------------------- tables


def print_table(title: str, columns: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Markdown; the first column is text, the others numbers."""
    print(f"\n**{title}**\n")
    header(columns)
    for cells in rows:
        row(cells)


def spread(values: Sequence[float], form: str = ".2f") -> str:
    """Median, and the range where it is not a point at the precision of ``form``."""
    if not values:
        return ""
    middle, least, most = (
        format(value, form) if math.isfinite(value) else "none"
        for value in (statistics.median(values), min(values), max(values))
    )
    return middle if least == most else f"{middle} ({least}-{most})"


def by_seed(rows: Mapping[Part, Row], graph: str, method: str, seeds: int) -> list[Row]:
    """The lines of a method for each seed; those of one that draws nothing are repeated.

    Empty where not all are there.
    """
    found = {part.seed: row for part, row in rows.items() if (part.graph, part.method) == (graph, method)}
    if ALL_SEEDS in found:
        return [found[ALL_SEEDS]] * seeds
    return [found[seed] for seed in range(seeds)] if len(found) == seeds else []


def complete_graphs(
    rows: Mapping[Part, Row], names: Sequence[str], methods: Sequence[str], seeds: int
) -> list[str]:
    """The graphs that every method has all its lines of."""
    return [name for name in names if all(by_seed(rows, name, method, seeds) for method in methods)]
