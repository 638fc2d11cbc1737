"""gRPC's own services behind the same parser as go-opt's: bytes that are no message are refused as such."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import grpc
from grpc_status import rpc_status

from go_opt.errors import InvalidInputError
from go_opt.service.messages.errors import status_from_error
from go_opt.service.messages.requests import parsed


class ParsedRequests(grpc.GenericRpcHandler):  # type: ignore[misc]
    """The methods of a handler, with the requests parsed here."""

    def __init__(self, handler: grpc.GenericRpcHandler) -> None:
        self._handler = handler

    def service(self, details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler | None:
        method = self._handler.service(details)
        if method is None:
            return None
        kind = method.request_deserializer.__self__  # it is FromString of the message's class

        async def serve(requests: AsyncIterator[bytes], context: Any) -> None:
            async def messages() -> AsyncIterator[Any]:
                async for data in requests:
                    try:
                        message = parsed(kind, data)
                    except InvalidInputError as error:
                        rpc = rpc_status.to_status(status_from_error(error))
                        await context.abort(rpc.code, rpc.details, rpc.trailing_metadata)
                    yield message

            if method.request_streaming:
                async for answer in method.stream_stream(messages(), context):
                    await context.write(answer)
                return
            async for message in messages():
                if method.response_streaming:
                    await method.unary_stream(message, context)  # which writes its answers
                else:
                    await context.write(await method.unary_unary(message, context))

        return grpc.stream_stream_rpc_method_handler(serve, response_serializer=method.response_serializer)
