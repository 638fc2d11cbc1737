"""Certificates of a service, exchanged while it runs."""

from __future__ import annotations

import ssl
from pathlib import Path

import grpc

from go_opt.errors import InvalidInputError
from go_opt.service.transport.watched import Watched


class Certificates:
    """A certificate chain with its key, and the authorities whose clients may call.

    New connections use the files as they are; those that are open go on.

    Args:
      client_ca: with it, only clients with a certificate of these authorities connect.
    """

    def __init__(self, cert: Path, key: Path, client_ca: Path | None = None) -> None:
        self._cert, self._key, self._client_ca = cert, key, client_ca
        paths = (cert, key) if client_ca is None else (cert, key, client_ca)
        self._watched = Watched(paths, self._read)
        self._given = self._watched.value()

    def credentials(self) -> grpc.ServerCredentials:
        """What a port of gRPC needs."""
        return grpc.dynamic_ssl_server_credentials(
            self._given,
            self._changed,  # asked before every handshake
            require_client_authentication=self._client_ca is not None,
        )

    def _changed(self) -> grpc.ServerCertificateConfiguration | None:
        """None where the one in use is the newest: gRPC need not set up TLS anew."""
        newest = self._watched.value()
        if newest is self._given:
            return None
        self._given = newest
        return newest

    def _read(self) -> grpc.ServerCertificateConfiguration:
        chain, key = _content(self._cert, "tls_cert"), _content(self._key, "tls_key")
        authorities = None if self._client_ca is None else _content(self._client_ca, "tls_client_ca")
        # gRPC itself takes anything, and lets every handshake fail.
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        try:
            context.load_cert_chain(self._cert, self._key, password=_no_password)
        except (OSError, ValueError) as error:
            raise InvalidInputError(
                f"--tls-cert {self._cert} and --tls-key {self._key} are no certificate with its key: "
                f"{_reason(error)}.",
                field="tls_cert",
            ) from None
        if authorities is not None:
            try:
                context.load_verify_locations(self._client_ca)
            except OSError as error:
                raise InvalidInputError(
                    f"--tls-client-ca {self._client_ca} holds no certificates: {_reason(error)}.",
                    field="tls_client_ca",
                ) from None
        return grpc.ssl_server_certificate_configuration([(key, chain)], root_certificates=authorities)


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
