"""A plan of a training step as arguments of Megatron-LM."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from go_opt.common.version import VERSION
from go_opt.parallel.export.shardings import Shardings
from go_opt.parallel.transformer import pairs_text

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
