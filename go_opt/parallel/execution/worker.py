"""A process of a run of a training step: a pipeline rank, or the step that is not split.

Its argument is the path of a job (:class:`Job`) as JSON. It ends when its standard input closes.
"""

from __future__ import annotations

import json
import os
import runpy
import sys
import threading
import time
import traceback
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

import jax
import numpy as np

from go_opt.parallel import Transformer, parse_transformer
from go_opt.parallel.configuration import parse_configuration
from go_opt.parallel.execution.decoder import (
    Array,
    StageOf,
    Whole,
    adam,
    drawn_tokens,
    first_weight,
    names_of,
    run_stage,
)
from go_opt.parallel.execution.passes import Exported
from go_opt.parallel.execution.processes import Action, Job
from go_opt.parallel.execution.rank import Kept, Rank, shape_of

_LOOKS_S: Final = 0.02


@dataclass
class Results:
    """What a process writes: losses, gradients by step, weights behind the last step."""

    model: Transformer
    losses: list[float] = field(default_factory=list)
    arrays: dict[str, np.ndarray] = field(default_factory=dict)

    def take(self, what: str, name: str, value: Array) -> None:
        whole = np.asarray(value)
        self.arrays[f"{what}/{name}"] = whole[: self.model.vocabulary] if name == "table" else whole

    def write(self, path: Path, kept: Kept) -> None:
        np.savez(path, **self.arrays)  # type: ignore[arg-type]
        path.with_suffix(".json").write_text(json.dumps({"losses": self.losses, **asdict(kept)}), "utf-8")


def main() -> None:
    """Do the job."""
    job = Job(**json.loads(Path(sys.argv[1]).read_text("utf-8")))
    threading.Thread(target=end_with_parent, daemon=True).start()
    jax.config.update("jax_enable_x64", True)
    jax.config.update("jax_cpu_enable_async_dispatch", False)  # a message waits, so nothing may run behind it
    if job.address:
        jax.config.update("jax_cpu_collectives_implementation", "gloo")
        ranks = parse_configuration(job.parallel).pipeline
        jax.distributed.initialize(job.address, ranks, job.rank)
    results, exported = Results(parse_transformer(job.model)), runpy.run_path(job.shardings)
    kept = _unsplit(job, exported, results) if job.rank < 0 else _rank(job, exported, results)
    results.write(Path(job.out), kept)
    if job.address:
        jax.distributed.shutdown()


def end_with_parent() -> None:
    """End this process once its parent has ended."""
    os.read(0, 1)  # of the parent, which writes nothing
    os._exit(1)


def _rank(job: Job, exported: Exported, results: Results) -> Kept:
    rank = Rank(exported, results.model, parse_configuration(job.parallel), job.rank, job.seed)
    actions = [Action(*row) for row in job.actions]
    rank.compile()
    _meet(Path(job.out), parse_configuration(job.parallel).pipeline)
    rank.connect(actions)
    for step in range(job.steps):
        tokens = drawn_tokens(results.model, exported["BATCH"], job.seed, step)
        loss, gradients = rank.step(actions, tokens, step + 1)
        results.losses.append(loss)
        for name, value in gradients.items():
            results.take(f"gradient-{step}", name, value)
    for name, value in rank.weights.items():
        results.take("weight", name, value)
    return rank.kept


def _meet(out: Path, ranks: int) -> None:
    """Wait until all ranks have come here."""
    out.with_suffix(".ready").touch()
    while len(list(out.parent.glob("rank-*.ready"))) < ranks:
        time.sleep(_LOOKS_S)


def _unsplit(job: Job, exported: Exported, results: Results) -> Kept:
    """The step on one device, of the whole batch at once, which keeps all activations."""
    model, batch = results.model, exported["BATCH"]
    stage = StageOf(model, dict.fromkeys(range(model.layers), "none"), True, True, batch * model.sequence)
    weights: dict[str, Array] = {
        name: first_weight(name, shape_of(exported, model, name), job.seed)
        for name in names_of(stage, exported["LAYER"])
    }
    moments = {name: (np.zeros_like(one), np.zeros_like(one)) for name, one in weights.items()}

    @jax.jit
    def run(weights: Any, tokens: Array) -> Any:
        return jax.value_and_grad(lambda weights: run_stage(stage, Whole(), weights, (), tokens))(weights)

    update = jax.jit(adam)
    for step in range(job.steps):
        loss, gradients = run(weights, drawn_tokens(model, batch, job.seed, step))
        results.losses.append(float(loss))
        for name, gradient in gradients.items():
            results.take(f"gradient-{step}", name, gradient)
            weights[name], moments[name] = update(weights[name], gradient, moments[name], float(step + 1))
    for name, value in weights.items():
        results.take("weight", name, value)
    return Kept()


if __name__ == "__main__":
    try:
        main()
    except Exception:
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(1)  # without the others, which would wait for each other
