"""The bytes of an ONNX file, which a service accepts instead of a graph."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from go_opt.errors import ModelError
from go_opt.model.bindings import Bindings, Numbers
from go_opt.model.graph import Graph, Precision, check_precision


@dataclass(frozen=True, eq=False)
class OnnxModel:
    """An ONNX file; other files that it refers to are never read.

    Args:
      file: its bytes.
      dims, values, trips, states, precision: as :func:`go_opt.load`.
    """

    file: bytes
    dims: Mapping[str, int] = field(default_factory=dict)
    precision: Precision = "native"
    values: Mapping[str, Numbers] = field(default_factory=dict)
    trips: Mapping[str, int] = field(default_factory=dict)
    states: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_precision(self.precision)

    @property
    def bindings(self) -> Bindings:
        """What is bound at import."""
        return Bindings.of(self.dims, self.values, self.trips, self.states)

    def graph(self, checkpoint: Callable[[], None] = lambda: None) -> Graph:
        """The graph of the model.

        Args:
          checkpoint: called before each node; a GoOptError that it raises ends the import.

        Raises:
          ModelError, GraphError: one sentence that names the op, tensor or dimension at fault.
        """
        import onnx
        from google.protobuf.message import DecodeError

        from go_opt.frontends.onnx_frontend import import_onnx

        try:
            model = onnx.load_model_from_string(self.file)
        except (DecodeError, ValueError, RuntimeError):
            message = "the file is truncated or not an ONNX model, or its bodies are nested too deep."
            raise ModelError(message, field="file") from None
        return import_onnx(model, self.bindings, self.precision, checkpoint)[0]
