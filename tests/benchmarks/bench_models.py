"""Two models on one package at once, against taking turns on it.

    python tests/benchmarks/bench_models.py [--evaluations N] [--pairs N]

In turns each model has the whole package and its best plan, with or without replicated stages, whichever is
shorter. At the kindest the host sends between turns the weights that the package cannot keep beside those of
the other model, and nothing else: no pipeline is drained or filled, and plans fit around each other on every
chip. *Turns as quick* are the longest whose inferences are answered as soon as with both at once; *drained*:
the same if each pipeline is emptied before the next is filled; *built*: simulated as the plans lie on chips,
each of which loads what it lacks as soon as it is free. Times are of a unit, one inference of each model.
The second table has the p99 of the slower model, of Poisson arrivals at a share of what both at once take;
turns end early where nothing waits. Fails where a plan is invalid.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Final

import go_opt
from go_opt.common.arrays import FloatArray
from go_opt.common.units import format_bytes, format_duration
from go_opt.frontends.union.graphs import shares_of, union_name
from go_opt.result import Request
from go_opt.serving.rate.queueing import Server, arrivals_s, p99_s
from go_opt.serving.together.sharing import Sharing, Turns, share_package
from tests.benchmarks.turns import Turn, turns_p99_s

UNITS: Final = (1, 3, 10, 100)  # of a turn
LOADS: Final = (0.5, 0.8, 0.95)  # of what both at once take
PAIRS: Final = (
    ("mcm-2x2", "resnet50", "resnet101_v2"),
    ("mcm-2x2", "resnet50", "regnet_x_160"),
    ("mcm-2x2", "swin_t", "rt_detr_r50"),
    ("mcm-6x6", "dlrm_kaggle", "vit_b16"),
    ("mcm-6x6", "bert_large", "vit_l16_384"),
    ("mcm-6x6", "resnet50", "bert_base"),
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--evaluations", type=int, default=200)
    parser.add_argument("--pairs", type=int, default=len(PAIRS))
    parsed = parser.parse_args()
    evaluations = parsed.evaluations
    request = Request(max_evaluations=evaluations)
    print(
        "| target | models | at once | gap | sent between turns | turns of 1 | of 10 | endless | break-even "
        "| answered | turns as quick | drained | built | built, of 1 | of 10 | of 100 |"
    )
    print("|---|---|" + "---:|" * 14, flush=True)
    late: list[str] = []
    for target, *models in PAIRS[: parsed.pairs]:
        on = go_opt.target(target)
        name = union_name([f"zoo:{model}" for model in models])
        graph = go_opt.load(name)
        at_once = go_opt.optimize(graph, on, request=request)
        assert not go_opt.verify(graph, on, at_once.plan)
        sharing = share_package(shares_of(name), at_once, graph, go_opt.load, on, request)
        unit_s = sharing.unit_s
        gains = [sharing.turns_s(units) for units in (1, 10, math.inf)]
        row = [target, " + ".join(models), format_duration(unit_s), f"{at_once.gap:.1%}"]
        row += [
            format_bytes(sharing.turns[-1].sent_bytes),
            *(f"{seconds / unit_s:.2f}x" for seconds in gains),
        ]
        row += [f"{sharing.break_even:.0f}", format_duration(sharing.answered_s)]
        for turns in (sharing, sharing.drained(), replace(sharing, turns=sharing.built)):
            units, quick_s, _ = turns.turns_as_quick()
            row.append(f"{quick_s / unit_s:.2f}x, of {units}" if units else "none")
        built = [min(one.unit_s(units) for one in sharing.built) / unit_s for units in (1, 10, 100)]
        row += [f"{ratio:.2f}x" for ratio in built]
        print(f"| {' | '.join(row)} |", flush=True)
        late += [f"| {' | '.join([*row[:2], *one])} |" for one in p99_rows(sharing)]
    print("| target | models | load | at once |", *(f"turns of {n} | built |" for n in UNITS))
    print("\n".join(["|---|---|---:|---:|" + "---:|" * 2 * len(UNITS), *late]))


def p99_rows(sharing: Sharing) -> Iterator[list[str]]:
    """For each load: the p99 with all at once, and with the kindest and the built turns of each length."""
    for load in LOADS:
        rate_per_s = load / sharing.unit_s
        arrived = [
            arrivals_s(copies * rate_per_s, seed)["poisson"]
            for seed, (copies, _) in enumerate(sharing.shares)
        ]
        latency_s = sharing.at_once.metrics.latency_s
        servers = [Server(copies, 0.0, 1, sharing.unit_s, latency_s) for copies, _ in sharing.shares]
        at_once = max(p99_s(times_s, server) for times_s, server in zip(arrived, servers, strict=True))
        row = [f"{load:.0%}", format_duration(at_once)]
        for units in UNITS:
            for ways in (sharing.turns, sharing.built):
                found = [_p99_s(one, units, arrived) for one in ways if one.unit_s(units) * rate_per_s < 1.0]
                row.append(format_duration(min(found)) if found else "too slow")
        yield row


def _p99_s(turns: Turns, units: int, arrived: list[FloatArray]) -> float:
    each = [
        Turn(plan.longer_interval_s, plan.metrics.latency_s, copies * units)
        for (copies, _), plan in zip(turns.shares, turns.plans, strict=True)
    ]
    between_s = max(0.0, units * (turns.unit_s(units) - turns.endless_s))
    return turns_p99_s(arrived, each, between_s / len(each))


if __name__ == "__main__":
    main()
