"""The peers' own problem: published inputs, costed by the environment, and what the portfolio makes of them.

Run: PYTHONPATH=. python tests/benchmarks/bench_neurips20.py [FOLDER]

The inputs of Tarnawski et al. (NeurIPS 2020) in tests/data/neurips20, or in FOLDER, solved by the
published program (tests/benchmarks/neurips20.py). Asserts that its plans pass the verifier, that
they and the experts' splits cost in the environment what is published, and that the portfolio's do
not cost more than the experts'. The portfolio has 5 s, no policy and no copies: one device for each node.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
from measuring import header, row

import go_opt
from go_opt.model.plan import Candidate
from tests.benchmarks.neurips20 import as_ours, load_input, optimum

DATA = Path(__file__).resolve().parent.parent / "data" / "neurips20"
# Optimum and human expert, in ms; the last node of each of the expert's accelerators.
PUBLISHED = {
    "bert24_layer_inference": (17.790, 20.084, (8, 12, 16, 20, 24, 32)),
    "resnet50_layer_inference": (33.775, 43.918, (5, 37, 79, 121, 163, 177)),
    "bert_l-3_operator_inference": (27.919, None, ()),
}
ROUNDING_MS = 5e-4


def main() -> None:
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else DATA
    header(["input", "nodes", "down-sets", "expert", "published", "by our model", "portfolio"])
    for name, (optimum_ms, expert_ms, last) in PUBLISHED.items():
        given = load_input(folder / f"{name}.json")
        graph, target, constraints = as_ours(given)
        found = optimum(given)
        ours_ms = interval_ms(graph, target, [found.device[op] for op in graph.op_names])
        assert abs(ours_ms - optimum_ms) < ROUNDING_MS
        assert abs(found.load_ms - ours_ms) < 1e-9 * ours_ms
        reached = go_opt.optimize(
            graph, target, constraints=constraints, budget_s=5, policy=None, relays=False, replication=False
        )
        reached_ms = reached.metrics.interval_s * 1e3
        if expert_ms is not None:
            ids = [int(op.removeprefix("node")) for op in graph.op_names]
            assert abs(interval_ms(graph, target, np.searchsorted(last, ids)) - expert_ms) < ROUNDING_MS
            assert reached_ms <= expert_ms
        in_ms = (f"{ms:.3f}" for ms in (optimum_ms, ours_ms, reached_ms))
        row([name, str(graph.num_ops), str(found.down_sets), str(expert_ms or ""), *in_ms])


def interval_ms(graph, target, device) -> float:
    ops = np.arange(graph.num_ops, dtype=np.int32)
    plan = Candidate("bench", np.asarray(device, np.int32), ops, ops).plan(graph, target)
    metrics = go_opt.evaluate(graph, target, plan)
    assert metrics.valid, metrics.reason
    return metrics.interval_s * 1e3


if __name__ == "__main__":
    main()
