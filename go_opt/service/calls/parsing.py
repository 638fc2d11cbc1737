"""gRPC's own services behind the same parser as go-opt's: bytes that are no message are refused as such.

gRPC would answer them with UNKNOWN.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import grpc
from google.protobuf.message import DecodeError
from grpc_status import rpc_status

from go_opt.service.calls.calls import not_a_message
from go_opt.service.messages.errors import status_from_error

_Context = Any  # grpc.aio.ServicerContext; gRPC has no types


class ParsedRequests(grpc.GenericRpcHandler):  # type: ignore[misc]
    """The methods of a handler, with the requests parsed here."""

    def __init__(self, handler: grpc.GenericRpcHandler) -> None:
        self._handler = handler

    def service(self, details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler | None:
        method = self._handler.service(details)
        if method is None:
            return None
        make, serve = _of_kind(method)
        return make(serve, response_serializer=method.response_serializer)


def _of_kind(method: grpc.RpcMethodHandler) -> tuple[Any, Any]:
    """What makes such a method, and what serves it from bytes."""
    parse = method.request_deserializer

    async def parsed(data: bytes, context: _Context) -> Any:
        try:
            return parse(data)
        except DecodeError:
            error = not_a_message(parse.__self__, data)  # parse is FromString of the message's class
        rpc = rpc_status.to_status(status_from_error(error))
        return await context.abort(rpc.code, rpc.details, rpc.trailing_metadata)

    async def one(data: bytes, context: _Context) -> Any:
        serve = method.unary_stream if method.response_streaming else method.unary_unary
        return await serve(await parsed(data, context), context)

    async def many(requests: AsyncIterator[bytes], context: _Context) -> AsyncIterator[Any]:
        async def messages() -> AsyncIterator[Any]:
            async for data in requests:
                yield await parsed(data, context)

        async for answer in method.stream_stream(messages(), context):
            yield answer

    if method.request_streaming:
        return grpc.stream_stream_rpc_method_handler, many
    if method.response_streaming:
        return grpc.unary_stream_rpc_method_handler, one
    return grpc.unary_unary_rpc_method_handler, one
