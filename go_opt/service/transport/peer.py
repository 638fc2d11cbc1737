"""Who calls, by the transport alone."""

from __future__ import annotations

from typing import Any
from urllib.parse import unquote


def peer_host(context: Any) -> str:
    """The host of the caller, without the port, which changes with every connection."""
    scheme, _, place = unquote(context.peer()).partition(":")
    return place.rpartition(":")[0].strip("[]") if scheme in ("ipv4", "ipv6") else scheme
