"""Output types of the attention ops that ONNX Runtime adds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from onnx import TensorProto

from go_opt.frontends.onnx.inference.values import Shape, Value

Kind = tuple[int, Shape]  # element type and shape
Values = Sequence[Value | None]
Attributes = Mapping[str, Any]


def at(inputs: Values, position: int) -> Value:
    """An input that has to be there."""
    value = inputs[position]
    if value is None:
        raise ValueError(position)
    return value


def projected(inputs: Values, attributes: Attributes) -> list[Kind]:
    """[batch, rows, hidden] by a weight of Q, K and V; present is [2, batch, heads, rows, depth]."""
    rows, weight = at(inputs, 0), at(inputs, 1).shape
    past = next((value.shape for value in inputs[4:] if value is not None and len(value.shape) == 5), None)
    is_quantised = rows.elem_type in (TensorProto.INT8, TensorProto.UINT8)
    elem_type = at(inputs, 3).elem_type if is_quantised else rows.elem_type
    widths = list(attributes.get("qkv_hidden_sizes") or [weight[-1] // 3] * 3)
    batch, length, heads = rows.shape[0], rows.shape[1], int(attributes["num_heads"])
    added = 0 if past and attributes.get("past_present_share_buffer") else length
    total = added + (past[3] if past else 0)
    present = (2, batch, heads, total, widths[0] // heads)
    return [(elem_type, (batch, length, widths[2])), (elem_type, present)]


def multi_head(inputs: Values, attributes: Attributes) -> list[Kind]:
    """Q, K and V of [batch, rows, width], or packed in one; past K and V are inputs 6 and 7."""
    query, heads = at(inputs, 0), int(attributes["num_heads"])
    key, value = (inputs[i] if i < len(inputs) else None for i in (1, 2))
    batch, rows = query.shape[:2]
    if len(query.shape) == 5:  # [batch, rows, heads, 3, depth]
        width, kept = heads * query.shape[-1], rows
    elif key is None:
        raise ValueError
    else:
        width = (
            value.shape[-1] * (heads if len(value.shape) == 4 else 1)
            if value is not None
            else query.shape[-1]
        )
        kept = key.shape[-2] if len(key.shape) < 5 else key.shape[1]
    past = inputs[6].shape[2] if len(inputs) > 6 and inputs[6] is not None else 0
    depth = query.shape[-1] // (1 if len(query.shape) == 5 else heads)
    present = [(query.elem_type, (batch, heads, past + kept, one)) for one in (depth, width // heads)]
    return [(query.elem_type, (batch, rows, width)), *present]


def one_step(inputs: Values, attributes: Attributes) -> list[Kind]:
    """A row by sample; K and V are rows too, or all of them with a place for each head, or packed with Q."""
    query, heads = at(inputs, 0), int(attributes["num_heads"])
    key, value, past = (inputs[i] if i < len(inputs) else None for i in (1, 2, 5))
    batch, rows, width = query.shape
    columns = past.shape[2] if past is not None else 0
    columns += 0 if past is not None and attributes.get("past_present_share_buffer") else rows
    if key is None or value is None:
        depth = at(inputs, 5).shape[3]
        depths = [depth, width // heads - 2 * depth]
    else:
        columns = key.shape[2] if len(key.shape) == 4 else columns
        depths = [one.shape[-1] // (1 if len(one.shape) == 4 else heads) for one in (key, value)]
    present = [(query.elem_type, (batch, heads, columns, depth)) for depth in depths]
    return [(query.elem_type, (batch, rows, heads * depths[1])), *present]


def packed(inputs: Values, attributes: Attributes) -> list[Kind]:
    """[rows of all samples, width]: of a weight of Q, K and V; or of V, or of Q, K and V in one."""
    query, value = at(inputs, 0), inputs[2]
    widths = attributes.get("qkv_hidden_sizes")
    if len(query.shape) == 4:  # [rows, heads, 3, depth]
        width = query.shape[1] * query.shape[3]
    elif value is not None and len(value.shape) == 2:
        width = value.shape[-1]
    else:
        width = widths[2] if widths else at(inputs, 1).shape[-1] // 3
    return [(query.elem_type, (query.shape[0], width))]


def grouped(inputs: Values, attributes: Attributes) -> list[Kind]:
    """Q of more heads than K and V; without K, input 0 holds all three."""
    query, heads = at(inputs, 0), int(attributes["num_heads"])
    groups = int(attributes.get("kv_num_heads", heads))
    batch, rows, width = query.shape
    is_packed = len(inputs) < 2 or inputs[1] is None
    depth = width // (heads + 2 * groups if is_packed else heads)
    past = inputs[3].shape[2] if len(inputs) > 3 and inputs[3] is not None else 0
    read = inputs[6].read() if len(inputs) > 6 and inputs[6] is not None else None
    total = past + rows if read is None else max(past, int(read.reshape(-1)[0]))
    present = (query.elem_type, (batch, groups, total, depth))
    return [(query.elem_type, (batch, rows, heads * depth)), present, present]
