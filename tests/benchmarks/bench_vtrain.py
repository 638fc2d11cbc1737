"""How well is the time of a training step predicted, and how good is the choice that follows from it?

    python tests/benchmarks/bench_vtrain.py

On measured steps (``data/vtrain``), grouped by model, GPUs and batch: the mean relative error; the regret,
how much slower the configuration is that the model ranks first than the fastest measured one; the same for
the best of the first three; and *six*, the mean regret over all choices of six rows of a group. No
figure is fitted to these rows but the host's seconds a layer, 3.5 ms, for the small models. *folds* fit it
without the layer count that is scored, by least squares. Then Megatron's own table (Korthikanti et al.,
2022). Calculon's cost stands beside ours where CALCULON names its checkout.
"""

from __future__ import annotations

import csv
import math
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np

from go_opt.env import load_target
from go_opt.parallel import Case, Configuration, Machine, Transformer, cost_step
from tests.benchmarks.calculon_cost import VARIABLE, calculon_s, checkout

DATA: Final = Path(__file__).parent / "data" / "vtrain"
SEQUENCES: Final = 2048
OFFERED: Final = 6
HOSTS_S: Final = np.arange(2.0, 5.01, 0.1) * 1e-3
# Megatron on A100: hidden, layers, heads, pipeline, stages a device, GPUs, batch, micro-batch; seconds with
# all recomputed, and with attention recomputed and sequence parallelism.
MEGATRON: Final = {
    "22B": ((6144, 48, 64, 1, 1, 8, 4, 4), (1.42, 1.10)),
    "175B": ((12288, 96, 96, 8, 3, 64, 64, 1), (18.13, 13.75)),
    "530B": ((20480, 105, 128, 35, 3, 280, 280, 1), (49.05, 37.83)),
    "1T": ((25600, 128, 160, 64, 1, 512, 512, 1), (94.42, 71.49)),
}
Cost = Callable[[Case, Configuration], float]


class Row(NamedTuple):
    case: Case
    chosen: Configuration
    measured_s: float


@cache
def machine(devices: int) -> Machine:
    return Machine(load_target(f"dgx-a100-{devices}"))


def our_s(case: Case, chosen: Configuration) -> float:
    return cost_step(case, chosen).step_s


def read(name: str) -> list[Row]:
    """The rows of a table; a training step recomputes all, as no other assumption explains them."""
    found = []
    for row in csv.DictReader((DATA / f"{name}.csv").read_text().splitlines()):
        hidden, layers, heads, sequence = (
            int(row[key]) for key in ("hidden size", "# layers", "attention heads", "sequence length")
        )
        tensor, pipeline, data = (int(row[f"{kind} parallelism"]) for kind in ("tensor", "pipeline", "data"))
        case = Case(
            Transformer(hidden, layers, heads, sequence),
            machine(int(row["# GPUs"])),
            int(row["global batch"]),
        )
        chosen = Configuration(tensor, pipeline, data, micro_batch=int(row["micro batch"]))
        found.append(Row(case, chosen, float(row["iteration time (ms)"]) * 1e-3))
    return found


def score(rows: Iterable[Row], cost: Cost) -> str:
    groups: dict[tuple[object, ...], list[tuple[float, float]]] = defaultdict(list)
    for row in rows:
        case = row.case
        key = case.model, case.machine.devices, case.batch
        groups[key].append((cost(case, row.chosen), row.measured_s))
    pairs = [np.array(group) for group in groups.values()]
    errors = np.concatenate([np.abs(group[:, 0] / group[:, 1] - 1.0) for group in pairs])
    regrets, thirds = (np.array([regret(group, first) for group in pairs]) for first in (1, 3))
    six = np.mean([regret_of_few(group) for group in pairs if len(group) > 1])
    return (
        f"{errors.mean():.1%} | {regrets.mean():.2%} ({regrets.max():.1%}) | "
        f"{thirds.mean():.2%} ({thirds.max():.1%}) | {six:.2%}"
    )


def regret(group: np.ndarray, first: int) -> float:
    """How much slower the best of those ranked first is than the fastest."""
    ranked = group[np.argsort(group[:, 0], kind="stable")]
    return float(ranked[:first, 1].min() / group[:, 1].min() - 1.0)


def regret_of_few(group: np.ndarray) -> float:
    """The mean regret over all subsets of ``OFFERED`` rows, by which is ranked first and which is fastest.

    The others of a subset are ranked behind the one and measured behind the other.
    """
    measured = group[np.argsort(group[:, 0], kind="stable"), 1]
    size, total = min(OFFERED, len(group)), 0.0
    for first, its_s in enumerate(measured):
        for fastest in range(first, len(measured)):
            if fastest > first and measured[fastest] >= its_s:
                continue
            rest = measured[first + 1 :] > measured[fastest]
            subsets = math.comb(int(rest.sum()), size - 1 - (fastest > first))
            total += subsets * (its_s / measured[fastest] - 1.0)
    return float(total / math.comb(len(group), size))


def with_host(host_s: float) -> Cost:
    return lambda case, chosen: our_s(case, replace(chosen, host_s_per_layer=host_s))


def folds(rows: list[Row]) -> None:
    """The host's seconds, fitted to all layer counts but one, and the error on that one."""
    logs = np.array(
        [[np.log(with_host(float(host_s))(*row[:2]) / row.measured_s) for host_s in HOSTS_S] for row in rows]
    )
    counts = np.array([row.case.model.layers for row in rows])
    for held in sorted(set(counts.tolist())):
        best = int(np.argmin((logs[counts != held] ** 2).sum(axis=0)))
        error = np.abs(np.exp(logs[counts == held, best]) - 1.0).mean()
        print(f"{held} layers held out: host {HOSTS_S[best] * 1e3:.1f} ms, error {error:.1%}")


def megatron(cost: Cost) -> list[float]:
    """Relative errors on Megatron's own table."""
    errors = []
    for (hidden, layers, heads, pipeline, v, devices, batch, micro_batch), measured in MEGATRON.values():
        case = Case(Transformer(hidden, layers, heads, SEQUENCES), machine(devices), batch)
        schedule = "interleaved" if v > 1 else "1f1b"
        full = Configuration(8, pipeline, 1, 1, micro_batch, schedule, v)
        both = full, replace(full, recompute="attention", sequence_parallel=True)
        errors += [cost(case, one) / seconds - 1.0 for one, seconds in zip(both, measured, strict=True)]
    return errors


def main() -> None:
    costs: dict[str, Cost] = {"go-opt": our_s}
    if checkout() is None:
        print(f"without Calculon: {VARIABLE} names no checkout of it")
    else:
        costs["Calculon"] = calculon_s
    print("| rows | cost | error | regret (max) | best of three (max) | six |\n|---|---|---:|---:|---:|---:|")
    tables = {name: read(name) for name in ("multi_node", "single_node")}
    for name, rows in tables.items():
        for cost_name, cost in costs.items():
            print(f"| {name}, {len(rows)} | {cost_name} | {score(rows, cost)} |", flush=True)
    for cost_name, cost in costs.items():
        errors = megatron(cost)
        each = ", ".join(f"{error:+.1%}" for error in errors)
        print(f"Megatron's table, {cost_name}: mean {np.mean(np.abs(errors)):.1%} ({each})")
    folds(tables["single_node"])


if __name__ == "__main__":
    main()
