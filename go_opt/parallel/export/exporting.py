"""Exports a plan of a training step for JAX, PyTorch and Megatron-LM."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from go_opt.common.version import VERSION
from go_opt.env import Target
from go_opt.parallel.configuration import pairs_text
from go_opt.parallel.export.shardings import Parameter, Shardings, Spec
from go_opt.parallel.plans.answers import StepAnswer, loaded_step
from go_opt.run.export.folder import check_can_run, check_free, write_export
from go_opt.run.manifest import STEP_FORMATS, StepManifest, check_formats

JAX_FILE: Final = "jax_shardings.py"
_JAX_TEXT: Final = '''\
"""JAX shardings of one training step. Written by `go-opt export` {version}.

{model}
{parallel}

Devices are numbered by tensor, expert, data, pipeline; those of a pipeline rank are one mesh.
"""

import math
from typing import NamedTuple

import numpy as np
from jax import devices
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P

RANKS = {ranks}
AXES = {axes}
BATCH, MICRO_BATCH, MICRO_BATCHES = {batch}, {micro_batch}, {micro_batches}  # sequences; of a replica
SCHEDULE = "{schedule}"

# Stages in the order of the model: their rank, and for each layer what the backward pass computes again.
STAGES = [
{stages}]

# Arrays of a pass.
ACTIVATIONS = {{
{activations}}}


class Parameter(NamedTuple):
    """A parameter's shape, and how it lies: kept, read in a pass, its summed gradient, its moments."""

    shape: tuple
    weight: P
    read: P
    gradient: P
    moments: P


LAYER = {{
{of_layer}}}
ENDS = {{
{of_ends}}}


def mesh(rank=0, of=None):
    """The mesh of a pipeline rank, of all devices or of those given."""
    size = math.prod(AXES.values())
    own = (devices() if of is None else of)[rank * size : (rank + 1) * size]
    return Mesh(np.array(own).reshape(tuple(AXES.values())), tuple(AXES))


def sharding(spec, rank=0):
    """A spec on the mesh of a pipeline rank."""
    return NamedSharding(mesh(rank), spec)
'''


def jax_text(shardings: Shardings, model: str) -> str:
    """The module's text."""
    chosen, batch = shardings.chosen, shardings.step.case.batch
    return _JAX_TEXT.format(
        version=VERSION,
        model=model,
        parallel=pairs_text(vars(chosen)),
        ranks=chosen.pipeline,
        axes=_dict_text(shardings.mesh),
        batch=batch,
        micro_batch=chosen.micro_batch,
        micro_batches=chosen.micro_batches(batch),
        schedule=chosen.schedule,
        stages="".join(f"    ({stage.rank}, {_dict_text(stage.layers)}),\n" for stage in shardings.stages),
        activations="".join(
            f'    "{name}": {spec_text(spec)},\n' for name, spec in shardings.activations.items()
        ),
        of_layer=_parameters_text(shardings.of_layer),
        of_ends=_parameters_text(shardings.of_ends),
    )


def _dict_text(values: Mapping[str, int] | Mapping[int, str]) -> str:
    return repr(dict(values)).replace("'", '"')


def _parameters_text(parameters: Mapping[str, Parameter]) -> str:
    return "".join(
        f'    "{name}": Parameter({one.shape}, '
        f"{', '.join(map(spec_text, (one.weight, one.read, one.gradient, one.moments)))}),\n"
        for name, one in parameters.items()
    )


def spec_text(spec: Spec) -> str:
    """A spec as the text of a ``PartitionSpec``, ``P``."""
    names = ["None" if not axes else repr(axes[0] if len(axes) == 1 else axes) for axes in spec]
    return f"P({', '.join(names)})".replace("'", '"')


TORCH_FILE: Final = "torch_plan.py"
_SCHEDULES: Final = {
    "1f1b": "Schedule1F1B",
    "gpipe": "ScheduleGPipe",
    "interleaved": "ScheduleInterleaved1F1B",
}
_TORCH_TEXT: Final = '''\
"""Plan of one training step. Written by `go-opt export` {version}.

{model}
{parallel}
{notes}"""

from torch.distributed.device_mesh import init_device_mesh

# The dimensions of the DeviceMesh: devices are numbered by tensor, expert, data, pipeline.
MESH = {mesh}
BATCH, MICRO_BATCH, MICRO_BATCHES = {batch}, {micro_batch}, {micro_batches}  # sequences; of a replica
SCHEDULE = {schedule}  # of torch.distributed.pipelining

# Stages in the order of the model: their pipeline rank, and for each layer what is computed again.
STAGES = [
{stages}]

ZERO = {zero}
# The linear modules of a layer whose outputs (column) or inputs (row) the tensor ranks divide.
TENSOR = {tensor}
SEQUENCE_PARALLEL = {sequence_parallel}


def device_mesh(device_type="cuda"):
    """The mesh of all devices; ``device_mesh()["tensor"]`` is that of a tensor group."""
    return init_device_mesh(device_type, tuple(MESH.values()), mesh_dim_names=tuple(MESH))


def replicas(mesh):
    """The mesh of devices with different sequences, among which gradients are summed."""
    return mesh["data", "expert"]._flatten("replicas") if MESH["expert"] > 1 else mesh["data"]


def stages_of(rank):
    """The numbers of the stages of a pipeline rank, and their layers."""
    return {{number: list(layers) for number, (owner, layers) in enumerate(STAGES) if owner == rank}}


def tensor_plan(modules):
    """What parallelize_module takes for a layer, by your names of its modules, such as
    {{"query": "attention.wq", …}}; with sequence parallelism also of "attention", "mlp" and norms.
    """
    from torch.distributed.tensor import Replicate, Shard
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        PrepareModuleInput,
        RowwiseParallel,
        SequenceParallel,
    )

    between = Shard(1) if SEQUENCE_PARALLEL else Replicate()
    styles = {{"column": ColwiseParallel(), "row": RowwiseParallel(output_layouts=between)}}
    plan = {{modules[name]: styles[style] for name, style in TENSOR.items() if name in modules}}
    if SEQUENCE_PARALLEL:
        gathered = PrepareModuleInput(input_layouts=(between,), desired_input_layouts=(Replicate(),))
        plan |= {{modules[name]: gathered for name in ("attention", "mlp")}}
        plan |= {{modules[name]: SequenceParallel() for name in ("attention_norm", "mlp_norm")}}
    return plan


def shard(module, mesh):
    """A stage or layer with its weights, gradients and moments divided as ZeRO 2 or 3 divides them."""
    from torch.distributed.fsdp import fully_shard

    assert ZERO >= 2, "ZeRO 0 is DistributedDataParallel, ZeRO 1 ZeroRedundancyOptimizer"
    return fully_shard(module, mesh=replicas(mesh), reshard_after_forward=ZERO == 3)
'''


def torch_text(shardings: Shardings, model: str) -> str:
    """The module's text."""
    chosen, batch = shardings.chosen, shardings.step.case.batch
    degrees = {name: getattr(chosen, name) for name in ("pipeline", "data", "expert", "tensor")}
    schedule = _SCHEDULES[chosen.schedule] if chosen.pipeline > 1 else None
    notes = "".join(f"{note}\n" for note in torch_notes(shardings))
    text = _TORCH_TEXT.format(
        version=VERSION,
        model=model,
        parallel=pairs_text(vars(chosen)),
        notes=f"\n{notes}" if notes else "",
        mesh=degrees,
        batch=batch,
        micro_batch=chosen.micro_batch,
        micro_batches=chosen.micro_batches(batch),
        schedule=repr(schedule),
        stages="".join(f"    ({stage.rank}, {dict(stage.layers)}),\n" for stage in shardings.stages),
        zero=chosen.zero,
        tensor=_tensor(shardings),
        sequence_parallel=chosen.sequence_parallel,
    )
    return text.replace("'", '"')


def torch_notes(shardings: Shardings) -> list[str]:
    """What of the plan the module does not say."""
    chosen, model = shardings.chosen, shardings.model
    problems = (
        (
            chosen.tensor > 1 and model.kv_heads % chosen.tensor != 0,
            f"Keys and values are whole on each tensor rank, since {chosen.tensor} ranks do not divide "
            f"{model.kv_heads} heads.",
        ),
        (
            chosen.expert > 1,
            "Experts lie along the dimension expert of the mesh; PyTorch has no style that divides them.",
        ),
        (
            chosen.zero == 1,
            "ZeRO 1 is ZeroRedundancyOptimizer in PyTorch; fully_shard begins with ZeRO 2.",
        ),
    )
    return [note for holds, note in problems if holds]


def _tensor(shardings: Shardings) -> dict[str, str]:
    """By name the modules that tensor ranks divide."""
    chosen, model = shardings.chosen, shardings.model
    if chosen.tensor == 1:
        return {}
    keys = ["key", "value"] if model.kv_heads % chosen.tensor == 0 else []
    gate = ["gate"] if model.gated else []
    columns = dict.fromkeys(["query", *keys, *gate, "up"], "column")
    return columns | dict.fromkeys(["attention_out", "down"], "row")


MEGATRON_FILE: Final = "megatron_args.sh"
_FSDP: Final = {2: "optim_grads", 3: "optim_grads_params"}


def megatron_text(shardings: Shardings, model: str) -> str:
    """A file for a shell to source, which sets the array ``MEGATRON_ARGS``."""
    notes = "".join(f"# {note}\n" for note in megatron_notes(shardings))
    arguments = [*_model(shardings), *_degrees(shardings), *_pipeline(shardings), *_memory(shardings)]
    return (
        f"# Arguments of Megatron-LM. Written by `go-opt export` {VERSION}; source this file.\n"
        f"# {model}\n"
        f"# {pairs_text(vars(shardings.chosen))}\n"
        f"# The tokenizer decides the vocabulary, {shardings.model.vocabulary} in the plan.\n"
        f"{notes}"
        "MEGATRON_ARGS=(\n" + "".join(f"  {one}\n" for one in arguments) + ")\n"
    )


def megatron_notes(shardings: Shardings) -> list[str]:
    """What of the plan the arguments do not say."""
    chosen, model = shardings.chosen, shardings.model
    rows = _recomputed(shardings)
    number = max(some + full for _, some, full in rows)
    kinds = {kind for row in rows for kind, n in zip(("none", "attention", "full"), row, strict=True) if n}
    layers = [sum(row) for row in rows]
    problems = (
        (
            chosen.schedule == "gpipe",
            "Megatron-LM runs 1F1B in place of GPipe, which takes as long and keeps less.",
        ),
        (
            _needs_layout(shardings),
            f"The layers of stages, {_listed(layers)}, need --pipeline-model-parallel-layout, which is in "
            "Megatron-Core 0.13 and later.",
        ),
        (
            kinds == {"none", "attention"},
            f"{_listed([row[1] for row in rows])} layers of the stages recompute attention in the plan; here "
            "all do.",
        ),
        (
            "full" in kinds
            and len(kinds) > 1
            and ("attention" in kinds or len({row[2] for row in rows}) > 1),
            f"{_listed([row[1] for row in rows])} layers of the stages recompute attention and "
            f"{_listed([row[2] for row in rows])} all in the plan; here the first {number} of each stage "
            "recompute all, since Megatron-LM has one number for all stages.",
        ),
        (
            model.experts > 1 and chosen.tensor > 1 and not chosen.sequence_parallel,
            "Megatron-LM needs --sequence-parallel to train experts with tensor ranks; the plan has it off.",
        ),
    )
    return [note for holds, note in problems if holds]


def _model(shardings: Shardings) -> Iterator[str]:
    model = shardings.model
    yield f"--num-layers {model.layers}"
    yield f"--hidden-size {model.hidden}"
    yield f"--num-attention-heads {model.heads}"
    if model.kv_heads != model.heads:
        yield "--group-query-attention"
        yield f"--num-query-groups {model.kv_heads}"
    yield f"--ffn-hidden-size {model.mlp}"
    if model.gated:
        yield "--swiglu"
    yield f"--seq-length {model.sequence}"
    yield f"--max-position-embeddings {model.sequence}"
    if model.experts > 1:
        yield f"--num-experts {model.experts}"
        yield f"--moe-router-topk {model.experts_per_token}"
        yield "--moe-token-dispatcher-type alltoall"


def _degrees(shardings: Shardings) -> Iterator[str]:
    chosen = shardings.chosen
    yield f"--tensor-model-parallel-size {chosen.tensor}"
    if chosen.sequence_parallel:
        yield "--sequence-parallel"
    yield f"--pipeline-model-parallel-size {chosen.pipeline}"
    if shardings.model.experts > 1:
        yield f"--expert-model-parallel-size {chosen.expert}"
    yield f"--micro-batch-size {chosen.micro_batch}"
    yield f"--global-batch-size {shardings.step.case.batch}"


def _pipeline(shardings: Shardings) -> Iterator[str]:
    """How layers are divided among stages, if not evenly among ranks."""
    layers, v = [len(stage.layers) for stage in shardings.stages], shardings.chosen.stages_per_device
    if _needs_layout(shardings):
        texts = [f"t*{n}" for n in layers]
        texts[0], texts[-1] = f"E{texts[0]}", f"{texts[-1]}L"
        yield f"--pipeline-model-parallel-layout '{'|'.join(texts)}'"
    elif v > 1:
        yield f"--num-virtual-stages-per-pipeline-rank {v}"
    elif len(set(layers)) > 1:
        yield f"--decoder-first-pipeline-num-layers {layers[0]}"
        yield f"--decoder-last-pipeline-num-layers {layers[-1]}"


def _needs_layout(shardings: Shardings) -> bool:
    layers = [len(stage.layers) for stage in shardings.stages]
    if shardings.chosen.stages_per_device > 1:
        return len(set(layers)) > 1
    # With two ranks the flags leave no layer to the ranks between.
    return len(set(layers)) > 1 and (len(layers) == 2 or len(set(layers[1:-1])) > 1)


def _memory(shardings: Shardings) -> Iterator[str]:
    """ZeRO and recomputation."""
    zero, rows = shardings.chosen.zero, _recomputed(shardings)
    if shardings.chosen.overlap:
        yield "--overlap-grad-reduce"
    if zero:
        yield "--use-distributed-optimizer"
    if zero in _FSDP:
        yield "--use-megatron-fsdp"
        yield f"--data-parallel-sharding-strategy {_FSDP[zero]}"
        yield "--no-gradient-accumulation-fusion"
        yield "--ckpt-format fsdp_dtensor"
    if any(full for _, _, full in rows):
        is_all = not any(none or some for none, some, _ in rows)
        number = max(some + full for _, some, full in rows)
        yield "--recompute-granularity full"
        yield f"--recompute-method {'uniform' if is_all else 'block'}"
        yield f"--recompute-num-layers {1 if is_all else number}"
    elif any(some for _, some, _ in rows):
        yield "--recompute-granularity selective"
        yield "--recompute-modules core_attn"


def _recomputed(shardings: Shardings) -> list[tuple[int, int, int]]:
    """Of each stage the layers that recompute nothing, attention and all."""
    rows = [list(stage.layers.values()) for stage in shardings.stages]
    return [(row.count("none"), row.count("attention"), row.count("full")) for row in rows]


def _listed(numbers: Sequence[int]) -> str:
    if len(set(numbers)) == 1:
        return str(numbers[0])
    return ", ".join(map(str, numbers))


class _Form(NamedTuple):
    file: str
    text: Callable[[Shardings, str], str]  # of the model's text
    notes: Callable[[Shardings], list[str]]  # what of the plan the file does not say


def export_step(
    model: str,
    plan: str | Path,
    directory: str | Path,
    *,
    formats: Sequence[str] = STEP_FORMATS,
    target: Target | None = None,
    force: bool = False,
) -> StepManifest:
    """Write a plan of a training step for libraries that train (docs/export.md).

    Args:
      model: as ``gpt:hidden=768,layers=12,heads=12,sequence=1024``.
      plan: a file of ``optimize --objective step --out``.
      directory: a folder that does not exist or is empty.
      formats: ``jax``, a module with meshes and shardings; ``torch``, one with a ``DeviceMesh``, the layers
        of stages and what is parallelised how; ``megatron``, the arguments of Megatron-LM.
      target: None: the plan's own.
      force: delete the files that the manifest of an earlier export lists; other files stay.

    Raises:
      InvalidInputError: an argument is wrong.
      PlanError: the plan is malformed, of another model or target, or breaks a rule.
    """
    check_formats(formats, STEP_FORMATS)
    check_free(directory, force=force, inputs=(plan, target))
    answer = loaded_step(Path(plan), target, model)
    shardings = checked_shardings(answer)
    step, chosen = answer.step, dict.fromkeys(formats)
    manifest = StepManifest(
        answer.model,
        step.case.machine.target.name,
        step.case.machine.target.fingerprint,
        VERSION,
        step.case.batch,
        pairs_text(vars(step.chosen)),
        step.layers,
        step.step_s,
        {name: _FORMS[name].file for name in chosen},
        tuple(f"{name}: {note}" for name in chosen for note in _FORMS[name].notes(shardings)),
        (),
    )

    def write(folder: Path) -> None:
        for name in chosen:
            form = _FORMS[name]
            (folder / form.file).write_text(form.text(shardings, answer.model), "utf-8")

    return write_export(manifest, directory, write)


def checked_shardings(answer: StepAnswer) -> Shardings:
    """The shardings of a plan that breaks no rule."""
    check_can_run(answer.verify())
    return Shardings(answer.step)


_FORMS: Final[Mapping[str, _Form]] = {
    "jax": _Form(JAX_FILE, jax_text, lambda shardings: shardings.notes),
    "torch": _Form(TORCH_FILE, torch_text, torch_notes),
    "megatron": _Form(MEGATRON_FILE, megatron_text, megatron_notes),
}
