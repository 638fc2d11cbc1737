"""What clients and servers share of a channel: its options, and the names of calls."""

from __future__ import annotations

import re
import secrets
from typing import Final

# A graph of a million ops; gRPC's own limit of 4 MiB holds some 40,000.
MAX_MESSAGE_BYTES: Final = 256 * 2**20
MESSAGE_OPTIONS: Final = (
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
)
REQUEST_ID_KEY: Final = "x-request-id"  # finds one call in the logs of all who took part in it
_SANE: Final = re.compile(r"[A-Za-z0-9._:/+=-]{1,128}")


def request_id(given: str | bytes | None) -> str:
    """The caller's name of the call where it can stand in a log, else a new one."""
    if isinstance(given, str) and _SANE.fullmatch(given):
        return given
    return secrets.token_hex(16)
