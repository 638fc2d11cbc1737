"""A process of a run of a training step: a pipeline rank, the step that is not split, or a JAX function.

Its argument is the path of a :class:`Job` or :class:`FunctionJob` as JSON. It ends when its standard input
closes.
"""

from __future__ import annotations

import json
import os
import runpy
import sys
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

import jax
import numpy as np
from jax import export
from jax.sharding import NamedSharding

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
from go_opt.parallel.execution.processes import Action, FunctionJob, Job, difference
from go_opt.parallel.execution.rank import Exported, Kept, Rank, shape_of, without_data

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
    given = json.loads(Path(sys.argv[1]).read_text("utf-8"))
    threading.Thread(target=_end_with_parent, daemon=True).start()
    jax.config.update("jax_enable_x64", True)
    if "function" in given:
        _run_function(FunctionJob(**given))
    else:
        _run_step(Job(**given))


def _end_with_parent() -> None:
    """End this process once its parent has ended."""
    os.read(0, 1)  # of the parent, which writes nothing
    os._exit(1)


def _run_step(job: Job) -> None:
    """A pipeline rank, or the step that is not split."""
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


def _run_function(job: FunctionJob) -> None:
    """A step that is a JAX function: with the shardings of a plan, and on one device."""
    call = export.deserialize(bytearray(Path(job.function).read_bytes())).call
    exported = runpy.run_path(job.shardings)
    mesh, specs = exported["mesh"](), [list(exported[name].values()) for name in ("ARGUMENTS", "RESULTS")]
    with np.load(job.arrays) as kept:
        arrays = [kept[str(i)] for i in range(len(kept))]
    lying = [[NamedSharding(mesh, spec) for spec in of] for of in specs]
    states = {int(read): following for read, following in job.states.items()}
    split, flops, found = _ran(
        jax.jit(lambda *of: call(*of), in_shardings=lying[0], out_shardings=lying[1]),
        [jax.device_put(one, on) for one, on in zip(arrays, lying[0], strict=True)],
        states,
        job.steps,
    )
    if any("data" in (axes or ()) for i in states for axes in specs[0][i]):
        # XLA divides what computes with slices of moments, whatever the batch.
        kept = states.keys(), set(states.values())
        batch, results = (
            [NamedSharding(mesh, without_data(spec) if i in own else spec) for i, spec in enumerate(of)]
            for own, of in zip(kept, specs, strict=True)
        )
        by_batch = jax.jit(lambda *of: call(*of), in_shardings=batch, out_shardings=results)
        flops = _flops(by_batch.lower(*arrays).compile())
    _, whole_flops, right = _ran(jax.jit(lambda *of: call(*of)), arrays, states, job.steps)
    gaps = [
        [
            difference(np.asarray(one, np.complex128), np.asarray(other, np.complex128))
            for one, other in zip(*step, strict=True)
        ]
        for step in zip(found, right, strict=True)
    ]
    others = [i for i in range(len(specs[1])) if i not in states.values()]
    told = {
        "gaps": np.max(gaps, axis=0).tolist(),
        "others": [[float(np.mean(np.asarray(step[i]))) for i in others] for step in found],
        "others_whole": [[float(np.mean(np.asarray(step[i]))) for i in others] for step in right],
        "flop_share": flops / whole_flops,
        "state_elements": sum(split[i].addressable_shards[0].data.size for i in states),
    }
    Path(job.out).write_text(json.dumps(told), "utf-8")


def _ran(
    step: Callable[..., Any], arrays: Sequence[Any], states: dict[int, int], steps: int
) -> tuple[list[Any], float, list[list[Any]]]:
    """The last arguments, the FLOPs of a device as XLA counts them, and the results of each step."""
    now, found = list(arrays), []
    compiled = step.lower(*now).compile()  # type: ignore[attr-defined]
    for _ in range(steps):
        results = compiled(*now)
        found.append(results)
        for read, following in states.items():
            now[read] = results[following]
    return now, _flops(compiled), found


def _flops(compiled: Any) -> float:
    """Of a device, as XLA counts them."""
    return float(compiled.cost_analysis()["flops"])


if __name__ == "__main__":
    try:
        main()
    except Exception:
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(1)  # without the others, which would wait for each other
