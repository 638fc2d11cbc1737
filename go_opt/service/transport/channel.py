"""Options of channels that clients and servers share."""

from __future__ import annotations

from typing import Final

# A graph of a million ops; gRPC's own limit of 4 MiB holds some 40,000.
MAX_MESSAGE_BYTES: Final = 256 * 2**20
MESSAGE_OPTIONS: Final = (
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
)
