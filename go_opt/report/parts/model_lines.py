"""The text of ``inspect``: a model before any target."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from rich.table import Table

from go_opt.common.units import format_bytes
from go_opt.frontends.onnx_frontend import TensorHeader
from go_opt.model_summary import ModelSummary, OpTypeStats
from go_opt.report.parts.wording import counted, states_texts, table_of, unknown_types, unpaired_text

_TEXT: Final = ("op type", "layer")
_MOST_TENSORS: Final = 12


def summary_lines(summary: ModelSummary, model: str) -> Iterator[str]:
    """Name and sizes, inputs and outputs, what is still to bind, ops of unknown type, and states."""
    known = "" if summary.ops is None else f"{counted(summary.ops, 'op')}, {summary.flops or 0:.4g} FLOP, "
    yield f"{summary.name}: {known}{format_bytes(summary.weight_bytes)} of weights"
    yield from _tensors("inputs", summary.inputs)
    yield from _tensors("outputs", summary.outputs)
    if summary.dims:
        yield "dims        " + ", ".join(f"{name} = {value}" for name, value in summary.dims.items())
    if summary.unbound:
        example = " ".join(f"--dim '{name}=1'" for name in summary.unbound)
        yield f"to bind     {', '.join(summary.unbound)}; such as: go-opt inspect {model} {example}"
    for line in unknown_types(summary.unknown_ops):
        yield f"unknown     {line}"
    yield from (f"states      {text}" for text in states_texts(summary.states))
    if text := unpaired_text(summary.unpaired_states, summary.bound_states):
        yield f"unpaired    {text}"


def op_types_table(op_types: Iterable[OpTypeStats], flops: float | None) -> Table:
    """Op types with their counts and work, as shares of all ``flops``."""
    rows = (
        (row.op_type, row.ops, *("--" if row.flops is None else _work(row.flops, flops))) for row in op_types
    )
    return table_of(("op type", "ops", "GFLOP", "share"), rows, text=_TEXT)


def layers_table(summary: ModelSummary) -> Table:
    """Layers with their work and weights."""
    rows = (
        (one.name or "-", one.ops, *_work(one.flops, summary.flops), format_bytes(one.weight_bytes))
        for one in summary.layers
    )
    return table_of(("layer", "ops", "GFLOP", "share", "weights"), rows, text=_TEXT)


def _tensors(label: str, tensors: tuple[TensorHeader, ...]) -> Iterator[str]:
    for i, tensor in enumerate(tensors[:_MOST_TENSORS]):
        shape = "of unknown shape" if tensor.shape is None else f"[{', '.join(map(str, tensor.shape))}]"
        yield f"{label if i == 0 else '':12}{tensor.name} {tensor.dtype} {shape}"
    if len(tensors) > _MOST_TENSORS:
        yield f"{'':12}and {len(tensors) - _MOST_TENSORS} more"


def _work(flops: float, total: float | None) -> tuple[str, str]:
    return f"{flops / 1e9:.3f}", f"{flops / total:.1%}" if total else "-"
