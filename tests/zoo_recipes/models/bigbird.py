"""BigBird's attention in blocks (Zaheer et al. 2020) over a sequence without padding, so without masks."""

from __future__ import annotations

from typing import Any


def block_attention(network: Any) -> Any:
    """BigBird of ``transformers`` for a batch of 1, its attention as in :func:`_attention`."""
    from transformers.models.big_bird.modeling_big_bird import BigBirdBlockSparseAttention

    BigBirdBlockSparseAttention.bigbird_block_sparse_attention = _attention
    return network


def _attention(module: Any, query: Any, key: Any, value: Any, *_: Any, **__: Any) -> tuple[Any, None]:
    """The first and the last block read all; others those two, their neighbours and random ones."""
    import torch

    keys, values = key.squeeze(0), value.squeeze(0)  # (heads, tokens, width)
    blocks = query.squeeze(0).unflatten(1, (-1, module.block_size))
    near = zip(_read_by_inner(module, keys), _read_by_inner(module, values), strict=True)
    inner = [
        _attended(part, *read)
        for part, read in zip((blocks[:, 1:2], blocks[:, 2:-2], blocks[:, -2:-1]), near, strict=True)
    ]
    outer = [_attended(part, keys[:, None], values[:, None]) for part in (blocks[:, :1], blocks[:, -1:])]
    context = torch.cat([outer[0], *inner, outer[1]], dim=1)
    return context.flatten(1, 2).transpose(0, 1)[None], None


def _read_by_inner(module: Any, vectors: Any) -> tuple[Any, Any, Any]:
    """What the second block reads, what those in the middle read, and what the last but one reads."""
    import torch

    blocks = vectors.unflatten(1, (-1, module.block_size))
    heads, count = blocks.shape[:2]
    # The random blocks of each head; which ones makes no difference to the graph.
    size = (heads, (count - 2) * module.num_random_blocks)
    chosen = torch.arange(size[0] * size[1]).reshape(size) % count
    random = blocks[torch.arange(heads)[:, None], chosen].unflatten(1, (count - 2, -1)).flatten(2, 3)

    first, last = blocks[:, :1], blocks[:, -1:]
    ends = [end.expand(-1, count - 4, -1, -1) for end in (first, last)]
    window = [blocks[:, 1:-3], blocks[:, 2:-2], blocks[:, 3:-1]]
    return (
        torch.cat([blocks[:, :3].flatten(1, 2)[:, None], last, random[:, :1]], dim=2),
        torch.cat([*ends, *window, random[:, 1:-1]], dim=2),
        torch.cat([first, blocks[:, -3:].flatten(1, 2)[:, None], random[:, -1:]], dim=2),
    )


def _attended(query: Any, keys: Any, values: Any) -> Any:
    scores = query @ keys.transpose(-1, -2) * query.shape[-1] ** -0.5
    return scores.softmax(dim=-1) @ values
