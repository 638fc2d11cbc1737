"""RWKV's recurrence (Peng et al. 2023) without a copy of all outputs at every token."""

from __future__ import annotations

from typing import Any


def stacked_rwkv(network: Any) -> Any:
    """RWKV of ``transformers``, its recurrence as in :func:`_recurrence`."""
    from transformers.models.rwkv import modeling_rwkv

    modeling_rwkv.rwkv_linear_attention = _recurrence
    return network


def _recurrence(decay: Any, first: Any, key: Any, value: Any, **_: Any) -> tuple[Any, None]:
    """From the start of a sequence, without a state to go on from."""
    import torch

    decay = -torch.exp(decay)
    weighted = total = torch.zeros_like(key[:, 0])
    largest = torch.full_like(key[:, 0], -1e38)  # exponents are kept relative to it
    outputs = []
    for k, v in zip(key.unbind(1), value.unbind(1), strict=True):
        top = torch.maximum(largest, k + first)
        old, new = torch.exp(largest - top), torch.exp(k + first - top)
        outputs.append((old * weighted + new * v) / (old * total + new))
        top = torch.maximum(largest + decay, k)
        old, new = torch.exp(largest + decay - top), torch.exp(k - top)
        weighted, total, largest = old * weighted + new * v, old * total + new, top
    return torch.stack(outputs, dim=1), None
