"""Is a training step of a graph planned at least as well as by data parallelism?

    python tests/benchmarks/bench_steps.py [--budget 20] [--only NAME]

For each graph and number of GPUs, in microseconds: *data parallel*, the plain plan in which each GPU has a
share of the batch, all gradients are one all-reduce, and kernels are joined wherever they may be; *ours*, the
answer to ``--objective step``, with the GPUs that it uses; its proven bound; and what the simulator says of
it. All by one evaluation. Asserted: ours is a valid plan, no slower than data parallelism, nor than on
fewer GPUs.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable
from functools import partial
from typing import Final

import numpy as np

import go_opt
from go_opt.model.graph import Graph
from tests.benchmarks.measuring import header, row

NUMBERS: Final = (1, 2, 4, 8)
SLACK: Final = 1.0 + 1e-9


def transformer() -> Graph:
    """Four layers of 1,024 with 16 heads and 16,384 words, Adam, 32 sequences of 512."""
    import optax

    from tests.zoo_recipes.models import training

    optimizer, loss = optax.adam(1e-3), partial(training.character_loss, heads=16)
    parameters = training.character_model(4, 1024, 512, 16384)
    words = np.zeros((32, 512), np.int32)
    return go_opt.from_jax(
        training.training_step(loss, optimizer),
        parameters,
        optimizer.init(parameters),
        words,
        words,
        state={0: (0, "model"), 1: (1, "model")},
    )


GRAPHS: Final[dict[str, Callable[[], Graph]]] = {
    "mlp": partial(go_opt.load, "zoo:mlp_train_b4096"),
    "resnet20": partial(go_opt.load, "zoo:resnet20_train_b1024"),
    "nanogpt": partial(go_opt.load, "zoo:nanogpt_train_b64"),
    "transformer": transformer,
}


def measure(name: str, graph: Graph, budget_s: float) -> None:
    """Print the rows of a graph."""
    best_s = math.inf
    for number in NUMBERS:
        target = go_opt.target(f"h100-sxm-{number}")
        result = go_opt.optimize(graph, target, objective="step", budget_s=budget_s, policy="none")
        plain = f"{number} replicas"
        plain_s = min((one.objective_s for one in result.history if one.method == plain), default=math.inf)
        assert go_opt.verify(graph, target, result.plan) == []
        assert number == 1 or math.isfinite(plain_s)
        assert result.objective_s <= min(plain_s, best_s) * SLACK, (result, plain_s, best_s)
        best_s = min(best_s, result.objective_s)
        simulated_s = result.simulated_makespan_s or math.nan
        figures = [plain_s, result.objective_s, result.lower_bound_s, simulated_s]
        cells = [f"{s * 1e6:,.0f}" if math.isfinite(s) else "" for s in figures]
        used = f"{result.plan.chips_used} of {number}"
        row([name, str(number), cells[0], cells[1], used, *cells[2:], result.method])


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--budget", type=float, default=20.0, help="seconds of each search")
    parser.add_argument("--only", choices=GRAPHS)
    given = parser.parse_args()
    header(["step", "GPUs", "data parallel", "ours", "used", "bound", "simulated", "by"])
    for name, load in GRAPHS.items():
        if given.only in (None, name):
            measure(name, load(), given.budget)


if __name__ == "__main__":
    main()
