"""The process that runs a step given as a JAX function: with the shardings of a plan, and on one device.

Its argument is the path of a :class:`FunctionJob` as JSON. It ends when its standard input closes.
"""

from __future__ import annotations

import json
import math
import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax import export
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from go_opt.parallel.execution.processes import FunctionJob
from go_opt.parallel.execution.results import difference
from go_opt.parallel.execution.worker import end_with_parent


def main() -> None:
    """Do the job."""
    job = FunctionJob(**json.loads(Path(sys.argv[1]).read_text("utf-8")))
    threading.Thread(target=end_with_parent, daemon=True).start()
    jax.config.update("jax_enable_x64", True)
    call = export.deserialize(bytearray(Path(job.function).read_bytes())).call
    with np.load(job.arrays) as kept:
        arrays = [kept[str(i)] for i in range(len(job.arguments))]
    sizes = tuple(job.axes.values())
    mesh = Mesh(np.array(jax.devices()[: math.prod(sizes)]).reshape(sizes), tuple(job.axes))
    lying = [[_on(mesh, spec) for spec in of] for of in (job.arguments, job.results)]
    states = {int(read): following for read, following in job.states.items()}
    split, flops, found = _ran(
        jax.jit(lambda *of: call(*of), in_shardings=lying[0], out_shardings=lying[1]),
        [jax.device_put(one, on) for one, on in zip(arrays, lying[0], strict=True)],
        states,
        job.steps,
    )
    if any(_is_along_data(job.arguments[i]) for i in states):
        # XLA divides what computes with slices of moments, whatever the batch.
        kept = states.keys(), set(states.values())
        batch, results = (
            [_on(mesh, _without_data(spec) if i in own else spec) for i, spec in enumerate(of)]
            for own, of in zip(kept, (job.arguments, job.results), strict=True)
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
    others = [i for i in range(len(job.results)) if i not in states.values()]
    told = {
        "gaps": np.max(gaps, axis=0).tolist(),
        "others": [[float(np.mean(np.asarray(step[i]))) for i in others] for step in found],
        "others_whole": [[float(np.mean(np.asarray(step[i]))) for i in others] for step in right],
        "flop_share": flops / whole_flops,
        "state_elements": sum(split[i].addressable_shards[0].data.size for i in states),
    }
    Path(job.out).write_text(json.dumps(told), "utf-8")


_Spec = Sequence[Sequence[str]]  # the axes that divide each dimension


def _on(mesh: Mesh, spec: _Spec) -> NamedSharding:
    return NamedSharding(mesh, PartitionSpec(*(tuple(axes) or None for axes in spec)))


def _is_along_data(spec: _Spec) -> bool:
    return any("data" in axes for axes in spec)


def _without_data(spec: _Spec) -> _Spec:
    return [[axis for axis in axes if axis != "data"] for axes in spec]


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
    main()
