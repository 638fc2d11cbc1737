"""The compiled passes of a training step: which collectives they have, and what waits between them."""

from __future__ import annotations

import json
import math
import os
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

jax = pytest.importorskip("jax")

from go_opt.common.processes import module_environment  # noqa: E402
from go_opt.env import load_target  # noqa: E402
from go_opt.parallel import Case, cost_step, parse_transformer  # noqa: E402
from go_opt.parallel.execution.decoder import StageOf, Whole, first_weight, names_of  # noqa: E402
from go_opt.parallel.execution.rank import Passes  # noqa: E402
from go_opt.parallel.export.exporting import jax_text  # noqa: E402
from go_opt.parallel.export.shardings import Shardings  # noqa: E402

TINY = "gpt:hidden=16,layers=1,heads=4,sequence=8,vocabulary=32"
COMPILED = """
import json, runpy, sys
import numpy as np
from go_opt.parallel import parse_transformer
from go_opt.parallel.configuration import parse_configuration
from go_opt.parallel.execution.rank import Rank

found = {}
for path, model, parallel in json.loads(sys.argv[1]):
    chosen = parse_configuration(parallel)
    rank = Rank(runpy.run_path(path), parse_transformer(model), chosen, 0, 0)
    passes, state = rank._passes[0], rank._state
    weights, sums = rank._weights(0), state.sums(rank._names[0])
    tokens = np.zeros((chosen.data, chosen.expert * chosen.micro_batch, 9), int)
    tokens = rank._layout.put("tokens", tokens)
    texts = found[parallel] = []

    def compiled(call, *given):
        program = call.lower(*given).compile()
        texts.append(program.as_text())
        return program

    _, kept = compiled(passes.forward, weights, (), tokens)(weights, (), tokens)
    compiled(passes.backward, weights, kept, rank._ones, sums)
    summed = compiled(state._sum, sums)(sums) if chosen.zero < 2 else state.summed(sums)
    compiled(state._update, weights, summed, state.moments, 1.0)
json.dump(found, sys.stdout)
"""


def collectives(tmp_path: Path, given: Mapping[str, str]) -> dict[str, list[set[str]]]:
    """By configuration the kinds of collectives of forward and backward pass, sum and update."""
    jobs = []
    for number, (parallel, model) in enumerate(given.items()):
        target = load_target(
            f"dgx-a100-{math.prod(map(int, re.findall(r'(?:data|expert)=([0-9])', parallel)))}"
        )
        path = tmp_path / f"{number}.py"
        path.write_text(jax_text(Shardings(cost_step(Case.read(model, target, 8), parallel)), model))
        jobs.append((str(path), model, parallel))
    flags = os.environ.get("XLA_FLAGS", "")
    flags += " --xla_force_host_platform_device_count=4 --xla_backend_optimization_level=0"
    env = {**module_environment(), "XLA_FLAGS": flags.strip(), "JAX_PLATFORMS": "cpu"}
    command = [sys.executable, "-c", COMPILED, json.dumps(jobs)]
    out = subprocess.run(command, env=env, check=True, stdout=subprocess.PIPE, text=True).stdout
    kinds = r" (all-reduce|all-gather|reduce-scatter|all-to-all)(?:-start)?\("
    return {name: [set(re.findall(kinds, text)) for text in texts] for name, texts in json.loads(out).items()}


def test_gradients_are_summed_when_it_is_planned(tmp_path: Path) -> None:
    experts = f"{TINY},experts=2"
    names = {"data=2": TINY, "data=2,zero=1": TINY, "data=2,zero=3": TINY, "data=1,expert=2": experts}
    found = collectives(tmp_path, names)
    gathered, summed = {"all-gather"}, {"all-reduce"}
    assert found["data=2"] == [set(), set(), summed, set()]
    assert found["data=2,zero=1"] == [set(), set(), summed, gathered]
    # On a processor, a reduce-scatter is an all-reduce of which each device takes its part.
    assert found["data=2,zero=3"] == [gathered, summed | gathered, set()]
    assert all("all-to-all" in kinds for kinds in found["data=1,expert=2"][:2])


def kept_elements(again: str, layers: int) -> int:
    """Elements that wait for the backward pass of two sequences, weights apart."""
    model = parse_transformer(TINY)
    stage = StageOf(model, dict.fromkeys(range(layers), again), False, False, 1)
    shapes = {"query": (16, 4, 4), "key": (16, 4, 4), "value": (16, 4, 4), "attention_out": (4, 4, 16)}
    shapes |= {"up": (16, 64), "down": (64, 16), "attention_norm": (16,), "mlp_norm": (16,)}
    weights = {name: first_weight(name, shapes[name.split(".")[2]], 0) for name in names_of(stage, shapes)}
    passes = Passes(stage, Whole(), None)  # type: ignore[arg-type]
    given = jax.ShapeDtypeStruct((2, 8, 16), "float32")
    tokens = jax.ShapeDtypeStruct((2, 9), "int32")
    _, kept = jax.eval_shape(passes._forward, weights, given, tokens)
    return sum(math.prod(one.shape) for one in kept if one.dtype != bool)  # masks are constants


def test_what_is_computed_again_does_not_wait() -> None:
    of_layer = {
        again: kept_elements(again, 3) - kept_elements(again, 2) for again in ("none", "attention", "full")
    }
    assert of_layer["full"] == 2 * 8 * 16  # the layer's input
    scores = 2 * 4 * 8 * 8
    assert of_layer["full"] < of_layer["attention"] <= of_layer["none"] - scores
