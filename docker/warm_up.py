"""Compile, while an image is built, the kernels that the service runs."""

from __future__ import annotations

import go_opt

TARGETS = ("gpu-8", "mcm-6x6")
MODEL = "zoo:bert_base"  # its weights do not all fit, so the kernels for streaming run as well
# A limit of evaluations and none of time has the search wait for what is being compiled.
MAX_EVALUATIONS = 24


def main() -> None:
    graph = go_opt.load(MODEL)
    for target in TARGETS:
        for objective in ("throughput", "latency"):
            result = go_opt.optimize(graph, target, objective=objective, max_evaluations=MAX_EVALUATIONS)
            print(f"{MODEL} on {target}, {objective}: {result.wall_s:.1f} s", flush=True)
        go_opt.evaluate(graph, target, result.plan, fidelity="simulated", seed=0)


if __name__ == "__main__":
    main()
