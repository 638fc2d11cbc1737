"""Retrieval: one tower for the query, one for the candidates."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from flax import nnx

from tests.zoo_recipes.models.tables import Mlp, Tables, rows_of

_VIDEOS, _CHANNELS, _TOPICS = 10_000_000, 1_000_000, 10_000
_PROFILE_ROWS = (250, 100, 10, 10, 100, 24, 7)  # country, language, device, gender, age, hour, day
_ATTRIBUTE_ROWS = (100, 50, 20, 1000)  # of a video: language, category, length, age


class TwoTower(nnx.Module):
    """Yi et al., "Sampling-Bias-Corrected Neural Modeling for Large Corpus Item Recommendations".

    A seed video, the mean over what the user watched and the user's profile against
    candidate videos. Both towers are 1024-512-128 and share the tables of videos and
    channels; their outputs have length 1. The paper gives no table sizes: those are round.
    """

    _WIDTH = 64  # of a video, channel or topic
    _ATTRIBUTE = 16

    def __init__(self, dense: int, rngs: nnx.Rngs) -> None:
        self.videos, self.channels, self.topics = (
            nnx.Embed(rows, self._WIDTH, rngs=rngs) for rows in (_VIDEOS, _CHANNELS, _TOPICS)
        )
        self.profile = Tables(_PROFILE_ROWS, self._ATTRIBUTE, rngs)
        self.seed_attributes = Tables(_ATTRIBUTE_ROWS, self._ATTRIBUTE, rngs)
        self.attributes = Tables(_ATTRIBUTE_ROWS, self._ATTRIBUTE, rngs)
        video = 3 * self._WIDTH + len(_ATTRIBUTE_ROWS) * self._ATTRIBUTE + dense
        query = video + 2 * self._WIDTH + len(_PROFILE_ROWS) * self._ATTRIBUTE
        self.query_tower = Mlp(query, 1024, 512, 128, rngs=rngs)
        self.candidate_tower = Mlp(video, 1024, 512, 128, rngs=rngs)

    def __call__(
        self, seed: list[jax.Array], watched_videos: jax.Array, watched_channels: jax.Array,
        profile: list[jax.Array], candidate: list[jax.Array],
    ) -> jax.Array:  # fmt: skip
        """Score of each candidate for each query; a video is its dense columns and its ids."""
        history = [
            rows_of(self.videos, watched_videos).mean(axis=1),
            rows_of(self.channels, watched_channels).mean(axis=1),
        ]
        columns = [*self._video(seed, self.seed_attributes), *history, *self.profile(profile)]
        query = self.query_tower(jnp.concatenate(columns, axis=-1))
        items = self.candidate_tower(jnp.concatenate(self._video(candidate, self.attributes), axis=-1))
        return _normalised(query) @ _normalised(items).T

    def _video(self, columns: list[jax.Array], attributes: Tables) -> list[jax.Array]:
        dense, video, channel, topic, *others = columns
        return [
            dense,
            rows_of(self.videos, video),
            rows_of(self.channels, channel),
            rows_of(self.topics, topic),
            *attributes(others),
        ]


def _normalised(x: jax.Array) -> jax.Array:
    return x / jnp.sqrt(jnp.square(x).sum(axis=-1, keepdims=True))
