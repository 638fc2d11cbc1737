"""A cache of decoded graphs, because compilers often send the same graph."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Final

from google.protobuf.message import DecodeError

from go_opt.errors import GraphError, ModelError
from go_opt.frontends.onnx_model import OnnxModel
from go_opt.model.codecs.wire import bindings_from_proto, precision_from_proto
from go_opt.proto import graph_pb2, optimizer_pb2
from go_opt.service.messages.requests import check_parts, request_part
from go_opt.service.messages.sent_graph import SentGraph
from go_opt.service.messages.sized_cache import SizedCache

_MAX_BYTES: Final = 32 * 2**20  # of messages; a graph is about as large as its message


class DecodedGraphs:
    """Decodes graph messages and caches recent graphs by digest; thread-safe."""

    def __init__(self, max_bytes: int = _MAX_BYTES) -> None:
        self._graphs: SizedCache[SentGraph] = SizedCache(max_bytes)

    def get(self, data: bytes) -> SentGraph:
        """The validated graph of a message's bytes.

        Raises:
          GraphError: one sentence that names the op, tensor or field at fault.
        """
        return self._known(data, lambda: _decoded(data))

    def of_onnx(
        self, model: optimizer_pb2.OnnxModel, checkpoint: Callable[[], None] = lambda: None
    ) -> SentGraph:
        """The graph of an ONNX file, as from :meth:`OnnxModel.graph`.

        Raises:
          InvalidInputError: one sentence that names the op, tensor, dimension or field at fault.
        """
        # Deterministic, because maps have no order. The prefix keeps these keys apart from graph messages.
        return self._known(
            b"onnx" + model.SerializeToString(deterministic=True), lambda: _imported(model, checkpoint)
        )

    def _known(self, data: bytes, decode: Callable[[], SentGraph]) -> SentGraph:
        digest = hashlib.sha256(data).digest()
        graph = self._graphs.get(digest)
        if graph is None:
            graph = decode()
            self._graphs.put(digest, graph, len(data))
        return graph


def _imported(model: optimizer_pb2.OnnxModel, checkpoint: Callable[[], None]) -> SentGraph:
    import onnx

    with request_part("onnx", optimizer_pb2.OnnxModel):
        check_parts(onnx.ModelProto, model.file)
        precision = precision_from_proto(model.precision, ModelError)
        bindings = bindings_from_proto(model, "the model", ModelError)
        return SentGraph(OnnxModel(model.file, **vars(bindings), precision=precision).graph(checkpoint))


def _decoded(data: bytes) -> SentGraph:
    with request_part("graph", graph_pb2.Graph):
        check_parts(graph_pb2.Graph, data)
        try:
            message = graph_pb2.Graph.FromString(data)
        except DecodeError:
            raise GraphError("the graph is no go_opt.v1.Graph message.") from None
        return SentGraph.from_proto(message)
