"""Serves your own hardware to go-opt; run it on the machine that the hardware is attached to.

    python serve_hardware.py --address 127.0.0.1:50060
    go-opt finetune zoo:din --target mcm-2x2 --out runs/board --environment 127.0.0.1:50060

There is no board here: what `Board.run` would measure is the analytical model's interval, with
noise. Replace that one method.
"""

from __future__ import annotations

import argparse
import random

import go_opt


class Board:
    """A board with one package of chips."""

    def __init__(self, noise: float, seed: int = 0) -> None:
        self._noise = noise
        self._random = random.Random(seed)

    def evaluate(self, graph: go_opt.Graph, target: go_opt.Target, plan: go_opt.Plan) -> float | None:
        """Seconds from one inference to the next; None where this plan does not run."""
        program = [
            (graph.op_names[op], int(plan.placement[op]), int(plan.fusion_group[op]))
            for op in plan.order  # what runs, on which chip, in which kernel
        ]
        return self.run(program, go_opt.evaluate(graph, target, plan))

    def run(self, program: list[tuple[str, int, int]], model: go_opt.Metrics) -> float | None:
        """Load the program, run it until it is warm, and time some hundred inferences."""
        if not program or not model.valid:
            return None
        return model.interval_s * self._random.gauss(1.0, self._noise)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--address", default="127.0.0.1:50060")
    parser.add_argument("--noise", type=float, default=0.01)
    options = parser.parse_args()
    # One plan at a time, each measured three times; the median counts.
    go_opt.serve_environment(Board(options.noise), options.address, repeats=3)
