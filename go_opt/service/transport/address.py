"""Addresses as ``HOST:PORT``, with IPv6 hosts in brackets."""

from __future__ import annotations

import ipaddress
import re
import socket
from dataclasses import dataclass
from typing import Final

from go_opt.errors import InvalidInputError

DEFAULT_ADDRESS: Final = "127.0.0.1:50051"
_HOST_PORT: Final = re.compile(
    r"(?:\[(?P<ipv6>[0-9A-Fa-f:.]+)\]|(?P<host>[A-Za-z0-9._-]+)):(?P<port>[0-9]{1,5})"
)


@dataclass(frozen=True)
class Address:
    """Where a service listens."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def is_loopback(self) -> bool:
        """Whether only this machine can reach the address."""
        if self.host == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:  # a name may resolve to another machine
            return False


def parse_address(text: str, *, field: str = "address") -> Address:
    """Parses an address such as ``127.0.0.1:50051`` or ``[::1]:50051``."""
    match = _HOST_PORT.fullmatch(text)
    if match is None or int(match["port"]) > 65535:
        raise InvalidInputError(
            f"{field} must be HOST:PORT, such as {DEFAULT_ADDRESS}, not {text[:100]!r}.", field=field
        )
    return Address(match["ipv6"] or match["host"], int(match["port"]))


def check_free(address: Address, *, field: str = "address") -> None:
    """Raise if this process cannot listen at the address, with the system's reason.

    gRPC itself reports a busy port only with several log lines.
    """
    try:
        family, kind, protocol, _, place = socket.getaddrinfo(
            address.host, address.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        with socket.socket(family, kind, protocol) as probe:
            # As in gRPC: a port is free even if old connections of its last owner linger.
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(place)
            probe.listen(1)
    except OSError as error:
        reason = error.strerror or error
        raise InvalidInputError(f"cannot listen on {address}: {reason}.", field=field) from None
