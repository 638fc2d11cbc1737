"""What layers are worth that GPUs share by collectives: with and without, for as many evaluations.

Run: PYTHONPATH=. python tests/benchmarks/bench_collectives.py [--evaluations N] [NAME ...]

Models are graphs of the zoo, and layers with the sizes of OPT-6.7B (four, causal, of some tokens), which need
no weights. Columns: the makespan of whole ops and with splits, their bounds; then the interval (and latency)
where the latency may be at most that of whole ops divided by 1.25, 1.5 and 2, with splits. Asserts that plans
are verified, and no better than their bounds. Prints a Markdown table.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import Any

import go_opt
from go_opt.env import Target
from go_opt.errors import InfeasibleError
from go_opt.model.graph import Graph
from go_opt.result import OptimizeResult
from tests.transformers import encoder

ROWS = (
    ("opt_6.7b_2048", "h100-sxm-8"), ("opt_6.7b_2048", "gpu-8"), ("opt_6.7b_512", "h100-sxm-8"),
    ("opt_6.7b_512", "gpu-8"), ("opt_6.7b_128", "gpu-8"), ("gpt2_medium", "gpu-8"), ("vit_l16_384", "gpu-8"),
    ("bert_large", "h100-sxm-8"),
)  # fmt: skip
COLUMNS = (
    "model", "target", "whole, us", "bound", "shared, us", "bound", "gain", "parts", "/ 1.25", "/ 1.5", "/ 2",
)  # fmt: skip
DIVISORS = (1.25, 1.5, 2.0)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("names", nargs="*")
    parser.add_argument("--evaluations", type=int, default=60)
    given = parser.parse_args()
    print(f"| {' | '.join(COLUMNS)} |\n|---|---|{'---:|' * (len(COLUMNS) - 2)}")
    for name, of in ROWS:
        if given.names and name not in given.names:
            continue
        graph, target = loaded(name), go_opt.target(of)
        options = {"max_evaluations": given.evaluations, "budget_s": None, "policy": None}
        whole, shared = (
            asked(graph, target, options | {"objective": "latency", "splits": splits})
            for splits in (False, True)
        )
        assert whole is not None
        assert shared is not None
        parts = sorted({one.parts for one in shared.plan.splits if one.collective})
        cells = [
            name,
            of,
            *cells_of(whole),
            *cells_of(shared),
            f"{whole.objective_s / shared.objective_s:.2f}",
        ]
        cells.append(", ".join(map(str, parts)))
        for divisor in DIVISORS:
            limit = {"max_latency_s": whole.metrics.latency_s / divisor}
            found = asked(graph, target, options | limit)
            latency = "none" if found is None else f"({found.metrics.latency_s * 1e6:,.0f})"
            cells.append(latency if found is None else f"{found.objective_s * 1e6:,.0f} {latency}")
        print(f"| {' | '.join(cells)} |", flush=True)


def loaded(name: str) -> Graph:
    if not name.startswith("opt_"):
        return go_opt.load(f"zoo:{name}")
    return go_opt.from_onnx(encoder(4, int(name.split("_")[-1]), 4096, 32, causal=True, weights=False))


def asked(graph: Graph, target: Target, options: Mapping[str, Any]) -> OptimizeResult | None:
    try:
        found = go_opt.optimize(graph, target, **options)
    except InfeasibleError:
        return None
    assert go_opt.verify(graph, target, found.plan) == []
    assert found.lower_bound_s <= found.objective_s * (1 + 1e-9)
    return found


def cells_of(found: OptimizeResult) -> list[str]:
    return [f"{found.objective_s * 1e6:,.0f}", f"{found.lower_bound_s * 1e6:,.0f}"]


if __name__ == "__main__":
    main()
