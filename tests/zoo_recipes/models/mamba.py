"""Mamba's selective scan (Gu and Dao 2023), token by token, each output written once."""

from __future__ import annotations

from typing import Any


def unrolled_mamba(network: Any) -> Any:
    """Mamba of ``transformers``, its scan as in :func:`_scan`."""
    from transformers.models.mamba import modeling_mamba

    modeling_mamba.mamba_selective_scan = _scan
    return network


def _scan(hidden: Any, step: Any, a: Any, b: Any, c: Any, D: Any, z: Any, delta_bias: Any, **_: Any) -> Any:
    """From the start of a sequence; ``b`` and ``c`` are (batch, states, tokens)."""
    import torch
    from torch.nn.functional import silu, softplus

    step = softplus(step + delta_bias[:, None])
    kept = torch.exp(a[:, None] * step[..., None])
    added = step[..., None] * b.transpose(1, 2)[:, None] * hidden[..., None]
    state, outputs = None, []
    for keep, add, read in zip(kept.unbind(2), added.unbind(2), c.split(1, dim=2), strict=True):
        state = add if state is None else keep * state + add
        outputs.append(state @ read)
    return (torch.cat(outputs, dim=2) + hidden * D[:, None]) * silu(z)
