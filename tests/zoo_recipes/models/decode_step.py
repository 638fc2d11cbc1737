"""One step of decoding: a new token behind those whose keys, values or states are kept.

What ``torch.onnx.export`` makes of them: inputs are named after the arguments (``past_0_1``),
outputs after the op that makes them (``cat_4``), so the recipes name both as exporters do
(:func:`cache_names`). Keys and values grow by one row in a Concat. What a model of ``transformers``
writes in place (``copy_``, ``roll`` of Mamba's states) is exported as a new tensor, and keys and
values of an encoder as an Identity of the input.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tests.zoo_recipes.hollow import Names


def cache_names(layers: int, parts: Sequence[str] = ("key", "value"), token: str = "input_ids") -> Names:
    """Names as ``optimum`` gives them: ``past_key_values.0.key`` and ``present.0.key``."""
    ends = [f"{layer}.{part}" for layer in range(layers) for part in parts]
    past, present = ([f"{start}.{end}" for end in ends] for start in ("past_key_values", "present"))
    return ["input_ids", *past], ["logits", *present]


def decode_step(network: Any) -> Any:
    """A decoder of ``transformers`` as a module of the new token and the cache, which it returns longer."""
    import torch
    from transformers import DynamicCache

    class DecodeStep(torch.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.network = network

        def forward(self, token: Any, past: Any) -> tuple[Any, list[Any]]:
            out = self.network(input_ids=token, past_key_values=DynamicCache(past), use_cache=True)
            return out.logits, _kept(out.past_key_values)

    return DecodeStep()


def prefill(network: Any) -> Any:
    """A decoder of ``transformers`` as a module of a prompt, which returns the cache of its tokens."""
    import torch
    from transformers import DynamicCache

    class Prefill(torch.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.network = network

        def forward(self, tokens: Any) -> tuple[Any, list[Any]]:
            out = self.network(
                input_ids=tokens, past_key_values=DynamicCache(), use_cache=True, logits_to_keep=1
            )
            return out.logits, _kept(out.past_key_values)

    return Prefill()


def whisper_step(network: Any) -> Any:
    """Whisper's decoder: its own cache grows, what it reads of the encoder stays."""
    import torch
    from transformers import DynamicCache, EncoderDecoderCache

    class WhisperStep(torch.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.network = network

        def forward(self, token: Any, past: Any) -> tuple[Any, list[Any]]:
            """A layer of ``past`` is its own key and value, then those of the encoder."""
            own, encoder = ([layer[start : start + 2] for layer in past] for start in (0, 2))
            # Only its presence counts, since its keys and values are there.
            heard = torch.zeros(1, 1, self.network.config.d_model)
            out = self.network.model.decoder(
                input_ids=token,
                encoder_hidden_states=heard,
                past_key_values=EncoderDecoderCache(DynamicCache(own), DynamicCache(encoder)),
                use_cache=True,
            )
            kept = _kept(out.past_key_values.self_attention_cache)
            logits = self.network.proj_out(out.last_hidden_state)
            return logits, [(*ours, *theirs) for ours, theirs in zip(kept, encoder, strict=True)]

    return WhisperStep()


def mamba_step(network: Any) -> Any:
    """Mamba as a module of the new token, the last inputs of each convolution and the states."""
    import torch
    from transformers import DynamicCache

    class MambaStep(torch.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.network = network

        def forward(self, token: Any, past: Any) -> tuple[Any, list[Any]]:
            cache = DynamicCache(config=self.network.config)
            for layer, (inputs, state) in zip(cache.layers, past, strict=True):
                layer.conv_states[0], layer.recurrent_states[0] = inputs.clone(), state.clone()
                layer.conv_kernel_size[0] = inputs.shape[-1]
                for known in (layer.is_conv_states_initialized, layer.is_recurrent_states_initialized):
                    known[0] = True
                layer.has_previous_state[0] = True
            out = self.network(input_ids=token, cache_params=cache, use_cache=True)
            return out.logits, [(layer.conv_states[0], layer.recurrent_states[0]) for layer in cache.layers]

    return MambaStep()


def _kept(cache: Any) -> list[Any]:
    return [(layer.keys, layer.values) for layer in cache.layers]
