"""Models of equal blocks: transformers of decoder layers, described by a few sizes."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Final

from go_opt.errors import InvalidInputError
from go_opt.parallel.pairs import read_pairs

TRANSFORMER_PREFIX: Final = "gpt:"


@dataclass(frozen=True)
class Transformer:
    """A decoder of equal layers behind a table of tokens, which is also the last product's.

    A layer is attention and an MLP. Biases, norms and positions are left out of the parameters: less than
    0.1 % of them.
    """

    hidden: int
    layers: int
    heads: int
    sequence: int  # tokens of one sequence
    vocabulary: int = 51200
    mlp: int = 0  # columns of the MLP's first product; 0: four times hidden
    kv_heads: int = 0  # heads of keys and values; 0: as many as heads
    gated: bool = False  # the MLP has a second first product, which gates
    experts: int = 1  # MLPs of a layer
    experts_per_token: int = 1

    def __post_init__(self) -> None:
        object.__setattr__(self, "mlp", self.mlp or 4 * self.hidden)
        object.__setattr__(self, "kv_heads", self.kv_heads or self.heads)
        for field in fields(self):
            if getattr(self, field.name) < (field.type != "bool"):
                raise InvalidInputError(f"gpt: {field.name} must be 1 or more.", field=field.name)
        for name, whole, part in (("heads", "hidden", "heads"), ("kv_heads", "heads", "kv_heads")):
            if getattr(self, whole) % getattr(self, part):
                raise InvalidInputError(
                    f"gpt: {name}={getattr(self, name)} does not divide {whole}={getattr(self, whole)}.",
                    field=name,
                )
        if self.experts_per_token > self.experts:
            raise InvalidInputError(
                f"gpt: experts_per_token={self.experts_per_token} is above experts={self.experts}.",
                field="experts_per_token",
            )

    @property
    def kv_columns(self) -> int:
        """Columns of keys, and of values."""
        return self.hidden // self.heads * self.kv_heads

    @property
    def attention_parameters(self) -> int:
        """Of the attention of one layer."""
        return 2 * self.hidden * (self.hidden + self.kv_columns)

    @property
    def mlp_parameters(self) -> int:
        """Of all experts of one layer."""
        return self.experts * (3 if self.gated else 2) * self.hidden * self.mlp

    @property
    def parameters(self) -> int:
        """Of the model; the table of tokens counts once."""
        layer = self.attention_parameters + self.mlp_parameters
        return self.layers * layer + self.vocabulary * self.hidden


def parse_transformer(text: str) -> Transformer:
    """The model of ``gpt:hidden=12288,layers=96,heads=96,sequence=2048``.

    Raises:
      InvalidInputError: a size is missing, malformed or does not divide another.
    """
    return read_pairs(text.removeprefix(TRANSFORMER_PREFIX), Transformer, "gpt")
