"""Credentials of clients and servers, and channels that use them."""

from __future__ import annotations

import re
import secrets
import ssl
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import grpc

from go_opt.errors import InvalidInputError
from go_opt.service.transport.address import Address

# Enough for a graph of a million ops; gRPC's default of 4 MiB is enough for about 40,000.
MAX_MESSAGE_BYTES: Final = 256 * 2**20
MESSAGE_OPTIONS: Final = (
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
)
REQUEST_ID_KEY: Final = "x-request-id"  # identifies a call in the logs of all services involved
_SANE: Final = re.compile(r"[A-Za-z0-9._:/+=-]{1,128}")
_TOKEN: Final = re.compile(r"[\x21-\x7e]{1,4096}")  # valid in a header, without spaces


def request_id(given: str | bytes | None) -> str:
    """The caller's request id if it is safe to log, else a new id."""
    if isinstance(given, str) and _SANE.fullmatch(given):
        return given
    return secrets.token_hex(16)


@dataclass(frozen=True)
class Credentials:
    """The credentials of a connection; the default is an unencrypted connection without a token.

    Args:
      tls: encrypt, and trust services with a certificate from a public authority.
      tls_ca: encrypt, and trust services with a certificate from an authority in this PEM file.
      tls_cert, tls_key: PEM files of this client's own certificate and its key, for a
        service that requires one.
      token: sent with every call; requires encryption, except for calls to this machine.
    """

    tls: bool = False
    tls_ca: str | Path | None = None
    tls_cert: str | Path | None = None
    tls_key: str | Path | None = None
    token: str | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        if (self.tls_cert is None) != (self.tls_key is None):
            raise InvalidInputError("tls_cert and tls_key go together.", field="tls_cert")
        if self.tls_cert is not None and not self.is_encrypted:
            raise InvalidInputError("tls_cert needs tls or tls_ca.", field="tls_cert")
        if self.token is not None and not _TOKEN.fullmatch(self.token):
            raise InvalidInputError(
                "token must be 1 to 4096 printable ASCII characters without spaces.", field="token"
            )

    @property
    def is_encrypted(self) -> bool:
        """Whether calls are encrypted."""
        return self.tls or self.tls_ca is not None

    @property
    def metadata(self) -> tuple[tuple[str, str], ...]:
        """The metadata of every call: the token. An insecure channel rejects gRPC's call credentials."""
        return () if self.token is None else (("authorization", f"Bearer {self.token}"),)


def channel(
    address: Address, credentials: Credentials, options: Sequence[tuple[str, str]] = ()
) -> grpc.Channel:
    """A channel to the address; it connects with its first call.

    Args:
      options: further options of gRPC.

    Raises:
      InvalidInputError: a file cannot be used, or the token would be sent unencrypted.
    """
    if credentials.token is not None and not (credentials.is_encrypted or address.is_loopback):
        raise InvalidInputError(
            f"token: it would reach {address} unencrypted; give tls or tls_ca.", field="token"
        )
    every = (*_options(address), *options)
    if credentials.is_encrypted:
        return grpc.secure_channel(str(address), _tls(credentials), options=every)
    return grpc.insecure_channel(str(address), options=every)


def _tls(credentials: Credentials) -> grpc.ChannelCredentials:
    authorities = certificate = key = None
    # gRPC itself only logs an error in a file, and then never connects.
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    if credentials.tls_ca is not None:
        ca = credentials.tls_ca
        authorities = _content(ca, "tls_ca", "tls_ca")
        _check(
            f"tls_ca: {str(ca)!r} is no PEM file that fits",
            "tls_ca",
            lambda: context.load_verify_locations(ca),
        )
    if credentials.tls_cert is not None and credentials.tls_key is not None:
        cert, key_file = credentials.tls_cert, credentials.tls_key
        certificate, key = _content(cert, "tls_cert", "tls_cert"), _content(key_file, "tls_key", "tls_key")
        problem = f"tls_cert: {str(cert)!r} is no PEM file that fits"
        _check(problem, "tls_cert", lambda: context.load_cert_chain(cert, key_file, _no_password))
    return grpc.ssl_channel_credentials(authorities, key, certificate)


def _options(address: Address) -> tuple[tuple[str, int], ...]:
    return (
        *MESSAGE_OPTIONS,
        # Without pings, a call to a vanished machine would wait forever.
        ("grpc.keepalive_time_ms", 30_000),
        ("grpc.keepalive_timeout_ms", 10_000),
        ("grpc.http2.max_pings_without_data", 0),
        # A proxy cannot reach this machine's loopback.
        ("grpc.enable_http_proxy", int(not address.is_loopback)),
        # Connect soon after a service has started.
        ("grpc.max_reconnect_backoff_ms", 500),
    )


def server_credentials(cert: Path, key: Path, client_ca: Path | None = None) -> grpc.ServerCredentials:
    """Loads the TLS credentials of a gRPC port from PEM files.

    Args:
      client_ca: if given, only clients with a certificate from these authorities may connect.

    Raises:
      InvalidInputError: a file cannot be read, or certificate and key do not match.
    """
    chain = _content(cert, "--tls-cert", "tls_cert")
    private = _content(key, "--tls-key", "tls_key")
    authorities = None
    # gRPC itself accepts any file, and then fails every handshake.
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    problem = f"--tls-cert {cert} and --tls-key {key} are no certificate with its key"
    _check(problem, "tls_cert", lambda: context.load_cert_chain(cert, key, _no_password))
    if client_ca is not None:
        authorities = _content(client_ca, "--tls-client-ca", "tls_client_ca")
        problem = f"--tls-client-ca {client_ca} holds no certificates"
        _check(problem, "tls_client_ca", lambda: context.load_verify_locations(client_ca))
    return grpc.ssl_server_credentials(
        [(private, chain)], authorities, require_client_auth=authorities is not None
    )


def _content(path: str | Path, option: str, field: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except (OSError, ValueError) as cause:
        reason = getattr(cause, "strerror", None) or cause
        raise InvalidInputError(f"{option}: {str(path)!r} cannot be read: {reason}.", field=field) from None


def _check(problem: str, field: str, load: Callable[[], None]) -> None:
    try:
        load()
    except (OSError, ValueError) as cause:
        reason = str(getattr(cause, "reason", None) or cause).replace("_", " ").lower().rstrip(".")
        raise InvalidInputError(f"{problem}: {reason}.", field=field) from None


def _no_password() -> str:
    raise ValueError("the key is encrypted, and nobody is there to type its password")


def is_ready(opened: grpc.Channel, timeout_s: float) -> bool:
    """Whether the channel connects within this time."""
    ready = grpc.channel_ready_future(opened)
    try:
        ready.result(timeout=timeout_s)
    except grpc.FutureTimeoutError:
        return False
    finally:
        ready.cancel()
    return True
