"""The options of commands that ask a service."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable
from dataclasses import dataclass, fields
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, get_type_hints

import typer

from go_opt.errors import InvalidInputError
from go_opt.service.transport.address import DEFAULT_ADDRESS

if TYPE_CHECKING:
    from go_opt.service.client.client import Client

TOKEN_VARIABLE: Final = "GO_OPT_TOKEN"
_MAX_TOKEN_BYTES: Final = 10_000  # who gives a larger file has mistaken it


@dataclass(frozen=True)
class Connection:
    """Which service to ask, and how; the fields are the options of a command line."""

    server: Annotated[str | None, typer.Option(metavar="HOST:PORT", help="Ask a go-opt service.")] = None
    tls: Annotated[
        bool, typer.Option("--tls", help="Encrypt; a public authority vouches for the service.")
    ] = False
    tls_ca: Annotated[
        Path | None, typer.Option(help="Encrypt; the authorities of this PEM file vouch for the service.")
    ] = None
    tls_cert: Annotated[Path | None, typer.Option(help="PEM file of your certificate.")] = None
    tls_key: Annotated[Path | None, typer.Option(help="PEM file of its key.")] = None
    token_file: Annotated[
        Path | None,
        typer.Option(help=f"File of the token that the service asks for. [default: ${TOKEN_VARIABLE}]"),
    ] = None

    def client(self) -> Client:
        """A connection to the service; by default to that of this machine."""
        from go_opt.service.client.client import Client
        from go_opt.service.transport.credentials import Credentials

        credentials = Credentials(self.tls, self.tls_ca, self.tls_cert, self.tls_key, self._token())
        return Client(self.server or DEFAULT_ADDRESS, credentials=credentials)

    def refuse_without_server(self) -> None:
        """Raise where options of a service are given and no service is."""
        if self.server is not None:
            return
        for field in fields(self):
            if getattr(self, field.name) != field.default:
                option = f"--{field.name.replace('_', '-')}"
                raise InvalidInputError(f"{option} needs --server.", field=field.name)

    def _token(self) -> str | None:
        if self.token_file is None:
            return os.environ.get(TOKEN_VARIABLE) or None
        try:
            with self.token_file.open("rb") as file:
                return file.read(_MAX_TOKEN_BYTES).decode("ascii").strip()
        except OSError as error:
            reason = error.strerror or str(error)
        except ValueError:  # not ASCII, or a path with a null byte
            reason = "it is no token"
        raise InvalidInputError(
            f"--token-file: {str(self.token_file)!r} cannot be read: {reason}.", field="token_file"
        )


def with_connection(command: Callable[..., None]) -> Callable[..., None]:
    """The command with the options of a :class:`Connection`, which it gets as ``connection``."""
    options = get_type_hints(Connection, include_extras=True)
    own = get_type_hints(command, include_extras=True)
    defaults = {field.name: field.default for field in fields(Connection)}

    @wraps(command)
    def run(**given: Any) -> None:
        connection = Connection(**{name: given.pop(name) for name in options})
        command(**given, connection=connection)

    # Where the command has its `connection`; typer reads options off the signature.
    parameters: list[inspect.Parameter] = []
    for parameter in inspect.signature(command).parameters.values():
        if parameter.name != "connection":
            parameters.append(_by_keyword(parameter.name, own[parameter.name], parameter.default))
            continue
        parameters += [_by_keyword(name, options[name], defaults[name]) for name in options]
    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return run


def _by_keyword(name: str, annotation: Any, default: Any) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)
