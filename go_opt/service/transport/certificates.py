"""Certificates of a service."""

from __future__ import annotations

import ssl
from pathlib import Path

import grpc

from go_opt.errors import InvalidInputError


def server_credentials(cert: Path, key: Path, client_ca: Path | None = None) -> grpc.ServerCredentials:
    """What a port of gRPC needs, of PEM files.

    Args:
      client_ca: with it, only clients with a certificate of these authorities connect.

    Raises:
      InvalidInputError: a file cannot be read, or they are no certificate with its key.
    """
    chain, private = _content(cert, "tls_cert"), _content(key, "tls_key")
    authorities = None if client_ca is None else _content(client_ca, "tls_client_ca")
    # gRPC itself takes anything, and lets every handshake fail.
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    try:
        context.load_cert_chain(cert, key, password=_no_password)
    except (OSError, ValueError) as error:
        raise InvalidInputError(
            f"--tls-cert {cert} and --tls-key {key} are no certificate with its key: {_reason(error)}.",
            field="tls_cert",
        ) from None
    if authorities is not None:
        try:
            context.load_verify_locations(client_ca)
        except OSError as error:
            raise InvalidInputError(
                f"--tls-client-ca {client_ca} holds no certificates: {_reason(error)}.", field="tls_client_ca"
            ) from None
    return grpc.ssl_server_credentials(
        [(private, chain)], authorities, require_client_auth=authorities is not None
    )


def _content(path: Path, field: str) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        flag = "--" + field.replace("_", "-")
        raise InvalidInputError(f"{flag}: {path} cannot be read: {error.strerror}.", field=field) from None


def _no_password() -> str:
    raise ValueError("the key is encrypted, and nobody is there to type its password")


def _reason(error: Exception) -> str:
    reason = getattr(error, "reason", None) or str(error)
    return str(reason).replace("_", " ").lower().rstrip(".")
