"""Where the arrays of a training step lie, what ranks do in a step, and what is exported of both."""

from __future__ import annotations

import json
import math
import runpy
import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

from go_opt.env import load_target
from go_opt.errors import InvalidInputError
from go_opt.parallel import Case, Configuration, Machine, Transformer, cost_step
from go_opt.parallel.execution.running import rank_actions
from go_opt.parallel.export.exporting import export_step, megatron_notes, megatron_text
from go_opt.parallel.export.shardings import Parameter, Shardings
from go_opt.parallel.plans.answers import StepAnswer
from go_opt.parallel.schedule import order_of
from go_opt.parallel.step import Layers, Step
from go_opt.run.manifest import STEP_FORMATS

MODEL = "gpt:hidden=64,layers=8,heads=8,sequence=32,vocabulary=100"


def step_of(parallel: str, model: str = MODEL, batch: int = 16, layers: tuple[Layers, ...] = ()) -> Step:
    degrees = dict(pair.split("=") for pair in parallel.split(",") if pair)
    devices = math.prod(int(degrees.get(name, 1)) for name in ("tensor", "pipeline", "data", "expert"))
    step = cost_step(Case.read(model, load_target(f"dgx-a100-{devices}"), batch), parallel)
    return replace(step, layers=layers or step.layers)


def test_specs_by_hand() -> None:
    found = Shardings(step_of("tensor=4,data=2,zero=1,sequence_parallel=on", f"{MODEL},kv_heads=2"))
    assert found.mesh == {"data": 2, "expert": 1, "groups": 2, "tensor": 2}
    assert found.activations["hidden"] == (("data",), ("groups", "tensor"), ())
    assert found.activations["keys"] == (("data",), (), ("groups",), ())
    query, key = found.of_layer["query"], found.of_layer["key"]
    assert query.weight == query.read == ((), ("groups", "tensor"), ())
    assert query.moments == query.gradient == (("data",), ("groups", "tensor"), ())
    assert key.weight == ((), ("groups",), ())
    assert found.of_layer["down"].weight == (("groups", "tensor"), ())
    assert found.of_ends["table"] == Parameter(
        (100, 64),
        *[(("groups", "tensor"), ())] * 2,
        *[(("groups", "tensor"), ("data",))] * 2,  # 100 rows are no multiple of 8
    )
    gathered = Shardings(step_of("data=4,zero=3")).of_layer["up"]
    assert gathered.weight == gathered.moments == (("data",), ())
    assert gathered.read == ((), ())


def random_step(rng: np.random.Generator) -> Step:
    kv_heads, experts = int(rng.choice([1, 2, 4, 8])), int(rng.choice([1, 1, 4]))
    model = Transformer(
        64, 8, 8, 32, int(rng.choice([96, 100, 101])), kv_heads=kv_heads, gated=bool(rng.integers(2))
    )
    model = replace(model, experts=experts, experts_per_token=min(2, experts))
    t, p, d = (int(rng.choice([1, 2, 4])) for _ in range(3))
    e = int(rng.choice([1, 2])) if experts > 1 else 1
    v = int(rng.choice([1, 2])) if p > 1 else 1
    schedule = "interleaved" if v > 1 else str(rng.choice(["1f1b", "gpipe"]))
    chosen = Configuration(
        t,
        p,
        d,
        e,
        schedule=schedule,  # type: ignore[arg-type]
        stages_per_device=v,
        zero=int(rng.integers(4)),  # type: ignore[arg-type]
        sequence_parallel=bool(rng.integers(2)),
        recompute=str(rng.choice(["none", "attention", "full"])),  # type: ignore[arg-type]
    )
    case = Case(model, Machine(load_target(f"dgx-a100-{chosen.devices}")), d * e * 4)
    return cost_step(case, chosen)


@pytest.mark.parametrize("seed", range(30))
def test_shards_are_even_and_take_what_is_predicted(seed: int) -> None:
    step = random_step(np.random.default_rng([45, seed]))
    shardings = Shardings(step)
    chosen, model = step.chosen, step.case.model

    def held(one: Parameter, spec: Any) -> int:
        assert len(spec) == len(one.shape)
        used = [axis for axes in spec for axis in axes]
        assert len(used) == len(set(used))
        parts = [math.prod(shardings.mesh[axis] for axis in axes) for axes in spec]
        assert all(size % part == 0 for size, part in zip(one.shape, parts, strict=True))
        return math.prod(size // part for size, part in zip(one.shape, parts, strict=True))

    def state(one: Parameter) -> int:
        kept_gradient = one.gradient if chosen.zero >= 2 else one.read  # sums of micro-batches
        return 2 * held(one, one.weight) + 2 * held(one, kept_gradient) + 12 * held(one, one.moments)

    unpredicted = ("attention_norm", "mlp_norm", "router")
    of_layer = sum(state(one) for name, one in shardings.of_layer.items() if name not in unpredicted)
    exact = step.case.state_bytes(chosen, 1, is_end=False)
    if shardings.notes or chosen.tensor > model.kv_heads:  # wholes that the prediction divides
        assert of_layer >= exact
    else:
        assert of_layer == pytest.approx(exact)
    stages = shardings.stages
    assert [number for stage in stages for number in stage.layers] == list(range(model.layers))
    assert [stage.rank for stage in stages] == list(range(chosen.pipeline)) * chosen.stages_per_device
    for rank, layers in enumerate(step.layers):
        kinds = [kind for stage in stages if stage.rank == rank for kind in stage.layers.values()]
        assert (kinds.count("none"), kinds.count("attention"), kinds.count("full")) == layers


@pytest.mark.parametrize("seed", range(30))
def test_ranks_never_wait_for_each_other(seed: int) -> None:
    """Each message is a call of both its ranks, neither of which goes on before the other has made it."""
    step = random_step(np.random.default_rng([46, seed]))
    ranks, stages = step.chosen.pipeline, step.chosen.pipeline * step.chosen.stages_per_device
    left = [list(reversed(actions)) for actions in rank_actions(step)]
    order = order_of(step.chosen, step.chosen.micro_batches(step.case.batch))
    for rank in range(ranks):
        passes = [one for one in reversed(left[rank]) if one.kind in ("forward", "backward")]
        assert [one.stage // ranks for one in passes] == order.chunk[rank].tolist()
        assert [one.micro_batch for one in passes] == order.micro_batch[rank].tolist()
        assert [one.is_backward for one in passes] == order.is_backward[rank].tolist()
    has: list[set[tuple[int, int, bool]]] = [set() for _ in range(ranks)]
    while any(left):
        moved = False
        for rank in range(ranks):
            while left[rank]:
                one = left[rank][-1]
                key = one.stage, one.micro_batch, one.is_backward
                if one.kind in ("send", "receive"):
                    other = left[one.peer][-1] if left[one.peer] else None
                    mirrored = {"send": "receive", "receive": "send"}[one.kind]
                    if other != one._replace(kind=mirrored, peer=rank):
                        break
                    assert key in has[rank if one.kind == "send" else one.peer]
                    has[one.peer if one.kind == "send" else rank].add(key)
                    left[one.peer].pop()
                else:
                    needed = one.stage + (1 if one.is_backward else -1)
                    if 0 <= needed < stages:
                        assert (needed, one.micro_batch, one.is_backward) in has[rank]
                    has[rank].add(key)
                left[rank].pop()
                moved = True
        assert moved


def exported(tmp_path: Path, step: Step, model: str, **options: Any) -> Path:
    plan = tmp_path / "plan.json"
    StepAnswer(step, model).save(plan)
    export_step(model, plan, tmp_path / "out", **options)
    return tmp_path / "out"


def test_the_module_of_jax_gives_meshes_and_specs(tmp_path: Path) -> None:
    jax = pytest.importorskip("jax")
    step = step_of("tensor=2,pipeline=2,data=2,zero=1,sequence_parallel=on")
    found = runpy.run_path(str(exported(tmp_path, step, MODEL) / "jax_shardings.py"))
    shardings, spec = Shardings(step), jax.sharding.PartitionSpec
    assert found["AXES"] == shardings.mesh
    assert found["STAGES"] == [(stage.rank, dict(stage.layers)) for stage in shardings.stages]
    assert found["ACTIVATIONS"]["hidden"] == spec("data", "tensor", None)
    up = found["LAYER"]["up"]
    assert (up.shape, up.weight, up.moments) == ((64, 256), spec(None, "tensor"), spec("data", "tensor"))
    assert set(found["LAYER"]) == set(shardings.of_layer)
    mesh = found["mesh"](1, of=list(range(8)))
    assert mesh.devices.ravel().tolist() == [4, 5, 6, 7]
    assert dict(mesh.shape) == {"data": 2, "expert": 1, "tensor": 2}


def test_the_module_of_torch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a stand-in for torch, which is not installed everywhere."""
    made: list[Any] = []
    mesh_module = ModuleType("torch.distributed.device_mesh")
    mesh_module.init_device_mesh = lambda *args, **names: made.append((args, names))  # type: ignore[attr-defined]
    for name in ("torch", "torch.distributed"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    monkeypatch.setitem(sys.modules, mesh_module.__name__, mesh_module)
    model = f"{MODEL},gated=on,kv_heads=2"
    step = step_of("tensor=4,pipeline=2,data=2,zero=3,micro_batch=2", model, layers=((3, 0, 0), (0, 2, 3)))
    found = SimpleNamespace(**runpy.run_path(str(exported(tmp_path, step, model) / "torch_plan.py")))
    found.device_mesh("cpu")
    names = ("pipeline", "data", "expert", "tensor")
    assert made == [(("cpu", (2, 2, 1, 4)), {"mesh_dim_names": names})]
    assert found.stages_of(1) == {1: [3, 4, 5, 6, 7]}
    assert found.STAGES[1][1] == {3: "attention", 4: "attention", 5: "full", 6: "full", 7: "full"}
    assert (found.SCHEDULE, found.ZERO, found.MICRO_BATCHES) == ("Schedule1F1B", 3, 4)
    columns, rows = (
        {name for name, style in found.TENSOR.items() if style == kind} for kind in ("column", "row")
    )
    assert (columns, rows) == ({"query", "gate", "up"}, {"attention_out", "down"})
    assert "4 ranks do not divide 2 heads" in found.__doc__


def arguments(parallel: str, model: str = MODEL, **options: Any) -> tuple[str, list[str]]:
    shardings = Shardings(step_of(parallel, model, **options))
    return megatron_text(shardings, model), megatron_notes(shardings)


def test_the_arguments_of_megatron() -> None:
    text, notes = arguments(
        "tensor=2,pipeline=4,data=2,zero=1,schedule=interleaved,stages_per_device=2,sequence_parallel=on,"
        "overlap=on"
    )
    assert notes == []
    for one in (
        "--tensor-model-parallel-size 2",
        "--pipeline-model-parallel-size 4",
        "--num-virtual-stages-per-pipeline-rank 2",
        "--sequence-parallel",
        "--use-distributed-optimizer",
        "--overlap-grad-reduce",
        "--recompute-granularity full",
        "--recompute-method uniform",
        "--micro-batch-size 1",
        "--global-batch-size 16",
        "--num-layers 8",
    ):
        assert f"  {one}\n" in text
    assert "--decoder-first" not in text
    text, notes = arguments("data=2,zero=3,recompute=attention", f"{MODEL},experts=4,gated=on,kv_heads=2")
    assert "--recompute-modules core_attn" in text
    assert "--data-parallel-sharding-strategy optim_grads_params" in text
    assert "--num-query-groups 2" in text
    assert "--swiglu" in text
    assert "--num-experts 4" in text
    assert notes == []


@pytest.mark.parametrize(
    ("parallel", "layers", "has", "says"),
    [
        (
            "pipeline=4",
            ((1, 0, 0), (3, 0, 0), (3, 0, 0), (1, 0, 0)),
            "--decoder-first-pipeline-num-layers 1",
            "",
        ),
        (
            "pipeline=4",
            ((1, 0, 0), (3, 0, 0), (2, 0, 0), (2, 0, 0)),
            "--pipeline-model-parallel-layout 'Et*1|t*3|t*2|t*2L'",
            "1, 3, 2, 2, need",
        ),
        ("pipeline=2", ((2, 0, 2), (2, 0, 2)), "--recompute-method block\n  --recompute-num-layers 2", ""),
        ("pipeline=2", ((3, 0, 1), (4, 0, 0)), "--recompute-num-layers 1", "the first 1 of each stage"),
        ("pipeline=2", ((3, 1, 0), (4, 0, 0)), "--recompute-modules core_attn", "1, 0 layers"),
        ("pipeline=2", ((1, 1, 2), (4, 0, 0)), "--recompute-num-layers 3", "the first 3 of each stage"),
        ("pipeline=2,schedule=gpipe", (), "--pipeline-model-parallel-size 2", "1F1B in place of GPipe"),
    ],
)
def test_what_megatron_cannot_say(parallel: str, layers: tuple[Layers, ...], has: str, says: str) -> None:
    text, notes = arguments(parallel, layers=layers)
    assert f"  {has}" in text
    assert says in " ".join(notes)
    assert bool(says) == bool(notes)
    assert all(f"# {note}\n" in text for note in notes)


def test_the_manifest_and_the_folder(tmp_path: Path) -> None:
    step = step_of("pipeline=2,schedule=gpipe")
    out = exported(tmp_path, step, MODEL)
    manifest = json.loads((out / "manifest.json").read_text())
    assert list(manifest["files"]) == list(STEP_FORMATS)
    assert sorted(manifest["written"]) == sorted(path.name for path in out.iterdir())
    assert manifest["notes"] == [f"megatron: {note}" for note in megatron_notes(Shardings(step))]
    (out / "mine").touch()
    with pytest.raises(InvalidInputError, match="--force replaces it"):
        exported(tmp_path, step, MODEL)
    exported(tmp_path, step, MODEL, formats=["jax"], force=True)
    assert {path.name for path in out.iterdir()} == {"jax_shardings.py", "manifest.json", "mine"}
    with pytest.raises(InvalidInputError, match="jax, torch, megatron"):
        export_step(MODEL, tmp_path / "plan.json", tmp_path / "other", formats=["stages"])
