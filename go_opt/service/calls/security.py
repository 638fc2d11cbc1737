"""Who may reach a service, and who may call it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import grpc
from grpc_health.v1 import health

from go_opt.errors import InvalidInputError, UnauthenticatedError
from go_opt.service.calls.calls import Calls
from go_opt.service.transport.address import Address
from go_opt.service.transport.certificates import server_credentials
from go_opt.service.transport.tokens import Tokens

# Whoever probes a service has no token, and learns no more than whether it serves.
_OPEN_METHODS: Final = f"/{health.SERVICE_NAME}/"
_UNKNOWN_METHOD: Final = "unknown"


@dataclass(frozen=True)
class Security:
    """What an operator asks for; the default is a service for this machine alone.

    Args:
      tls_cert: PEM file of the certificate and those up to its authority.
      tls_key: PEM file of its key.
      tls_client_ca: PEM file of authorities; only clients with a certificate of theirs connect.
      tokens: file of lines ``CLIENT TOKEN``; only calls with one of them are answered.
      insecure: allow an address that other machines reach without encryption.
    """

    tls_cert: Path | None = None
    tls_key: Path | None = None
    tls_client_ca: Path | None = None
    tokens: Path | None = None
    insecure: bool = False

    def __post_init__(self) -> None:
        if (self.tls_cert is None) != (self.tls_key is None):
            raise InvalidInputError("--tls-cert and --tls-key go together.", field="tls_key")
        if self.tls_client_ca is not None and self.tls_cert is None:
            raise InvalidInputError("--tls-client-ca needs --tls-cert and --tls-key.", field="tls_client_ca")

    def check_address(self, address: Address) -> None:
        """Raise where others could read what travels, or tokens, and nobody said they may."""
        if self.tls_cert is not None or self.insecure or address.is_loopback:
            return
        what = "tokens would travel unencrypted" if self.tokens else "the service would have no encryption"
        raise InvalidInputError(
            f"{address} can be reached from other machines and {what}; give --tls-cert and --tls-key, "
            "or --insecure (insecure=True) to serve there all the same.",
            field="insecure",
        )

    def check_plain_address(self, address: Address) -> None:
        """Raise where others could read what is never encrypted: metrics."""
        if not (self.insecure or address.is_loopback):
            raise InvalidInputError(
                f"{address} can be reached from other machines and metrics are not encrypted; "
                "give --metrics-to-others (metrics_to_others=True) to serve them there all the same.",
                field="metrics",
            )

    def load(self) -> Guard:
        """The files of this security, read and checked."""
        credentials = None
        if self.tls_cert is not None and self.tls_key is not None:
            credentials = server_credentials(self.tls_cert, self.tls_key, self.tls_client_ca)
        return Guard(credentials, None if self.tokens is None else Tokens(self.tokens))


@dataclass(frozen=True)
class Guard:
    """Security at work."""

    credentials: grpc.ServerCredentials | None = None
    tokens: Tokens | None = None

    def listen(self, server: grpc.aio.Server, address: Address) -> int:
        """Open the port for the server; gives its number."""
        try:
            port: int
            if self.credentials is None:
                port = server.add_insecure_port(str(address))
            else:
                port = server.add_secure_port(str(address), self.credentials)
        except RuntimeError:
            raise InvalidInputError(f"cannot listen on {address}.", field="address") from None
        return port

    def name_of(self, context: Any) -> str:
        """Token's name, else the certificate's common name or other names; empty without either."""
        if self.tokens is not None:
            client = self.tokens.client_of(context.invocation_metadata() or ())
            if client is not None:
                return client
        if self.credentials is not None:
            found = context.auth_context()
            for kind in ("x509_common_name", "x509_subject_alternative_name"):
                if found.get(kind):
                    return ",".join(str(name, "utf-8", "replace") for name in found[kind])
        return ""


class Authentication(grpc.aio.ServerInterceptor):  # type: ignore[misc]
    """Refuses calls without a known token, before any message of theirs is read."""

    def __init__(self, tokens: Tokens, calls: Calls) -> None:
        self._tokens = tokens
        self._calls = calls

    async def intercept_service(
        self, continuation: Callable[[Any], Awaitable[grpc.RpcMethodHandler]], details: Any
    ) -> grpc.RpcMethodHandler:
        handler = await continuation(details)
        if details.method.startswith(_OPEN_METHODS):
            return handler
        metadata: Iterable[tuple[str, str | bytes]] = details.invocation_metadata or ()
        if self._tokens.client_of(metadata) is not None:
            return handler
        # What does not exist stays out of metrics, where each name would be kept for good.
        method = details.method.removeprefix("/") if handler is not None else _UNKNOWN_METHOD
        return self._calls.refusal(
            method, UnauthenticatedError("the call has no token that this service knows.")
        )
