"""A plan of a training step as a Python module of PyTorch."""

from __future__ import annotations

from typing import Final

from go_opt.common.version import VERSION
from go_opt.parallel.export.shardings import Shardings
from go_opt.parallel.transformer import pairs_text

TORCH_FILE: Final = "torch_plan.py"
_SCHEDULES: Final = {
    "1f1b": "Schedule1F1B",
    "gpipe": "ScheduleGPipe",
    "interleaved": "ScheduleInterleaved1F1B",
}
_TEXT: Final = '''\
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
    text = _TEXT.format(
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
