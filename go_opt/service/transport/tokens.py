"""Bearer tokens from a file: who may call, and under which name."""

from __future__ import annotations

import hmac
import re
import stat
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from go_opt.errors import InvalidInputError

_SCHEME: Final = "bearer "
_OTHERS: Final = stat.S_IRWXO
_LINE: Final = re.compile(r"(?P<client>[A-Za-z0-9._@-]{1,64})[ \t]+(?P<token>[!-~]{16,512})")


class Tokens:
    """The tokens of a file of lines ``CLIENT TOKEN``.

    A client may have several tokens, so that one can be replaced without a gap.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._clients = self._read()

    def client_of(self, metadata: Iterable[tuple[str, str | bytes]]) -> str | None:
        """The client whose token the call carries; None where it carries none that is known."""
        given = next((value for key, value in metadata if key == "authorization"), "")
        if not isinstance(given, str) or given[: len(_SCHEME)].lower() != _SCHEME:
            return None
        token = given[len(_SCHEME) :].strip().encode()
        found = None
        for known, client in self._clients:
            # To the end of the list, so that the time taken tells nothing.
            if hmac.compare_digest(known, token):
                found = client
        return found

    def _read(self) -> tuple[tuple[bytes, str], ...]:
        try:
            if self._path.stat().st_mode & _OTHERS:
                raise InvalidInputError(
                    f"--tokens: {self._path} is open to other users of this machine; chmod it to 600.",
                    field="tokens",
                )
            lines = self._path.read_text("ascii").splitlines()
        except OSError as error:
            raise InvalidInputError(
                f"--tokens: {self._path} cannot be read: {error.strerror}.", field="tokens"
            ) from None
        except UnicodeDecodeError:
            raise InvalidInputError(f"--tokens: {self._path} is not ASCII text.", field="tokens") from None
        return self._parsed(lines)

    def _parsed(self, lines: list[str]) -> tuple[tuple[bytes, str], ...]:
        clients: dict[bytes, str] = {}
        for number, line in enumerate(lines, 1):
            text = line.strip()
            if not text or text.startswith("#"):
                continue
            match = _LINE.fullmatch(text)
            if match is None:  # the line itself is a secret
                raise InvalidInputError(
                    f"--tokens: line {number} of {self._path} must be CLIENT TOKEN, "
                    "the token of 16 to 512 visible ASCII characters.",
                    field="tokens",
                )
            if clients.setdefault(match["token"].encode(), match["client"]) != match["client"]:
                raise InvalidInputError(
                    f"--tokens: line {number} of {self._path} repeats the token of another client.",
                    field="tokens",
                )
        if not clients:
            raise InvalidInputError(f"--tokens: {self._path} holds no token.", field="tokens")
        return tuple(clients.items())
