"""Two models on one package at once, against taking turns on it.

    python tests/benchmarks/bench_models.py [--evaluations N] [--pairs N]

In turns each model has the whole package and its best plan, with or without replicated stages, whichever is
shorter. Between turns the host sends the weights that the package cannot keep beside those of the other
model, and nothing else: no pipeline is drained or filled, and plans fit around each other on every chip.
*Turns as quick* are the longest whose inferences are answered as soon as with both at once; *drained*: the
same if each pipeline is emptied before the next is filled.
Times are of a unit, one inference of each model, simulated. Fails where a plan is invalid.
"""

from __future__ import annotations

import argparse
import math
from typing import Final

import go_opt
from go_opt.common.units import format_bytes, format_duration
from go_opt.frontends.union.names import shares_of, union_name
from go_opt.result import Request
from go_opt.serving.together.sharing import share_package

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
        "| answered | turns as quick | drained |"
    )
    print("|---|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|", flush=True)
    for target, *models in PAIRS[: parsed.pairs]:
        on = go_opt.target(target)
        name = union_name([f"zoo:{model}" for model in models])
        graph = go_opt.load(name)
        at_once = go_opt.optimize(graph, on, request=request)
        assert not go_opt.verify(graph, on, at_once.plan)
        sharing = share_package(shares_of(name), at_once, go_opt.load, on, request)
        unit_s = sharing.unit_s
        gains = [sharing.turns_s(units) for units in (1, 10, math.inf)]
        row = [target, " + ".join(models), format_duration(unit_s), f"{at_once.gap:.1%}"]
        row += [
            format_bytes(sharing.turns[-1].sent_bytes),
            *(f"{seconds / unit_s:.2f}x" for seconds in gains),
        ]
        row += [f"{sharing.break_even:.0f}", format_duration(sharing.answered_s)]
        for turns in (sharing, sharing.drained()):
            units, quick_s = turns.turns_as_quick()
            row.append(f"{quick_s / unit_s:.2f}x, of {units}" if units else "none")
        print(f"| {' | '.join(row)} |", flush=True)


if __name__ == "__main__":
    main()
