"""The streaming recogniser of He et al. (2019): a recurrent transducer, one step of its three networks.

A step reads two stacked frames, 60 ms, and the last word piece; every layer keeps its hidden
state and its cell. It is a module of torch, for the export of a recognizer is usually one of it.
"""

from __future__ import annotations

from typing import Any, Final

MELS: Final = 320  # four frames of 80, stacked
WORD_PIECES: Final = 4096
UNITS, PROJECTED, EMBEDDED = 2048, 640, 128
ENCODER_LAYERS, PREDICTION_LAYERS = 8, 2
# Pairs of frames are joined behind this layer of the encoder.
_JOINED_BEHIND: Final = 2


def transducer_step() -> Any:
    """A module of frames, the last piece and two networks' states; it returns logits and the next states."""
    import torch
    from torch.nn import Embedding, LayerNorm, Linear, Module, ModuleList

    class Cell(Module):  # type: ignore[misc]
        """An LSTM whose gates are normalised and whose hidden state is projected."""

        def __init__(self, width: int) -> None:
            super().__init__()
            self.gates = Linear(width + PROJECTED, 4 * UNITS)
            self.norms = ModuleList(LayerNorm(UNITS) for _ in range(4))
            self.projection = Linear(UNITS, PROJECTED, bias=False)

        def forward(self, x: Any, hidden: Any, cell: Any) -> tuple[Any, Any]:
            parts = self.gates(torch.cat([x, hidden], -1)).chunk(4, -1)
            keep, write, update, read = (norm(part) for norm, part in zip(self.norms, parts, strict=True))
            cell = torch.sigmoid(keep) * cell + torch.sigmoid(write) * torch.tanh(update)
            return self.projection(torch.sigmoid(read) * torch.tanh(cell)), cell

    class Layers(Module):  # type: ignore[misc]
        def __init__(self, *widths: int) -> None:
            super().__init__()
            self.cells = ModuleList(Cell(width) for width in widths)

        def forward(self, x: Any, states: Any) -> tuple[Any, list[Any]]:
            kept = []
            for cell, state in zip(self.cells, states, strict=True):
                x, memory = cell(x, *state)
                kept.append((x, memory))
            return x, kept

    class Transducer(Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            later = ENCODER_LAYERS - _JOINED_BEHIND - 1
            self.first = Layers(MELS, *[PROJECTED] * (_JOINED_BEHIND - 1))
            self.rest = Layers(2 * PROJECTED, *[PROJECTED] * later)
            self.pieces = Embedding(WORD_PIECES, EMBEDDED)
            self.prediction = Layers(EMBEDDED, *[PROJECTED] * (PREDICTION_LAYERS - 1))
            self.heard, self.said = (Linear(PROJECTED, PROJECTED) for _ in range(2))
            self.output = Linear(PROJECTED, WORD_PIECES)

        def forward(self, frames: Any, piece: Any, encoder: Any, prediction: Any) -> tuple[Any, Any, Any]:
            first, joined = encoder[:_JOINED_BEHIND], []
            for frame in frames.unbind(1):
                x, first = self.first(frame, first)
                joined.append(x)
            heard, rest = self.rest(torch.cat(joined, -1), encoder[_JOINED_BEHIND:])
            said, prediction = self.prediction(self.pieces(piece), prediction)
            logits = self.output(torch.tanh(self.heard(heard) + self.said(said)))
            return logits, [*first, *rest], prediction

    return Transducer()
