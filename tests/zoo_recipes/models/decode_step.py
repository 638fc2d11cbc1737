"""One step of decoding: a new token behind those whose keys and values are kept."""

from __future__ import annotations

from typing import Any


def decode_step(network: Any) -> Any:
    """A decoder of ``transformers`` as a module of the new token and the cache, which it returns longer."""
    import torch
    from transformers import DynamicCache

    class DecodeStep(torch.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.network = network

        def forward(self, token: Any, past: Any) -> tuple[Any, list[Any]]:
            cache = DynamicCache(past)
            out = self.network(input_ids=token, past_key_values=cache, use_cache=True)
            return out.logits, [(layer.keys, layer.values) for layer in out.past_key_values.layers]

    return DecodeStep()
