"""Controls who may reach a service, and who may call it."""

from __future__ import annotations

import hmac
import re
import stat
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import grpc
from grpc_health.v1 import health

from go_opt.errors import InvalidInputError, UnauthenticatedError
from go_opt.service.calls.calls import Calls
from go_opt.service.transport.address import Address
from go_opt.service.transport.credentials import server_credentials

# Health probes have no token, and learn only whether the service is serving.
_OPEN_METHODS: Final = f"/{health.SERVICE_NAME}/"
_UNKNOWN_METHOD: Final = "unknown"
_SCHEME: Final = "bearer "
_OTHERS: Final = stat.S_IRWXO
_LINE: Final = re.compile(r"(?P<client>[A-Za-z0-9._@-]{1,64})[ \t]+(?P<token>[!-~]{16,512})")


@dataclass(frozen=True)
class Security:
    """The security settings of an operator; by default only this machine can reach the service.

    Args:
      tls_cert: PEM file of the certificate chain.
      tls_key: PEM file of its key.
      tls_client_ca: PEM file of authorities; only clients with a certificate from them may connect.
      tokens: file of lines ``CLIENT TOKEN``; only calls with one of these tokens are answered.
      insecure: allow an address that other machines can reach without encryption.
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
        """Raise if other machines could reach the service unencrypted, unless ``insecure`` allows it."""
        if self.tls_cert is not None or self.insecure or address.is_loopback:
            return
        what = "tokens would travel unencrypted" if self.tokens else "the service would have no encryption"
        raise InvalidInputError(
            f"{address} can be reached from other machines and {what}; give --tls-cert and --tls-key, "
            "or --insecure (insecure=True) to serve there all the same.",
            field="insecure",
        )

    def check_plain_address(self, address: Address) -> None:
        """Raise if other machines could read the metrics, which are never encrypted."""
        if not (self.insecure or address.is_loopback):
            raise InvalidInputError(
                f"{address} can be reached from other machines and metrics are not encrypted; "
                "give --metrics-to-others (metrics_to_others=True) to serve them there all the same.",
                field="metrics",
            )

    def load(self) -> Guard:
        """Reads and checks the files of these settings."""
        credentials = None
        if self.tls_cert is not None and self.tls_key is not None:
            credentials = server_credentials(self.tls_cert, self.tls_key, self.tls_client_ca)
        return Guard(credentials, None if self.tokens is None else Tokens(self.tokens))


@dataclass(frozen=True)
class Guard:
    """Loaded security settings."""

    credentials: grpc.ServerCredentials | None = None
    tokens: Tokens | None = None

    def listen(self, server: grpc.aio.Server, address: Address) -> int:
        """Open the port for the server and return its number."""
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
        """The token's client name, else the certificate's common or alternative names, else empty."""
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
    """Refuses calls without a known token before their messages are read."""

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
        # Unknown methods stay out of the metrics, which keep each label forever.
        method = details.method.removeprefix("/") if handler is not None else _UNKNOWN_METHOD
        return self._calls.refusal(
            method, UnauthenticatedError("the call has no token that this service knows.")
        )


class Tokens:
    """The tokens of a file with lines ``CLIENT TOKEN``.

    A client may have several tokens, so that a token can be replaced without an outage.
    """

    def __init__(self, path: Path) -> None:
        try:
            if path.stat().st_mode & _OTHERS:
                raise _unfit(f"{path} is open to other users of this machine; chmod it to 600.")
            lines = path.read_text("ascii").splitlines()
        except OSError as error:
            raise _unfit(f"{path} cannot be read: {error.strerror}.") from None
        except UnicodeDecodeError:
            raise _unfit(f"{path} is not ASCII text.") from None
        clients: dict[bytes, str] = {}
        for number, line in enumerate(lines, 1):
            text = line.strip()
            if not text or text.startswith("#"):
                continue
            match = _LINE.fullmatch(text)
            if match is None:  # the message must not show the line, which is secret
                form = "must be CLIENT TOKEN, the token of 16 to 512 visible ASCII characters"
                raise _unfit(f"line {number} of {path} {form}.")
            if clients.setdefault(match["token"].encode(), match["client"]) != match["client"]:
                raise _unfit(f"line {number} of {path} repeats the token of another client.")
        if not clients:
            raise _unfit(f"{path} holds no token.")
        self._clients = tuple(clients.items())

    def client_of(self, metadata: Iterable[tuple[str, str | bytes]]) -> str | None:
        """The client whose token the call carries; None if the call carries no known token."""
        given = next((value for key, value in metadata if key == "authorization"), "")
        if not isinstance(given, str) or given[: len(_SCHEME)].lower() != _SCHEME:
            return None
        token = given[len(_SCHEME) :].strip().encode()
        found = None
        for known, client in self._clients:
            # Compare all tokens, so that the time reveals nothing.
            if hmac.compare_digest(known, token):
                found = client
        return found


def _unfit(problem: str) -> InvalidInputError:
    return InvalidInputError(f"--tokens: {problem}", field="tokens")
