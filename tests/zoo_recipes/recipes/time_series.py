"""Forecasts of time series: encoders and dense layers over patches, and sparse attention."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from importlib import import_module
from typing import Any, Final
from unittest.mock import patch

import numpy as np
from numpy.typing import NDArray

from tests.zoo_recipes.exporters import called_graph, transformers_graph
from tests.zoo_recipes.recipe import Recipe

# ETTh1: 7 columns; hour, weekday, day of the month and of the year. Width 512, 8 heads, as the paper.
_COLUMNS: Final = 7
_CALENDAR: Final = 4
_WIDTHS: Final = {
    "d_model": 512,
    **{f"{side}_attention_heads": 8 for side in ("encoder", "decoder")},
    **{f"{side}_ffn_dim": 2048 for side in ("encoder", "decoder")},
}
# Weather: 21 columns, 512 steps in patches of 16.
_WEATHER: Final = {
    "num_input_channels": 21,
    "context_length": 512,
    "prediction_length": 96,
    "patch_length": 16,
}


def _weather(name: str, model: str, **settings: Any) -> Recipe:
    config, inputs = model.partition("For")[0] + "Config", {"past_values": np.zeros((1, 512, 21), np.float32)}
    build = partial(transformers_graph, model, config, {**_WEATHER, **settings}, inputs)
    return Recipe(name, name, "transformers", f"{model}, 512 steps of 21 columns", build)


def _ett(name: str, model: str, steps: int, **settings: Any) -> Recipe:
    """96 steps of ETTh1 and the known future."""
    sizes = {
        "input_size": _COLUMNS,
        "num_time_features": _CALENDAR,
        "context_length": 96,
        "prediction_length": steps,
        "lags_sequence": [1],
        "scaling": None,
        **_WIDTHS,
        **settings,
    }
    config = model.partition("For")[0] + "Config"
    build = partial(called_graph, model, config, sizes, _forecast, _series(97, steps))
    return Recipe(name, name, "transformers", f"{model}, 96 steps of 7 columns, {steps} ahead", build)


def _series(past: int, future: int) -> Mapping[str, NDArray]:
    def zeros(steps: int, columns: int) -> NDArray:
        return np.zeros((1, steps, columns), np.float32)

    return {
        "past": zeros(past, _COLUMNS),
        "observed": zeros(past, _COLUMNS),
        "past_calendar": zeros(past, _CALENDAR),
        "future": zeros(future, _COLUMNS),
        "future_calendar": zeros(future, _CALENDAR),
    }


def _forecast(
    network: Any, past: Any, observed: Any, past_calendar: Any, future: Any, future_calendar: Any
) -> Any:
    """The parameters of the forecast's distribution, before they are mapped into their ranges."""
    module = import_module(type(network).__module__)
    # The library makes masks for the length before the layers that shorten it.
    with patch.object(module, "create_bidirectional_mask", lambda **_: None):
        outputs = network.model(
            past_values=past,
            past_observed_mask=observed,
            past_time_features=past_calendar,
            future_values=future,
            future_time_features=future_calendar,
            use_cache=False,
        )
    return [projection(outputs.last_hidden_state) for projection in network.parameter_projection.proj]


RECIPES: Final = (
    _ett("informer", "InformerForPrediction", 24, encoder_layers=3, decoder_layers=2),
    _weather(
        "patchtsmixer",
        "PatchTSMixerForPrediction",
        patch_stride=16,
        d_model=48,
        expansion_factor=3,
        num_layers=8,
    ),
    _weather(
        "patchtst",
        "PatchTSTForPrediction",
        patch_stride=8,
        num_attention_heads=16,
        ffn_dim=256,
        pooling_type=None,
    ),
)
